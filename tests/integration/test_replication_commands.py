"""The words of `iotmq replication` at members in this process: what operators read, and what is done."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from fake_etcd import FakeEtcd
from gateway_process import free_port
from member_site import SEGMENT_BYTES, MakeSite, Site, send

from iotmq.commands.cli import main
from iotmq.remoting.codes import ResponseCode

STATE = b"/iotmq/DefaultCluster/b/state"


def config(site: Site, directory: Path) -> str:
    """A file with the settings of a member."""
    members = json.dumps([f"{number}=127.0.0.1:{port}" for number, port in site.ports.items()])
    file = directory / "member.toml"
    file.write_text(
        f'[broker]\nname = "b"\n[store]\nsegment_bytes = {SEGMENT_BYTES}\n'
        f'[replication]\nmode = "elected"\nmember = 1\nmembers = {members}\n'
        f'[replication.etcd]\nendpoints = ["{site.etcd.url}"]\n'
    )
    return str(file)


def alone(directory: Path) -> str:
    """The settings file of a member that nobody answers."""
    file = directory / "member.toml"
    file.write_text('[replication]\nmode = "elected"\nmember = 1\nmembers = ["1=127.0.0.1:1"]\n')
    return str(file)


async def begun(make: MakeSite, directory: Path, **settings: Any) -> tuple[Site, int, str]:
    """Three members in sync, their master, and the settings file of an operator."""
    site = make()
    master = await site.start_all(**settings)
    await site.in_sync(3)
    return site, master, config(site, directory)


async def run(file: str, *words: str) -> int:
    """The exit code of one command, which has a loop of its own."""
    return await asyncio.to_thread(main, ["replication", *words, "--config", file])


async def test_operators_see_all_members_and_why_one_is_missing(
    make: MakeSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, master, file = await begun(make, tmp_path)
    assert await run(file, "status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["member", "1", "2", "3"]
    assert sum(" yes " in line for line in lines) == 3
    gone = next(number for number in site.members if number != master)
    await site.stop(gone)
    assert await run(file, "status", "--json") == 0
    found = {entry["member"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found[master]["isServing"]
    assert "role" not in found[gone]
    assert await run(file, "status") == 0
    assert "does not answer" in capsys.readouterr().out
    for number in list(site.members):
        await site.stop(number)
    assert await run(file, "status") == 1


async def test_operators_hand_over(
    make: MakeSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, master, file = await begun(make, tmp_path)
    assert await run(file, "hand-over", "--to", str(master)) == 0
    assert "is master already" in capsys.readouterr().out
    target = next(number for number in site.members if number != master)
    assert await run(file, "hand-over", "--to", str(target)) == 0
    assert f"member {target} is master now" in capsys.readouterr().out
    assert site.members[target].broker is not None
    assert await run(file, "hand-over", "--to", "9") == 1
    assert "there is no member 9" in capsys.readouterr().err
    for number in [number for number in site.members if number != target]:
        await site.stop(number)
        assert await run(file, "hand-over", "--to", str(number)) == 1
        assert f"member {number} is not in sync, or not connected" in capsys.readouterr().err
    for number in list(site.members):
        await site.stop(number)
    assert await run(file, "hand-over") == 1
    assert "no member is master now" in capsys.readouterr().err


async def test_operators_are_told_that_the_consensus_store_is_away(
    make: MakeSite, tmp_path: Path, etcd: FakeEtcd, capsys: pytest.CaptureFixture[str]
) -> None:
    site, master, file = await begun(make, tmp_path)
    target = next(number for number in site.members if number != master)
    for path in ("kv/range", "kv/txn", "kv/put", "lease/grant", "lease/keepalive", "lease/timetolive"):
        etcd.fail(f"/v3/{path}", "refuse:503", 1_000)
    await soon(
        lambda: all((site.status(number) or {})["consensusProblem"] for number in site.members), "all notice"
    )
    assert await run(file, "status") == 0, "the master serves"
    # Of the request that failed last: one that may not be repeated names the node it was sent to.
    told = re.compile(r"the consensus store does not answer: .*status 503: refused by a test")
    assert told.search(capsys.readouterr().out)
    assert told.match(site.run(master).driver.hand_over_refusal(target))
    etcd.mend()
    await soon(
        lambda: not any((site.status(number) or {})["consensusProblem"] for number in site.members),
        "it is back",
    )
    assert await run(file, "status") == 0
    assert "consensus store" not in capsys.readouterr().out


async def test_operators_add_and_remove_members(
    make: MakeSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What the file says of members is not changed any more.
    site, master, file = await begun(make, tmp_path)
    site.ports[4] = free_port()
    assert await run(file, "add", f"4=127.0.0.1:{site.ports[4]}") == 0
    assert "member 4 is added" in capsys.readouterr().out
    assert await run(file, "status") == 0
    assert "does not answer" in capsys.readouterr().out, "it is recorded, and has not been started"
    await site.start(4)
    await site.in_sync(4)
    assert await run(file, "status", "--json") == 0
    assert [entry["member"] for entry in json.loads(capsys.readouterr().out)] == [1, 2, 3, 4]
    assert await run(file, "add", f"4=127.0.0.1:{site.ports[4]}") == 1
    assert "is there already" in capsys.readouterr().err
    assert await run(file, "remove", str(master)) == 1
    assert "hand over first" in capsys.readouterr().err
    gone = next(number for number in (1, 2, 3) if number != master)
    assert await run(file, "remove", str(gone)) == 0
    assert f"member {gone} is removed" in capsys.readouterr().out
    await site.in_sync(3)
    assert await run(file, "status") == 0
    assert f"`iotmq replication add {gone}=" in capsys.readouterr().out, "it runs still"
    assert await run(file, "verify") == 0
    assert str(gone) not in capsys.readouterr().out.split(":")[0]
    await site.stop(gone)
    assert await run(file, "status", "--json") == 0
    assert gone not in [entry["member"] for entry in json.loads(capsys.readouterr().out)]
    assert await run(file, "remove", str(gone)) == 1
    assert f"there is no member {gone}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("add", "0=a:1"), ("add", "128=a:1"), ("remove", "0"), ("remove", "128"),
        ("hand-over", "--to=0"), ("hand-over", "--to=128"),
    ],
)  # fmt: skip
async def test_numbers_that_no_member_can_have_are_refused(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(alone(tmp_path), *words) == 2
    assert "is no number of a member: they are 1 to 127" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["4", "4=", "=a:1", "a=a:1", "4=a", "1234=a:1", "-1=a:1"])
async def test_a_member_to_add_is_a_number_and_an_address(
    tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = alone(tmp_path)
    assert await asyncio.to_thread(main, ["replication", "add", "--config", file, "--", words]) == 2
    assert "is not NUMBER=HOST:PORT" in capsys.readouterr().err


async def test_when_two_of_three_are_lost_the_last_one_goes_on_without_them(
    make: MakeSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, master, file = await begun(make, tmp_path)
    lost = [number for number in site.members if number != master]
    for number in lost:
        await site.stop(number)
    await site.in_sync(1)
    assert await run(file, "remove", str(lost[0])) == 1
    assert "With --yes" in capsys.readouterr().err
    connection = await site.connect(master)
    assert (await send(connection, b"no")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert await run(file, "remove", str(lost[0]), "--yes") == 0
    await soon(lambda: (site.status(master) or {})["holds"] is None, "messages are taken")
    assert (await send(connection, b"yes")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    await site.start(lost[1])
    await site.in_sync(2)


async def test_a_member_is_forced_when_the_others_are_lost(
    make: MakeSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, master, file = await begun(make, tmp_path, replication={"when_few": "accept"})
    last = next(number for number in site.members if number != master)
    assert await run(file, "force", "--member", str(last)) == 1
    assert "use `iotmq replication hand-over`" in capsys.readouterr().err
    # The last one has left before the others were lost: it may not become master by itself.
    await site.stop(last)
    await site.in_sync(2)
    for number in list(site.members):
        await site.stop(number)
    await site.start(last, replication={"when_few": "accept"})
    assert await run(file, "force", "--member", str(master)) == 1
    assert "does not answer" in capsys.readouterr().err
    assert await run(file, "force", "--member", str(last)) == 1
    assert "Say it again with --yes" in capsys.readouterr().out
    assert await run(file, "force", "--member", str(last), "--yes") == 0
    assert f"member {last} is recorded as master" in capsys.readouterr().out
    await soon(lambda: site.members[last].broker, "the forced one serves")


async def test_the_state_is_written_anew_from_what_members_have(
    make: MakeSite, tmp_path: Path, etcd: FakeEtcd, capsys: pytest.CaptureFixture[str]
) -> None:
    site, _, file = await begun(make, tmp_path)
    assert await run(file, "adopt", "--yes") == 1
    assert "nothing has to be adopted" in capsys.readouterr().err
    for number in list(site.members):
        await site.stop(number)
    del etcd.data.keys[STATE]
    assert await run(file, "force", "--member", "1") == 1
    await site.start(1)
    await site.start(2)
    await soon(lambda: site.run(1) is not None, "a member answers")
    capsys.readouterr()
    assert await run(file, "force", "--member", "1", "--yes") == 1
    assert "see `iotmq replication adopt`" in capsys.readouterr().err
    assert await run(file, "adopt", "--yes") == 1
    assert "say --without 3" in capsys.readouterr().err
    assert await run(file, "adopt", "--without", "3") == 1
    assert "Say it again with --yes" in capsys.readouterr().out
    assert await run(file, "adopt", "--without", "3", "--yes") == 0
    assert "the state is written" in capsys.readouterr().out
    await site.start(3)
    await site.master()
    await site.in_sync(3)


async def test_a_member_that_was_added_is_asked_when_the_state_is_written_anew(
    make: MakeSite, tmp_path: Path, etcd: FakeEtcd, capsys: pytest.CaptureFixture[str]
) -> None:
    """It alone has what was acknowledged last, and no settings but its own name it."""
    accept: dict[str, Any] = {"when_few": "accept"}
    site, _, file = await begun(make, tmp_path, replication=accept)
    first = tuple(f"{number}=127.0.0.1:{port}" for number, port in site.ports.items())
    site.ports[4] = free_port()
    await site.start(4, replication=accept)
    assert await run(file, "add", f"4=127.0.0.1:{site.ports[4]}") == 0
    await site.in_sync(4)
    assert await run(file, "hand-over", "--to", "4") == 0
    await site.in_sync(4)
    for number in (1, 2, 3):
        await site.stop(number)
    await site.in_sync(1)
    connection = await site.connect(4)
    assert (await send(connection, b"last")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    await site.stop(4)
    del etcd.data.keys[STATE]
    for number in (1, 2, 3):
        await site.start(number, replication={**accept, "members": first})
    await soon(lambda: all(site.run(number) is not None for number in (1, 2, 3)), "they answer")
    capsys.readouterr()
    assert await run(file, "adopt", "--yes") == 1
    assert "member 4 does not answer" in capsys.readouterr().err
    await site.start(4, replication=accept)
    await soon(lambda: site.run(4) is not None, "it answers, too")
    assert await run(file, "adopt", "--yes") == 0
    assert "member 4 has the newest log" in capsys.readouterr().out
    assert await site.master() == 4
    await site.in_sync(4)


async def test_without_replication_the_error_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "alone.toml"
    file.write_text("")
    assert await run(str(file), "status") == 2
    assert "--config" in capsys.readouterr().err
