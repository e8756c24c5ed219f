"""Changing the accounts at run time: codes 50 to 53 (wire document 2.2, 15)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from iotmq.broker.access import accounts_file
from iotmq.broker.access.accounts_file import AclFileError
from iotmq.broker.access.acl import AccessControl
from iotmq.broker.access.addresses import split_patterns
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.clock import Clock
from iotmq.errors import RequestError
from iotmq.files import replace_private_file
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

logger = logging.getLogger(__name__)

_Change = Callable[[bytes], bytes]


class AclHandler(RequestProcessor):
    """Writes the file of accounts off the loop, one change after the other, and then puts them in force.

    A change that was begun is finished though nobody waits for the answer any more.
    """

    def __init__(
        self,
        access: AccessControl | None,
        clock: Clock,
        *,
        broker_name: str,
        cluster: str,
        broker_address: Callable[[], str],
        is_member: bool,
    ) -> None:
        """`access` is None where access control is off. `is_member`: others have files of their own."""
        self._access = access
        self._clock = clock
        self._broker_name = broker_name
        self._cluster = cluster
        self._broker_address = broker_address
        self._is_member = is_member
        # One change at a time: each begins with what the former one wrote.
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self._update,
            RequestCode.DELETE_ACL_CONFIG: self._delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self._version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRESSES: self._white_addresses,
        }

    async def stop(self) -> None:
        """Finish the changes that were begun."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _update(self, connection: ServerConnection, request: Command) -> Command | None:
        refused = ResponseCode.ACL_UPDATE_FAILED
        self._changeable(refused)
        account: dict[str, Any] = {"accessKey": request.text("accessKey")}
        for field in (
            "secretKey",
            "whiteRemoteAddress",
            "defaultTopicPerm",
            "defaultGroupPerm",
            "defaultMqttTopicPerm",
        ):
            if request.ext.get(field):
                account[field] = request.ext[field]
        if "admin" in request.ext:
            account["admin"] = request.boolean("admin")
        for field in ("topicPerms", "groupPerms", "mqttTopicPerms"):
            if request.ext.get(field):
                account[field] = _list(request.ext[field])
        now_ms = self._clock.now_ms()
        change = partial(accounts_file.with_account, account=account, now_ms=now_ms)
        return self._change(connection, request, refused, change)

    def _delete(self, connection: ServerConnection, request: Command) -> Command | None:
        refused = ResponseCode.ACL_DELETE_FAILED
        self._changeable(refused)
        access_key = request.text("accessKey")
        change = partial(accounts_file.without_account, access_key=access_key, now_ms=self._clock.now_ms())
        return self._change(connection, request, refused, change)

    def _white_addresses(self, connection: ServerConnection, request: Command) -> Command | None:
        refused = ResponseCode.ACL_WHITE_LIST_FAILED
        access = self._changeable(refused)
        addresses = _list(request.text("globalWhiteAddrs"))
        path = request.text("aclFileFullPath", "")
        if path and path != str(access.path):
            raise RequestError(
                refused, f"the field aclFileFullPath is not {access.path}, the file of this broker"
            )
        entries = {accounts_file.WHITE_ADDRESSES: addresses}
        change = partial(accounts_file.changed, change=entries, now_ms=self._clock.now_ms())
        return self._change(connection, request, refused, change)

    def _version(self, connection: ServerConnection, request: Command) -> Command | None:
        access = self._enabled(ResponseCode.SYSTEM_ERROR)
        version = msgspec.to_builtins(access.accounts.version)
        return request.reply(
            ResponseCode.SUCCESS,
            ext={
                "version": msgspec.json.encode(version).decode(),
                "allAclFileVersion": msgspec.json.encode({str(access.path): version}).decode(),
                "brokerName": self._broker_name,
                "brokerAddr": self._broker_address(),
                "clusterName": self._cluster,
            },
        )

    def _enabled(self, code: int) -> AccessControl:
        if self._access is None:
            raise RequestError(code, "this broker has no access control: broker.acl_enabled is off")
        return self._access

    def _changeable(self, code: int) -> AccessControl:
        access = self._enabled(code)
        if self._is_member:
            # The next master would not know of it.
            raise RequestError(
                code,
                "members of a replicated broker have files of accounts of their own, which are not copied: "
                f"change {access.path} at every member; each reads its file again by itself",
            )
        return access

    def _change(
        self, connection: ServerConnection, request: Command, refused: int, change: _Change
    ) -> Command | None:
        task = asyncio.ensure_future(self._carry_out(connection, request, refused, change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _carry_out(
        self, connection: ServerConnection, request: Command, refused: int, change: _Change
    ) -> None:
        access = self._enabled(refused)

        def write() -> accounts_file.Accounts:
            data = change(accounts_file.read_bytes(access.path))
            accounts = accounts_file.parse_accounts(data)
            replace_private_file(access.path, data)
            return accounts

        try:
            async with self._changing:
                access.use(await asyncio.to_thread(write))
        except AclFileError as error:
            response = request.reply(refused, remark=f"the accounts stay as they are: {error}")
        except OSError as error:
            logger.error("accounts not written: %s", error)
            response = request.reply(refused, remark=f"{access.path} could not be written: {error.strerror}")
        else:
            logger.info("accounts changed", extra={"request": request.code, "peer": connection.peer[0]})
            response = request.reply(ResponseCode.SUCCESS)
        connection.reply(response)


def _list(text: str) -> list[str]:
    """Return the pieces between commas that stand outside braces, which address patterns have."""
    return [piece.strip() for piece in split_patterns(text) if piece.strip()]
