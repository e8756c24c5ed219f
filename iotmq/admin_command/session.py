"""What an action works with: a client that is started, everything built on it, and where output goes."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import BinaryIO

from iotmq.client.admin import Admin
from iotmq.client.admin_access import AccessAdmin
from iotmq.client.admin_brokers import BrokerViews
from iotmq.client.admin_changes import AdminChanges
from iotmq.client.admin_configs import Configurations
from iotmq.client.admin_groups import GroupViews
from iotmq.client.admin_messages import MessageViews
from iotmq.client.client import IotmqClient
from iotmq.client.dead_letters import DeadLetters
from iotmq.client.queue_scaling import QueueScaling
from iotmq.client.waiting_messages import WaitingMessages


class Session:
    """Parts are made when an action first asks for them."""

    def __init__(
        self, client: IotmqClient, *, output: BinaryIO | None = None, is_quiet: bool = False
    ) -> None:
        """`output` takes what an action writes as bytes; `is_quiet` keeps progress lines back."""
        self.client = client
        self.output: BinaryIO = output or sys.stdout.buffer
        self._is_quiet = is_quiet
        self._progress_width = 0

    @cached_property
    def admin(self) -> Admin:
        return Admin(self.client)

    @cached_property
    def brokers(self) -> BrokerViews:
        return BrokerViews(self.client)

    @cached_property
    def groups(self) -> GroupViews:
        return GroupViews(self.client)

    @cached_property
    def messages(self) -> MessageViews:
        return MessageViews(self.client, self.groups)

    @cached_property
    def changes(self) -> AdminChanges:
        return AdminChanges(self.client)

    @cached_property
    def configurations(self) -> Configurations:
        return Configurations(self.client)

    @cached_property
    def scaling(self) -> QueueScaling:
        return QueueScaling(self.client)

    @cached_property
    def waiting(self) -> WaitingMessages:
        return WaitingMessages(self.client)

    @cached_property
    def access(self) -> AccessAdmin:
        return AccessAdmin(self.client)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(self.client)

    def progress(self, text: str, *, is_last: bool = False) -> None:
        """Say how far it is: on a terminal in one line that changes, elsewhere a line each time."""
        if self._is_quiet:
            return
        if not sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)
            return
        padding = " " * max(0, self._progress_width - len(text))
        self._progress_width = len(text)
        print(f"\r{text}{padding}", end="\n" if is_last else "", file=sys.stderr, flush=True)
