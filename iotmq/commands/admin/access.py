"""Accounts of brokers with access control."""

from __future__ import annotations

import argparse
import os
from typing import Final

from iotmq.commands.admin.output import Done, Result, Table
from iotmq.commands.admin.session import Session

ACCOUNT_SECRET: Final = "IOTMQ_ACCOUNT_SECRET"


async def show(session: Session, options: argparse.Namespace) -> Result:
    """Show the version of the accounts at each broker: equal where brokers have the same changes."""
    versions = await session.admin.access.versions(options.broker_names)
    rows = [
        {"broker": name, "changes": version.counter, "changed_ms": version.timestamp}
        for name, version in sorted(versions.items())
    ]
    return Table(rows)


async def put(session: Session, options: argparse.Namespace) -> Result:
    """Make an account, or change what is named of one."""
    names = await session.admin.access.put(
        options.account,
        # Not an option: command lines are there for all users of the machine to see.
        secret_key=os.environ.get(ACCOUNT_SECRET, ""),
        addresses=options.addresses,
        is_admin=options.is_admin,
        default_topic=options.default_topic or "",
        default_group=options.default_group or "",
        topics=dict(options.topics),
        groups=dict(options.groups),
        default_mqtt_topic=options.default_mqtt_topic or "",
        mqtt_topics=dict(options.mqtt_topics),
        broker_names=options.broker_names,
    )
    return Done(
        f"account {options.account} set at {', '.join(names)}", {"account": options.account, "brokers": names}
    )


async def delete(session: Session, options: argparse.Namespace) -> Result:
    """Delete an account."""
    names = await session.admin.access.delete(options.account, options.broker_names)
    return Done(
        f"account {options.account} deleted at {', '.join(names)}",
        {"account": options.account, "brokers": names},
    )


async def set_white_addresses(session: Session, options: argparse.Namespace) -> Result:
    """Let addresses do everything without an account."""
    names = await session.admin.access.set_white_addresses(options.addresses, options.broker_names)
    return Done(
        f"{', '.join(options.addresses)} need no account at {', '.join(names)}",
        {"addresses": options.addresses, "brokers": names},
    )
