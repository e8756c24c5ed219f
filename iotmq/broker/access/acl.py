"""Access control: which requests are carried out for whom (wire document 15).

A guard stands between a listener and the processors that answer requests. Where access control is off there
is none, and nothing is asked. The accounts are in a file that is read again when it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from iotmq.audit_log import Record, no_audit
from iotmq.broker.access import accounts_file
from iotmq.broker.access.accounts_file import Account, Accounts, AclFileError
from iotmq.broker.access.audit import record_refusal
from iotmq.broker.access.rules import (
    ANY,
    DENY,
    PUB,
    SUB,
    Need,
    RecordTopics,
    TopicAt,
    device_topic,
    rule_of,
    topic_need,
)
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.topics import TRACE_TOPIC
from iotmq.errors import ConfigError, RequestError
from iotmq.files import is_open_to_others
from iotmq.message.properties import MQTT_TOPIC
from iotmq.message.records.record import decode_record, property_value
from iotmq.metrics import Metric, samples, samples_by
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import Run
from iotmq.remoting.frames.send_frames import SendRun
from iotmq.remoting.frames.signed_frames import read_signed
from iotmq.remoting.server import RequestHandler, RunHandler, ServerConnection
from iotmq.remoting.signature import ACCESS_KEY, is_signature_of, is_signed_with
from iotmq.store.store import Store
from iotmq.watched_file import WatchedFiles

logger = logging.getLogger(__name__)

_REASONS: Final = ("unsigned", "account", "signature", "admin", "permission")
_DEVICE_HINT: Final = MQTT_TOPIC.encode()
_WORDS: Final = {PUB: "PUB", SUB: "SUB", ANY: "PUB or SUB"}


class AccessRefusedError(RequestError):
    """A request that access control refuses; `reason` as its metric calls it."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, text)
        self.reason = reason


def open_access_control(
    settings: BrokerSettings, store: Store, *, default_file: Path
) -> AccessControl | None:
    """Return None where it is off. ConfigError when there are no accounts to go by."""
    if not settings.acl_enabled:
        return None

    def topic_at(position: int) -> RecordTopics | None:
        view = store.read_record(position)
        if view is None:
            return None
        record = decode_record(view)
        return RecordTopics(
            record.topic,
            (property_value(record.properties, b"REAL_TOPIC") or b"").decode("utf-8", "replace"),
            device_topic(record.properties) or "",
        )

    return AccessControl(
        Path(settings.acl_file or default_file),
        topic_at=topic_at,
        open_topics={TRACE_TOPIC},
    )


