"""Show and change the key-value settings and the settings of registries."""

from __future__ import annotations

import argparse

from iotmq.commands.admin.output import Done, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError


async def get_value(session: Session, options: argparse.Namespace) -> Result:
    """Show one value."""
    value = await session.admin.changes.value(options.namespace, options.key)
    if value is None:
        raise ClientError(
            f"there is no value {options.key} in namespace {options.namespace}: `kv list "
            f"{options.namespace}` shows what there is"
        )
    return Done(value, {"namespace": options.namespace, "key": options.key, "value": value})


async def list_values(session: Session, options: argparse.Namespace) -> Result:
    """List all values of a namespace."""
    values = await session.admin.changes.values(options.namespace)
    rows = [{"key": key, "value": value} for key, value in sorted(values.items())]
    return Table(rows, nothing=f"namespace {options.namespace} is empty")


async def put_value(session: Session, options: argparse.Namespace) -> Result:
    """Set a value at every registry."""
    await session.admin.changes.put_value(options.namespace, options.key, options.value)
    return Done(
        f"{options.namespace}/{options.key} set",
        {"namespace": options.namespace, "key": options.key, "value": options.value},
    )


async def delete_value(session: Session, options: argparse.Namespace) -> Result:
    """Delete a value at every registry."""
    await session.admin.changes.delete_value(options.namespace, options.key)
    return Done(
        f"{options.namespace}/{options.key} deleted", {"namespace": options.namespace, "key": options.key}
    )


async def show_settings(session: Session, options: argparse.Namespace) -> Result:
    """Show every setting of every registry."""
    rows = [
        {"registry": address, "name": name, "value": value}
        for address, settings in (await session.admin.changes.registry_settings()).items()
        for name, value in sorted(settings.items())
    ]
    return Table(rows)


async def change_settings(session: Session, options: argparse.Namespace) -> Result:
    """Change settings of all registries; they keep them."""
    wanted = dict(options.settings)
    await session.admin.changes.change_registry_settings(wanted)
    return Done(f"{', '.join(wanted)} changed at all registries", {"settings": wanted})
