"""The words of `iotmq replication`: the members of a replicated broker, for operators.

They need the settings of any member (`--config`), and ask the members and the consensus store named there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from iotmq.commands.admin.output import Table
from iotmq.errors import BrokerError, ConfigError, IotmqError

if TYPE_CHECKING:
    from iotmq.config.config import Config
    from iotmq.member.log_comparison import Difference
    from iotmq.member.peers import PeerConnector
    from iotmq.replication.cluster_state import ClusterState, MemberAddress
    from iotmq.replication.consensus.port import ConsensusStore

_ASK_S: Final = 3.0
_DONE_S: Final = 10.0
_ASK_AGAIN_S: Final = 2.0
_STEP_S: Final = 0.05
_MASTER_ROLES: Final = ("leading", "taking over")
_VERIFY_BYTES_PER_S: Final = 50_000_000
_OK: Final = 0
_FAILED: Final = 1

Load = Callable[[argparse.Namespace], "Config"]


class ReplicationRefusedError(IotmqError):
    """Refuse what cannot be done, or not without being confirmed; the text says why."""


class _Answer(NamedTuple):
    """Hold what one member says of itself, or why it says nothing."""

    member: int
    address: str
    status: dict[str, Any] | None
    problem: str


def add_replication_actions(
    command: argparse.ArgumentParser,
    *,
    add_config_options: Callable[[argparse.ArgumentParser], None],
    load: Load,
) -> None:
    """Add the actions of `replication`."""
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = actions.add_parser(
        "status",
        help="all members: role, position, and why one is not in sync",
        description="Show all members, and under them what an operator should know. A member that is not "
        "added yet is shown with its own settings. Exit codes: 0 a member is master and serves, 1 none does.",
    )
    status.add_argument("--json", dest="is_json", action="store_true", help="one JSON document")
    hand_over = actions.add_parser(
        "hand-over",
        help="make another member master, without losing a message",
        description="Make another member master, without losing a message. Senders wait meanwhile, and get "
        "no error. Needs the consensus store, and another member in sync.",
    )
    hand_over.add_argument(
        "--to", dest="member", type=int, metavar="N",
        help="the next master (the member in sync whose log is furthest)",
    )  # fmt: skip
    add = actions.add_parser(
        "add",
        help="add a member, which then copies the log",
        description="Record another member. Start its process before, with itself in replication.members: it "
        "waits, and copies the log once it is added.",
    )
    add.add_argument("member", metavar="NUMBER=HOST:PORT", help="its number, and its native port")
    remove = actions.add_parser(
        "remove",
        help="remove a member, which is not waited for any more",
        description="Remove a member from those that are recorded: the others do not wait for it any more. "
        "Stop its process afterwards. The master cannot be removed: hand over first.",
    )
    remove.add_argument("member", type=int, metavar="NUMBER", help="its number")
    force = actions.add_parser(
        "force",
        help="make a member master that may lack acknowledged messages, when all others are lost",
        description="Make a member master by your word, when those that may be it are lost. What only lost "
        "members have is lost with them. Without --yes nothing is changed.",
    )
    force.add_argument("--member", type=int, required=True, metavar="N", help="the new master")
    adopt = actions.add_parser(
        "adopt",
        help="write the state anew from what the members have, when the consensus store has lost it",
        description="Write the state of this broker into a consensus store that has lost it, or has an old "
        "one. The member with the newest log becomes master. Restart all members before: one that serves "
        "does not believe such a store. Without --yes nothing is changed.",
    )
    adopt.add_argument(
        "--without", type=int, action="append", default=[], metavar="N",
        help="go on without this member, which does not answer; may be repeated",
    )  # fmt: skip
    verify = actions.add_parser(
        "verify",
        help="compare the logs of all members, byte by byte",
        description="Compare what all members have confirmed, while they serve. Exit codes: 0 all "
        "logs are the same, 1 they differ, a member is missing, or it could not be done.",
    )
    verify.add_argument(
        "--bytes-per-s", dest="bytes_per_s", type=int, default=_VERIFY_BYTES_PER_S, metavar="N",
        help=f"read so much of each member's log in a second ({_VERIFY_BYTES_PER_S})",
    )  # fmt: skip
    verify.add_argument("--json", dest="is_json", action="store_true", help="one JSON document")
    for action in (force, adopt):
        action.add_argument("--yes", dest="is_confirmed", action="store_true", help="do it, not only say it")
    for action in (add, remove):
        action.add_argument(
            "--yes",
            dest="is_confirmed",
            action="store_true",
            help="also when fewer members are in sync afterwards than there should be",
        )
    functions = ((status, _status), (hand_over, _hand_over), (add, _add), (remove, _remove),
                 (force, _force), (adopt, _adopt), (verify, _verify))  # fmt: skip
    for action, function in functions:
        add_config_options(action)
        action.set_defaults(command=_runner(function, load))


def _runner(
    function: Callable[[argparse.Namespace, Config, PeerConnector], Coroutine[Any, Any, int]], load: Load
) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        from iotmq.member.peers import PeerConnector
        from iotmq.member.wire import Introduction

        config = load(options)
        mode = config.replication.mode
        if mode != "elected":
            raise ConfigError(
                f"replication.mode is {mode}, and this is for mode elected: give the settings of a member by "
                "--config"
            )
        connector = PeerConnector(
            config.replication,
            Introduction(
                cluster=config.broker.cluster,
                broker=config.broker.name,
                segment_bytes=config.store.segment_bytes,
            ),
        )

        async def main() -> int:
            return await function(options, config, connector)

        return asyncio.run(main())

    return run


# Looking ----------------------------------------------------------------------------------------------


async def _status(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    answers = await _ask_all(connector)
    rows = _rows(answers)
    if options.is_json:
        print(json.dumps([{"member": answer.member, "address": answer.address, **(answer.status or {})}
                          for answer in answers]))  # fmt: skip
    else:
        sys.stdout.write(Table(rows).text())
        for line in _notes(answers):
            print(line)
    return _OK if any((answer.status or {}).get("isServing") for answer in answers) else _FAILED


def _notes(answers: list[_Answer]) -> list[str]:
    """Return alarms, and what members say of the consensus store, each once, with those who say it."""
    said: dict[str, list[int]] = {}
    shown = {(row["member"], row["why"]) for row in _rows(answers)}
    for answer in answers:
        status = answer.status or {}
        texts = list(status.get("alarms", ()))
        if problem := status.get("consensusProblem"):
            texts.append(f"the consensus store does not answer: {problem}")
        for text in texts:
            if (answer.member, text) not in shown:
                said.setdefault(text, []).append(answer.member)
    return [f"{_members(members)}: {text}" for text, members in said.items()]


def _rows(answers: list[_Answer]) -> list[dict[str, Any]]:
    """Return a row for each member; `why` says what is missing to be in sync."""
    master = next((answer.status for answer in answers if (answer.status or {}).get("isServing")), None)
    in_sync = _in_sync_of(answers)
    rows = []
    for answer in answers:
        status = answer.status or {}
        end = status.get("end")
        why = answer.problem or status.get("notReady") or status.get("holds") or ""
        is_in_sync = in_sync.get(answer.member) is not None and (
            not status or in_sync[answer.member] == status.get("incarnation")
        )
        if not why and not is_in_sync:
            why = "catches up"
        rows.append(
            {
                "member": answer.member,
                "address": answer.address,
                "role": status.get("role", "?"),
                "in_sync": "yes" if is_in_sync else "no",
                "promised_epoch": status.get("promisedEpoch"),
                "end": end,
                "confirmed": status.get("confirmed"),
                "behind_bytes": None if master is None or end is None else max(0, master["end"] - end),
                "why": why,
            }
        )
    return rows


def _in_sync_of(answers: list[_Answer]) -> dict[int, str]:
    """Return member -> incarnation of those that the newest state names."""
    state = _newest_state(answers)
    return {} if state is None else dict(state.in_sync)


def _newest_state(answers: Iterable[_Answer]) -> ClusterState | None:
    """Return the state that is known best by those who answer."""
    from iotmq.replication.cluster_state import state_of

    known = [answer.status for answer in answers if answer.status is not None and answer.status.get("state")]
    if not known:
        return None
    newest = max(known, key=lambda status: (status["state"]["epoch"], status.get("stateVersion", 0)))
    return state_of(newest["state"])


async def _ask_all(connector: PeerConnector) -> list[_Answer]:
    """Ask all members: those that are recorded, and those of the settings that answer."""
    from iotmq.replication.cluster_state import MemberAddress

    answers = {answer.member: answer for answer in await _ask(connector, connector.members)}
    state = _newest_state(answers.values())
    if state is not None and state.members:
        recorded = dict(state.members)
        moved = [number for number, address in recorded.items() if connector.address(number) != address]
        # Others have been removed, or are not added yet. What they say is of interest.
        others = [answer for answer in answers.values() if answer.status and answer.member not in recorded]
        connector.know([*state.members, *(MemberAddress(each.member, each.address) for each in others)])
        answers.update({answer.member: answer for answer in await _ask(connector, moved)})
    return [answers[number] for number in sorted(connector.members)]


async def _ask(connector: PeerConnector, numbers: Iterable[int]) -> list[_Answer]:
    async def ask(number: int) -> _Answer:
        address = connector.address(number)
        try:
            return _Answer(number, address, await connector.status(number, timeout_s=_ASK_S), "")
        except IotmqError as error:
            return _Answer(number, address, None, f"does not answer: {error}")

    return await asyncio.gather(*map(ask, numbers))


async def _ask_remembered(connector: PeerConnector, answers: list[_Answer]) -> list[_Answer]:
    """Ask those, too, that only other members remember: the state that names them is lost, or an old one."""
    from iotmq.limits import REPLICATION_MEMBER_MAX
    from iotmq.replication.cluster_state import MemberAddress

    while True:
        known = {answer.member: answer.address for answer in answers}
        told = dict(each for answer in answers for each in _remembered_by(answer.status or {}))
        new = sorted(n for n in told.keys() - known.keys() if 1 <= n <= REPLICATION_MEMBER_MAX)
        if not new:
            return sorted(answers)
        known.update((number, told[number]) for number in new)
        connector.know(MemberAddress(*each) for each in known.items())
        answers = [*answers, *await _ask(connector, new)]


def _remembered_by(status: dict[str, Any]) -> tuple[MemberAddress, ...]:
    """Return the members that a member knows to have been recorded last; earlier versions do not tell."""
    from iotmq.replication.cluster_state import members_of

    return members_of(status.get("members", ()))


# Comparing --------------------------------------------------------------------------------------------


async def _verify(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    """Compare the logs of all members that answer."""
    from iotmq import limits
    from iotmq.commands.store import ProgressBar
    from iotmq.member.log_comparison import LogComparison

    low, high = limits.REPLICATION_CHECKSUM_BYTES_PER_S_MIN, limits.REPLICATION_CHECKSUM_BYTES_PER_S_MAX
    if not low <= options.bytes_per_s <= high:
        raise ConfigError(f"--bytes-per-s {options.bytes_per_s} is not between {low} and {high}")
    answers = await _ask_all(connector)
    state = _newest_state(answers)
    if state is not None and state.members:
        answers = [answer for answer in answers if answer.member in dict(state.members)]
    known = {answer.member: answer.status for answer in answers if answer.status is not None}
    missing = [answer.member for answer in answers if answer.status is None]
    if len(known) < 2:
        raise ReplicationRefusedError(f"{len(known)} of {len(answers)} members answer: nothing to compare")
    start = max(int(status["oldest"]) for status in known.values())
    end = min(int(status["confirmed"]) for status in known.values())
    master = next((member for member, status in known.items() if status["isServing"]), None)
    bar = ProgressBar(sys.stderr)
    comparison = LogComparison(
        connector,
        sorted(known, key=lambda member: (member != master, member)),
        positions=range(start, end),
        bytes_per_s=options.bytes_per_s,
        progress=lambda position: bar("logs", position, end),
    )
    began_s = time.monotonic()
    await comparison.run()
    bar.end()
    seconds = time.monotonic() - began_s
    compared = max(0, end - start - comparison.deleted_bytes)
    differences = comparison.differences
    if options.is_json:
        print(json.dumps({
            "start": start, "end": end, "bytes": compared, "seconds": round(seconds, 3),
            "members": sorted(known), "missing": missing,
            "differences": [
                {"start": each.start_position, "end": each.end_position, "wrong": each.in_minority(),
                 "opinions": [opinion._asdict() for opinion in each.opinions]}
                for each in differences
            ],
        }))  # fmt: skip
    else:
        for each in differences:
            print(f"positions {each.start_position}..{each.end_position} differ:")
            for opinion in each.opinions:
                print(f"  {_members(opinion.members)}: {opinion.found}")
        for line in _advice(differences, master):
            print(line)
        for member in missing:
            print(f"member {member} does not answer, and was not compared")
        count = len(differences)
        verdict = f"{count} difference{'' if count == 1 else 's'}" if count else "the same"
        print(
            f"{_members(tuple(sorted(known)))}: {compared:,} bytes, positions {start}..{end}, "
            f"in {seconds:.1f} s: {verdict}"
        )
    return _FAILED if differences or missing else _OK


def _members(members: Sequence[int]) -> str:
    return f"member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"


def _advice(differences: list[Difference], master: int | None) -> list[str]:
    """Say what to do about differences, once for each member."""
    lines = []
    wrong = {member for each in differences for member in each.in_minority()}
    for member in sorted(wrong):
        before = "hand over to another one (`iotmq replication hand-over`), " if member == master else ""
        lines.append(
            f"most members contradict member {member}: {before}stop it, move its data directory away, and "
            "start it again with an empty one"
        )
    if any(not each.in_minority() for each in differences):
        lines.append(
            "where no opinion is that of most members, the logs do not say which one is right: keep all data "
            "directories, and see what `iotmq store check` says of each while its member is stopped"
        )
    return lines


# Changing ---------------------------------------------------------------------------------------------


async def _hand_over(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    from iotmq.remoting.codes import RequestCode

    if options.member is not None:
        _check_number(options.member)
    master = await _master(connector)
    if master is None:
        raise ReplicationRefusedError("no member is master now: see `iotmq replication status`")
    if options.member == master:
        print(f"member {master} is master already")
        return _OK
    began_s = asked_s = time.monotonic()
    fields = {"member": str(options.member or 0)}
    await connector.request(master, RequestCode.HAND_OVER, fields, timeout_s=_ASK_S)
    while time.monotonic() - began_s < _DONE_S:
        if time.monotonic() - asked_s > _ASK_AGAIN_S:
            # The member had not everything within the second that senders are made to wait.
            asked_s = time.monotonic()
            await connector.request(master, RequestCode.HAND_OVER, fields, timeout_s=_ASK_S)
        new = await _master(connector)
        if new is not None and new != master:
            print(f"member {new} is master now, after {(time.monotonic() - began_s) * 1000:.0f} ms")
            return _OK
        await asyncio.sleep(_STEP_S)
    raise ReplicationRefusedError(
        f"member {master} has not handed over within {_DONE_S:.0f} s, and goes on: "
        "see `iotmq replication status`"
    )


async def _master(connector: PeerConnector) -> int | None:
    for answer in await _ask_all(connector):
        if (answer.status or {}).get("isServing"):
            return answer.member
    return None


def _check_number(number: int) -> None:
    """Refuse what no member can have as its number."""
    from iotmq import limits

    if not 1 <= number <= limits.REPLICATION_MEMBER_MAX:
        raise ConfigError(f"{number} is no number of a member: they are 1 to {limits.REPLICATION_MEMBER_MAX}")


async def _add(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    from iotmq.addresses import address_text, parse_address
    from iotmq.remoting.codes import RequestCode

    number, _, text = options.member.partition("=")
    if not number.isdecimal() or len(number) > 3:
        raise ConfigError(f"{options.member!r} is not NUMBER=HOST:PORT, for example 4=10.0.0.4:10911")
    _check_number(int(number))
    try:
        address = address_text(*parse_address(text))
    except ValueError as error:
        raise ConfigError(f"{options.member!r} is not NUMBER=HOST:PORT: {error}") from None
    fields = {"member": number, "address": address, "confirmed": str(options.is_confirmed).lower()}
    await _change_members(
        connector,
        RequestCode.ADD_MEMBER,
        fields,
        is_done=lambda state: dict(state.members).get(int(number)) == address,
    )
    print(f"member {int(number)} is added: it copies the log, and is in sync afterwards")
    return _OK


async def _remove(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    from iotmq.remoting.codes import RequestCode

    _check_number(options.member)
    fields = {"member": str(options.member), "confirmed": str(options.is_confirmed).lower()}
    await _change_members(
        connector,
        RequestCode.REMOVE_MEMBER,
        fields,
        is_done=lambda state: bool(state.members) and options.member not in dict(state.members),
    )
    print(f"member {options.member} is removed: stop its process")
    return _OK


async def _change_members(
    connector: PeerConnector, code: int, fields: dict[str, str], *, is_done: Callable[[ClusterState], bool]
) -> None:
    """Have the master change the members, and return when that is recorded."""
    began_s = time.monotonic()
    asked_s = float("-inf")
    while time.monotonic() - began_s < _DONE_S:
        answers = await _ask_all(connector)
        state = _newest_state(answers)
        if asked_s > began_s and state is not None and is_done(state):
            return
        if time.monotonic() - asked_s > _ASK_AGAIN_S:
            # It may not serve yet, because too few members are in sync.
            master = next((a.member for a in answers if state is not None and a.member == state.master), None)
            role = next((a.status["role"] for a in answers if a.member == master and a.status), None)
            if master is None or role not in _MASTER_ROLES:
                raise ReplicationRefusedError("no member is master now: see `iotmq replication status`")
            is_first, asked_s = asked_s < began_s, time.monotonic()
            try:
                await connector.request(master, code, fields, timeout_s=_ASK_S)
            except BrokerError:
                # What was asked for before may have been done meanwhile.
                state = _newest_state(await _ask_all(connector))
                if is_first or state is None or not is_done(state):
                    raise
        await asyncio.sleep(_STEP_S)
    raise ReplicationRefusedError(
        f"it is not recorded after {_DONE_S:.0f} s, and may be so later: see `iotmq replication status`"
    )


async def _force(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    """Make a member master by the operator's word."""
    from iotmq.replication.cluster_state import ClusterState, Identity, decode_state

    answers = await _ask_all(connector)
    sys.stdout.write(Table(_rows(answers)).text())
    chosen = next((answer for answer in answers if answer.member == options.member), None)
    if chosen is None or chosen.status is None:
        raise ReplicationRefusedError(f"member {options.member} does not answer: start it first")
    serving = next((answer.member for answer in answers if (answer.status or {}).get("isServing")), None)
    if serving is not None:
        raise ReplicationRefusedError(
            f"member {serving} is master and serves: use `iotmq replication hand-over`"
        )
    store = _open_store(config)
    try:
        found = await store.read()
        if found is None:
            raise ReplicationRefusedError(
                "the consensus store has no state of this broker: see `iotmq replication adopt`"
            )
        old = decode_state(found.value)
        identity = Identity(options.member, chosen.status["incarnation"])
        best = max(answer.status["confirmed"] for answer in answers if answer.status is not None)
        lost = max(0, best - chosen.status["end"])
        print(
            f"The log of member {options.member} ends at {chosen.status['end']:,}. Messages that it does not "
            f"have are lost: {lost:,} bytes that a member that answers has confirmed, and all that "
            "only members have that do not answer."
        )
        state = ClusterState(
            epoch=_next_epoch(answers, old.epoch),
            master=options.member,
            in_sync=(identity,),
            members=_members_with(old.members or config.replication.member_addresses, chosen),
            reason="forced by an operator",
            is_forced=True,
        )
        if not options.is_confirmed:
            print("Nothing is changed. Say it again with --yes to do it.")
            return _FAILED
        if await store.replace(found.version, state.encode()) is None:
            raise ReplicationRefusedError("the state has changed meanwhile: look at the members again")
        print(
            f"member {options.member} is recorded as master of epoch {state.epoch}. See `iotmq replication "
            "status`: where it says that too few members are in sync, start others, or remove those that are "
            "lost (`iotmq replication remove N --yes`)"
        )
        return _OK
    finally:
        await store.close()


