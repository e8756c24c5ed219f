"""`iotmq bans`: who may not connect."""

from __future__ import annotations

import argparse
import time

from iotmq.client.admin.devices.bans import BanAdmin
from iotmq.commands.admin.output import Done, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError
from iotmq.limits import MQTT_BAN_REASON_CHARACTERS_MAX
from iotmq.mqtt.bans import Ban, BanKind, normal_value


async def list_bans(session: Session, options: argparse.Namespace) -> Result:
    """List the bans that are not over."""
    rows = [
        {
            "kind": ban.kind,
            "value": ban.value,
            "until_ms": ban.until_ms or None,
            "reason": ban.reason,
            "by": ban.by,
        }
        for ban in await BanAdmin(session.client).all(_now_ms())
    ]
    return Table(rows, nothing="nobody is banned")


async def add(session: Session, options: argparse.Namespace) -> Result:
    """Ban somebody, or change a ban."""
    kind, value = _named(options)
    now_ms = _now_ms()
    until_ms = 0 if options.duration_ms is None else now_ms + options.duration_ms
    if len(options.reason) > MQTT_BAN_REASON_CHARACTERS_MAX:
        raise ClientError(f"a reason has at most {MQTT_BAN_REASON_CHARACTERS_MAX} characters")
    ban = Ban(
        kind=kind,
        value=value,
        until_ms=until_ms,
        reason=options.reason,
        by="operator",
        made_ms=now_ms,
    )
    brokers = await BanAdmin(session.client).put(ban, now_ms)
    return Done(
        f"{kind} {value} is banned; `iotmq bans remove {kind} {value}` ends it",
        {"kind": kind, "value": value, "until_ms": until_ms or None, "brokers": brokers},
    )


async def remove(session: Session, options: argparse.Namespace) -> Result:
    """End a ban."""
    kind, value = _named(options)
    admin = BanAdmin(session.client)
    if not any((ban.kind, ban.value) == (kind, value) for ban in await admin.all(_now_ms())):
        raise ClientError(f"{kind} {value} is not banned: `iotmq bans list` shows who is")
    brokers = await admin.remove(kind, value)
    return Done(f"{kind} {value} may connect again", {"kind": kind, "value": value, "brokers": brokers})


def _named(options: argparse.Namespace) -> tuple[BanKind, str]:
    kind: BanKind = options.kind
    try:
        return kind, normal_value(kind, options.value)
    except ValueError as error:
        raise ClientError(f"{options.value!r} is no {kind}: {error}") from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
