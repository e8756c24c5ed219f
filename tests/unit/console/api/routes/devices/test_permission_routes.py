"""Users of devices in lists."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from iotmq.console.api.pages import PageArguments
from iotmq.console.api.route import Call
from iotmq.console.api.routes.devices.permissions import list_device_users


class Users(dict[str, list[str]]):
    """Knows the thread in which they are looked through."""

    looked_through_by = 0

    def __iter__(self) -> Iterator[str]:
        self.looked_through_by = threading.get_ident()
        return super().__iter__()


async def test_many_users_are_looked_through_beside_the_loop() -> None:
    users = Users({f"user-{number:03}": ["r"] for number in (3, 1, 2, 0)})
    services: Any = SimpleNamespace(
        own=SimpleNamespace(device_access=lambda: SimpleNamespace(users=lambda: users))
    )
    arguments = PageArguments(match="USER", limit=3)
    call: Any = Call(arguments, None, SimpleNamespace(), SimpleNamespace())
    first = await list_device_users(services, call)
    assert [each.name for each in first.items] == ["user-000", "user-001", "user-002"]
    assert users.looked_through_by not in (0, threading.get_ident())
    assert first.next is not None
    rest = await list_device_users(services, call._replace(arguments=PageArguments(cursor=first.next)))
    assert ([each.name for each in rest.items], rest.next) == (["user-003"], None)