async def _adopt(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    """Write the state that a consensus store has lost, or has an old one of."""
    from iotmq.replication.cluster_state import decode_state

    answers = await _ask_remembered(connector, await _ask_all(connector))
    sys.stdout.write(Table(_rows(answers)).text())
    missing = [a.member for a in answers if a.status is None and a.member not in options.without]
    if missing:
        raise ReplicationRefusedError(
            f"member {missing[0]} does not answer, and may have what the others have not: start it, or say "
            f"--without {missing[0]} when its disk is lost"
        )
    store = _open_store(config)
    try:
        found = await store.read()
        old_epoch = 0 if found is None else decode_state(found.value).epoch
        state = _adopted(answers, old_epoch, config.replication.member_addresses)
        print(f"members are {', '.join(f'{member}={address}' for member, address in state.members)}")
        print(
            f"member {state.master} has the newest log and becomes master of epoch {state.epoch}; "
            "the others catch up with it"
        )
        if not options.is_confirmed:
            print("Nothing is changed. Say it again with --yes to do it.")
            return _FAILED
        data = state.encode()
        made = await (store.create(data) if found is None else store.replace(found.version, data))
        if made is None:
            raise ReplicationRefusedError("the state has changed meanwhile: look at the members again")
        print("the state is written")
        return _OK
    finally:
        await store.close()


def _adopted(answers: list[_Answer], old_epoch: int, members: tuple[MemberAddress, ...]) -> ClusterState:
    """Return the state with the member as master whose log is the newest: its last epoch, then its end.

    A log of a later epoch has everything that was acknowledged in earlier ones; of two logs of one epoch the
    longer has everything that the shorter one has. All members are those that this one remembers, those that
    one of them knows to be recorded, or else `members`.
    """
    from iotmq.replication.cluster_state import ClusterState, Identity

    known = [(answer.member, answer.status) for answer in answers if answer.status is not None]
    if not known:
        raise ReplicationRefusedError("no member answers: start them first")
    serving = [member for member, status in known if status["isServing"]]
    if serving:
        raise ReplicationRefusedError(
            f"member {serving[0]} is master and serves: nothing has to be adopted. Was the consensus store "
            "restored or set up anew? Then restart all members first"
        )
    newest = _newest_state(answers)
    if newest is not None and newest.members:
        members = newest.members
    member, status = max(known, key=lambda one: (one[1]["lastEpoch"], one[1]["end"], -one[0]))
    best = next(answer for answer in answers if answer.member == member)
    return ClusterState(
        epoch=_next_epoch(answers, old_epoch),
        master=member,
        in_sync=(Identity(member, status["incarnation"]),),
        members=_members_with(_remembered_by(status) or members, best),
        reason="adopted by an operator",
    )


def _members_with(members: tuple[MemberAddress, ...], answer: _Answer) -> tuple[MemberAddress, ...]:
    """Return the members, and the one that answers among them, also if it was removed."""
    from iotmq.replication.cluster_state import MemberAddress

    found = {answer.member: answer.address, **dict(members)}
    return tuple(MemberAddress(*each) for each in sorted(found.items()))


def _next_epoch(answers: list[_Answer], epoch: int) -> int:
    promised = [int(answer.status["promisedEpoch"]) for answer in answers if answer.status is not None]
    return max([epoch, *promised]) + 1


def _open_store(config: Config) -> ConsensusStore:
    from iotmq.clock import SystemClock
    from iotmq.replication.consensus.opening import open_consensus_store

    replication = config.replication
    return open_consensus_store(
        replication.etcd if replication.consensus == "etcd" else replication.kubernetes,
        cluster=config.broker.cluster,
        broker=config.broker.name,
        clock=SystemClock(),
    )