class AccessControl:
    """The accounts in force, and what was refused for want of them."""

    def __init__(
        self,
        path: Path,
        *,
        topic_at: TopicAt = lambda position: None,
        open_topics: Collection[str] = (),
        asked_by: str = "broker.acl_enabled is on",
    ) -> None:
        """`open_topics` take messages of every account: clients trace without being asked.
        `asked_by` says which setting wants the accounts.

        ConfigError when the file is missing or breaks a rule: nobody would be let in, or the wrong.
        """
        self._open_topics = frozenset(open_topics)
        self.path = path
        self._topic_at = topic_at
        self._watched = WatchedFiles(path)
        try:
            self._accounts = accounts_file.read_accounts(path)
        except FileNotFoundError:
            raise ConfigError(
                f"{asked_by} and {path} is not there: write it first (docs/how-to/accounts.md)"
            ) from None
        except (OSError, AclFileError) as error:
            raise ConfigError(f"the accounts in {path} cannot be used: {error}") from error
        # The account that signed the last heartbeat of a connection, where its address alone is not enough.
        self._account_of: dict[ServerConnection, str] = {}
        self._warn_when_open()
        self.refused = dict.fromkeys(_REASONS, 0)
        self.reloads_count = 0
        self.failed_reloads_count = 0

    @property
    def accounts(self) -> Accounts:
        return self._accounts

    def authenticated(self, request: Command, address: str) -> Account | None:
        """The account that signed the request; None when its address alone is enough. RequestError (16)."""
        accounts = self._accounts
        return None if accounts.is_white(address) else self._authenticated(accounts, request, address)

    def check_permitted(self, account: Account, request: Command) -> None:
        """Return when an account may have the request carried out, else RequestError (16).

        Of a request about a record that is read, which may have to wait for the disk.
        """
        rule = rule_of(request.code)
        if rule.is_for_admins:
            if not account.is_admin:
                raise self._refusal(
                    "admin",
                    f"account {account.access_key} is not an administrator, as request {request.code} needs",
                )
            return
        for need in rule.needs(request, self._topic_at):
            if not self._is_permitted(account, need):
                raise self._refusal(
                    "permission",
                    f"account {account.access_key} lacks {_WORDS[need.permission]} on "
                    f"{need.kind} {need.name[:128]!a}",
                )

    def is_allowed(self, data: bytes, at: int, address: str) -> bool:
        """Return whether the usual send or pull at `at` may be carried out, as `check` would say.

        False in doubt.
        """
        request = read_signed(data, at)
        account = None if request is None else self._accounts.by_key.get(request.access_key)
        if request is None or account is None:
            return False
        if account.address.matches(address):
            return True
        if not is_signature_of(request.signature, request.content, account.secret_key):
            return False
        if request.group is not None:
            return self._is_permitted(account, topic_need(request.topic, SUB)) and self._is_permitted(
                account, Need(request.group, True, SUB)
            )
        # To speak to devices needs a look at the properties.
        return _DEVICE_HINT not in request.content and self._is_permitted(
            account, topic_need(request.topic, PUB)
        )

    def note_heartbeat(self, connection: ServerConnection, account: Account | None) -> None:
        """Note who a client is that names its groups; None where its address alone is enough."""
        self.forget(connection)
        if account is not None:
            self._account_of[connection] = account.access_key

    def forget(self, connection: ServerConnection) -> None:
        """Note the end of a connection."""
        self._account_of.pop(connection, None)

    def may_be_asked(self, connection: ServerConnection, topic: str, properties: bytes) -> bool:
        """Return whether a producer may see a prepared message: any client may call itself one of any group.

        So it is when it could have prepared that.
        """
        access_key = self._account_of.get(connection)
        if access_key is None:
            return True
        account = self._accounts.by_key.get(access_key)
        own = device_topic(properties)
        return (
            account is not None
            and self._is_permitted(account, topic_need(topic, PUB))
            and (own is None or self._is_permitted(account, Need(own, False, PUB, is_device=True)))
        )

    def use(self, accounts: Accounts) -> None:
        """Put accounts in force that were written by this process just now."""
        self._accounts = accounts
        self._watched.remember()

    async def reload_repeatedly(self, interval_s: float) -> None:
        """Read the file again whenever it changed. One that breaks a rule changes nothing and is said."""
        while True:
            await asyncio.sleep(interval_s)
            await self.reload()

    async def reload(self) -> None:
        """Look at the file once, off the loop."""
        if not await self._watched.have_changed():
            return
        try:
            self._accounts = await asyncio.to_thread(accounts_file.read_accounts, self.path)
        except (OSError, AclFileError) as error:
            self.failed_reloads_count += 1
            if not isinstance(error, (AclFileError, FileNotFoundError)):
                # No open file was left, or the machine has to be told who may read it: not the file changes.
                self._watched.forget()
            logger.error("the changed accounts in %s are not used: %s", self.path, error)
            return
        self.reloads_count += 1
        logger.info("%d accounts read from %s", len(self._accounts.by_key), self.path)
        self._warn_when_open()

    @property
    def accounts_count(self) -> int:
        return len(self._accounts.by_key)

    def metrics(self) -> Iterable[Metric]:
        text = "Requests refused by access control."
        yield from samples_by("reason", "iotmq_broker_acl_refused_total", text, self.refused)
        yield from samples(
            ("iotmq_broker_acl_accounts", "Accounts of access control.", self.accounts_count),
            ("iotmq_broker_acl_reloads_total", "Times changed accounts were read.", self.reloads_count),
            (
                "iotmq_broker_acl_failed_reloads_total",
                "Times changed accounts could not be used.",
                self.failed_reloads_count,
            ),
        )

    def _authenticated(self, accounts: Accounts, request: Command, address: str) -> Account | None:
        """Return the account that signed the request; None when its address alone is enough."""
        access_key = request.ext.get(ACCESS_KEY)
        if not access_key:
            raise self._refusal(
                "unsigned", f"request {request.code} from {address} is not signed: no AccessKey"
            )
        account = accounts.by_key.get(access_key)
        if account is None:
            raise self._refusal("account", f"there is no account {access_key[:64]!a}")
        if account.address.matches(address):
            return None
        if not is_signed_with(request, account.secret_key):
            raise self._refusal("signature", f"the signature of account {access_key} is wrong")
        return account

    def _is_permitted(self, account: Account, need: Need) -> bool:
        if need.is_device:
            return account.devices.allows(need.name)
        if need.permission == PUB and need.name in self._open_topics:
            return True
        if need.name == "*" and not account.is_admin:
            return False
        owned = account.permission(need.name, is_group=need.is_group)
        if owned & DENY:
            return False
        return bool(owned & (PUB | SUB if need.permission == ANY else need.permission))

    def _refusal(self, reason: str, text: str) -> AccessRefusedError:
        self.refused[reason] += 1
        # The log itself stops floods.
        logger.warning("access refused", extra={"reason": reason, "detail": text})
        return AccessRefusedError(reason, text)

    def _warn_when_open(self) -> None:
        if is_open_to_others(self.path):
            logger.warning(
                "%s holds secrets and others on this machine may read or change it: chmod 600 it", self.path
            )


