"""The words of `iotmq replication`: the members of a replicated broker, for operators.

They need the settings of any member (`--config`), and ask the members and the consensus store named there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from iotmq.commands.admin.output import Table
from iotmq.errors import ConfigError, IotmqError

if TYPE_CHECKING:
    from iotmq.config.config import Config
    from iotmq.member.peers import PeerConnector
    from iotmq.replication.cluster_state import ClusterState
    from iotmq.replication.consensus.port import ConsensusStore

_ASK_S: Final = 3.0
_HANDED_OVER_S: Final = 10.0
_ASK_AGAIN_S: Final = 2.0
_STEP_S: Final = 0.05
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


def add_replication_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    *,
    add_config_options: Callable[[argparse.ArgumentParser], None],
    load: Load,
) -> None:
    """Add `replication` with its actions."""
    command = commands.add_parser(
        "replication",
        help="look at the members of a replicated broker, change the master",
        description="Look at the members of a replicated broker and change the master. Every action needs "
        "the settings of a member: --config FILE.",
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="all members: role, position, and why one is not in sync")
    status.add_argument("--json", dest="is_json", action="store_true", help="one JSON document")
    hand_over = actions.add_parser("hand-over", help="make another member master, without losing a message")
    hand_over.add_argument(
        "--to", dest="member", type=int, default=0, metavar="N", help="this member (the one that is furthest)"
    )
    force = actions.add_parser(
        "force", help="make a member master that may lack acknowledged messages, when all others are lost"
    )
    force.add_argument("--member", type=int, required=True, metavar="N", help="the new master")
    adopt = actions.add_parser(
        "adopt", help="write the state anew from what the members have, when the consensus store has lost it"
    )
    adopt.add_argument(
        "--without", type=int, action="append", default=[], metavar="N",
        help="go on without this member, which does not answer; may be repeated",
    )  # fmt: skip
    for action in (force, adopt):
        action.add_argument("--yes", dest="is_confirmed", action="store_true", help="do it, not only say it")
    functions = ((status, _status), (hand_over, _hand_over), (force, _force), (adopt, _adopt))
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
        if config.replication.mode == "off":
            raise ConfigError(
                "replication.mode is off: give the settings of a member of a replicated broker by --config"
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
        for answer in answers:
            for alarm in (answer.status or {}).get("alarms", ()):
                print(f"member {answer.member}: {alarm}")
    return _OK if any((answer.status or {}).get("isServing") for answer in answers) else _FAILED


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
    states = [state for answer in answers if (state := (answer.status or {}).get("state"))]
    if not states:
        return {}
    newest = max(states, key=lambda state: int(state["epoch"]))
    return {int(member): str(incarnation) for member, incarnation in newest["in_sync"]}


async def _ask_all(connector: PeerConnector) -> list[_Answer]:
    async def ask(number: int) -> _Answer:
        address = connector.address(number)
        try:
            return _Answer(number, address, await connector.status(number, timeout_s=_ASK_S), "")
        except IotmqError as error:
            return _Answer(number, address, None, f"does not answer: {error}")

    return list(await asyncio.gather(*map(ask, sorted(connector.members))))


# Changing ---------------------------------------------------------------------------------------------


async def _hand_over(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    from iotmq.remoting.codes import RequestCode

    master = await _master(connector)
    if master is None:
        raise ReplicationRefusedError("no member is master now: see `iotmq replication status`")
    if options.member == master:
        print(f"member {master} is master already")
        return _OK
    began_s = asked_s = time.monotonic()
    fields = {"member": str(options.member)}
    await connector.request(master, RequestCode.HAND_OVER, fields, timeout_s=_ASK_S)
    while time.monotonic() - began_s < _HANDED_OVER_S:
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
        f"member {master} has not handed over within {_HANDED_OVER_S:.0f} s, and goes on: "
        "see `iotmq replication status`"
    )


async def _master(connector: PeerConnector) -> int | None:
    for answer in await _ask_all(connector):
        if (answer.status or {}).get("isServing"):
            return answer.member
    return None


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
            f"member {options.member} has {chosen.status['end']:,} bytes of the log. What the members that "
            f"do not answer have acknowledged and it has not, is lost; of those that answer, {lost:,} bytes."
        )
        state = ClusterState(
            epoch=_next_epoch(answers, old.epoch),
            master=options.member,
            in_sync=(identity,),
            reason="forced by an operator",
            since_ms=time.time_ns() // 1_000_000,
            is_forced=True,
        )
        if not options.is_confirmed:
            print("Nothing is changed. Say it again with --yes to do it.")
            return _FAILED
        if await store.replace(found.version, state.encode()) is None:
            raise ReplicationRefusedError("the state has changed meanwhile: look at the members again")
        print(f"member {options.member} is recorded as master of epoch {state.epoch}")
        return _OK
    finally:
        await store.close()


async def _adopt(options: argparse.Namespace, config: Config, connector: PeerConnector) -> int:
    """Write the state that a consensus store has lost, or has an old one of."""
    from iotmq.replication.cluster_state import decode_state

    answers = await _ask_all(connector)
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
        state = _adopted(answers, old_epoch)
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


def _adopted(answers: list[_Answer], old_epoch: int) -> ClusterState:
    """Return the state with the member as master whose log is the newest: its last epoch, then its end.

    A log of a later epoch has everything that was acknowledged in earlier ones; of two logs of one epoch the
    longer has everything that the shorter one has.
    """
    from iotmq.replication.cluster_state import ClusterState, Identity

    known = [(answer.member, answer.status) for answer in answers if answer.status is not None]
    if not known:
        raise ReplicationRefusedError("no member answers: start them first")
    serving = [member for member, status in known if status["isServing"]]
    if serving:
        raise ReplicationRefusedError(f"member {serving[0]} is master and serves: nothing has to be adopted")
    member, status = max(known, key=lambda one: (one[1]["lastEpoch"], one[1]["end"], -one[0]))
    return ClusterState(
        epoch=_next_epoch(answers, old_epoch),
        master=member,
        in_sync=(Identity(member, status["incarnation"]),),
        reason="adopted by an operator",
        since_ms=time.time_ns() // 1_000_000,
    )


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