class Guard:
    """Lets requests through to a handler when access control says so; is itself a RequestHandler."""

    def __init__(
        self,
        handler: RequestHandler,
        handle_run: RunHandler,
        access: AccessControl,
        store: Store,
        cold_reads: ColdReads,
        *,
        record: Record = no_audit,
    ) -> None:
        """`record` is told of refusals."""
        self._handler = handler
        self._handle_run = handle_run
        self._access = access
        self._store = store
        self._cold_reads = cold_reads
        self._record = record

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        try:
            return self._handle(connection, request)
        except AccessRefusedError as error:
            record_refusal(self._record, connection, request, reason=error.reason, detail=str(error))
            raise

    def _handle(self, connection: ServerConnection, request: Command) -> Command | None:
        account = self._access.authenticated(request, connection.peer[0])
        if request.code == RequestCode.HEART_BEAT:
            self._access.note_heartbeat(connection, account)
        if account is None:
            return self._handler.handle(connection, request)
        record_field = rule_of(request.code).record_field
        if not record_field:
            self._access.check_permitted(account, request)
            return self._handler.handle(connection, request)
        answer = DeferredReply(connection, request)

        def read(_: memoryview | None) -> None:
            try:
                self._access.check_permitted(account, request)
            except AccessRefusedError as error:
                record_refusal(self._record, connection, request, reason=error.reason, detail=str(error))
                raise
            response = self._handler.handle(connection, request)
            if response is not None:
                answer.answer(response)

        # Whose the record is decides; it is in memory when that is looked at.
        position = request.integer(record_field, minimum=0)
        self._cold_reads.finish(self._store.record_steps(position), read, answer.refuse)
        return answer.now_or_later()

    def handle_run(self, connection: ServerConnection, run: Run, at: int) -> int:
        """The fast path, for addresses that are not asked and for usual requests that show their signature.

        What is not let through here is not refused either: the general path asks again, and says why.
        """
        address = connection.peer[0]
        if self._access.accounts.is_white(address):
            return self._handle_run(connection, run, at)
        if isinstance(run, SendRun):
            # Each is looked at once, however often the general path takes one between.
            if run.allowed <= at:
                run.allowed = self._allowed_end(run, at, address)
            return self._handle_run(connection, run, at) if run.allowed > at else at
        return self._handle_run(connection, run, at) if self._allowed_end(run, at, address) > at else at

    def _allowed_end(self, run: Run, at: int, address: str) -> int:
        """The number of the first request of a run from `at` on that access control does not let through."""
        while at < run.count and self._access.is_allowed(run.data, run.start_of(at), address):
            at += 1
        return at

    def connection_lost(self, connection: ServerConnection) -> None:
        self._access.forget(connection)
        self._handler.connection_lost(connection)
