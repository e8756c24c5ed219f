"""Sessions and front ends as operators see, end and drain them (codes 30067, 30068 and 30070-30074)."""

from __future__ import annotations

from collections.abc import Mapping

from iotmq import limits
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.requests import Answer
from iotmq.broker.sessions.sessions import Sessions
from iotmq.broker.shares.shares import ShareView
from iotmq.errors import RefusedError, RequestError
from iotmq.ports.session_pages import (
    FrontEndsPage,
    FrontEndSummary,
    SessionDetail,
    SessionFilter,
    SessionsPage,
    SessionSummary,
    ShareMember,
    SharesPage,
    ShareSummary,
)
from iotmq.ports.sessions import EXCLUSIVE, DrainOrder
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

# Past so many filters an answer leaves the others away.
_FILTERS_SHOWN_MAX = 1_024
# The same of the members of one group.
_MEMBERS_SHOWN_MAX = 100


class SessionViewsHandler(RequestProcessor):
    """Lists, shows, disconnects and ends the sessions of one broker, and drains its front ends."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.LIST_SESSIONS: self._list,
            RequestCode.GET_SESSION: self._show,
            RequestCode.KICK_SESSION: self._kick,
            RequestCode.PURGE_SESSION: self._purge,
            RequestCode.LIST_SHARES: self._list_shares,
            RequestCode.LIST_FRONT_ENDS: self._list_front_ends,
            RequestCode.DRAIN_FRONT_END: self._drain,
        }

    def _list(self, connection: ServerConnection, request: Command) -> Command:
        count_max = request.integer("maxNums", 100, minimum=1, maximum=limits.SESSIONS_LISTED_MAX)
        prefix = _encodable(request, "prefix")
        after = _encodable(request, "after")
        # The prefix itself is a client id, too.
        is_from_prefix = prefix > after
        found: list[SessionSummary] = []
        next_after = None
        if is_from_prefix:
            own = self._sessions.stored(prefix)
            if own is not None:
                found.append(self._summary(prefix, own))
        for client_id, session in self._sessions.stored_after(max(prefix, after) or None):
            if not client_id.startswith(prefix):
                break
            if len(found) == count_max:
                next_after = found[-1].client_id
                break
            found.append(self._summary(client_id, session))
        page = SessionsPage(sessions=found, count=self._sessions.count, next_after=next_after)
        return reply_json(request, page)

    def _show(self, connection: ServerConnection, request: Command) -> Command:
        client_id = _client_id(request)
        self._sessions.limits.enforce(client_id)
        session = self._sessions.stored(client_id)
        front_end = self._sessions.owners.front_end_of(client_id) or ""
        if session is None:
            if not front_end:
                raise _unknown(client_id)
            detail = SessionDetail(client_id=client_id, is_kept=False, front_end=front_end)
        else:
            detail = self._detail(client_id, session, front_end)
        return reply_json(request, detail)

    def _kick(self, connection: ServerConnection, request: Command) -> Command:
        client_id = _client_id(request)
        if not self._sessions.owners.kick(client_id):
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"client {client_id!r} is not connected")
        return request.reply(ResponseCode.SUCCESS)

    def _purge(self, connection: ServerConnection, request: Command) -> Command | None:
        client_id = _client_id(request)
        answer = Answer(connection, request)
        if not self._sessions.owners.purge(client_id, answer.give_done):
            raise _unknown(client_id)
        return answer.now_or_later()

    def _list_shares(self, connection: ServerConnection, request: Command) -> Command:
        count_max = request.integer("maxNums", 100, minimum=1, maximum=limits.SHARES_LISTED_MAX)
        found: list[ShareSummary] = []
        next_after = None
        for view in self._sessions.shares.views(after=request.text("after", "")):
            if len(found) == count_max:
                next_after = found[-1].share
                break
            found.append(_share_summary(view))
        page = SharesPage(shares=found, next_after=next_after)
        return reply_json(request, page)

    def _list_front_ends(self, connection: ServerConnection, request: Command) -> Command:
        # Clients are counted one by one, and there may be a hundred thousand.
        is_brief = request.boolean("isBrief", False)
        views = self._sessions.front_ends.views(()) if is_brief else self._sessions.front_end_views()
        page = FrontEndsPage(
            front_ends=[
                FrontEndSummary(name=view.name, clients=view.clients, is_draining=view.is_draining)
                for view in views
            ]
        )
        return reply_json(request, page)

    def _drain(self, connection: ServerConnection, request: Command) -> Command:
        name = request.text("frontEnd")
        reference = request.text("serverReference", "")
        if len(reference) > limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX or not reference.isprintable():
            raise RefusedError("invalid server reference in serverReference")
        order = DrainOrder(
            is_draining=request.boolean("isDraining"),
            per_second=request.integer("perSecond", 1, minimum=1, maximum=limits.DRAINED_PER_SECOND_MAX),
            server_reference=reference,
            has_moved=request.boolean("hasMoved", False),
        )
        if not self._sessions.front_ends.drain(name, order):
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"no front end {name[:80]!r} is connected")
        return request.reply(ResponseCode.SUCCESS)

    def _summary(self, client_id: str, session: StoredSession) -> SessionSummary:
        return SessionSummary(
            client_id=client_id,
            front_end=self._sessions.owners.front_end_of(client_id) or "",
            subscriptions=len(session.subscriptions),
            in_flight=len(session.in_flight),
            closed_ms=session.closed_ms,
            expires_ms=session.due_ms,
        )

    def _detail(self, client_id: str, session: StoredSession, front_end: str) -> SessionDetail:
        filters = []
        for topic_filter, subscription in list(session.subscriptions.items())[:_FILTERS_SHOWN_MAX]:
            if is_share(topic_filter):
                view = self._sessions.shares.view(topic_filter)
                cursor, behind = view.cursor, view.behind
            else:
                cursor, behind = self._sessions.behind(client_id, subscription.queue_id)
            filters.append(
                SessionFilter(
                    topic_filter=topic_filter,
                    qos=subscription.options & 3,
                    queue_id=subscription.queue_id,
                    cursor=cursor,
                    behind=behind,
                    is_wide=self._sessions.is_wide(subscription.queue_id),
                    is_exclusive=bool(subscription.options & EXCLUSIVE),
                )
            )
        return SessionDetail(
            client_id=client_id,
            is_kept=True,
            front_end=front_end,
            epoch=session.epoch,
            expiry_s=session.expiry_s,
            closed_ms=session.closed_ms,
            expires_ms=session.due_ms,
            will_topic=None if session.will is None else session.will.topic,
            received=len(session.received),
            in_flight=len(session.in_flight),
            dropped=session.dropped,
            filters=filters,
        )


def _share_summary(view: ShareView) -> ShareSummary:
    return ShareSummary(
        share=view.share,
        strategy=view.strategy.value,
        kept_sessions=view.kept_count,
        member_count=len(view.members),
        in_flight=view.in_flight,
        behind=view.behind,
        cursor=view.cursor,
        members=[
            ShareMember(
                client_id=client_id, front_end=front_end, in_flight=in_flight, credit=credit, is_slow=is_slow
            )
            for client_id, front_end, in_flight, credit, is_slow in view.members[:_MEMBERS_SHOWN_MAX]
        ],
    )


def _client_id(request: Command) -> str:
    client_id = _encodable(request, "clientId")
    if not client_id:
        raise RefusedError("the field clientId is empty")
    return client_id


def _encodable(request: Command, field: str) -> str:
    """A field that may be part of a client id."""
    text = request.text(field, "")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = limits.MQTT_CLIENT_ID_BYTES_MAX + 1
    if size > limits.MQTT_CLIENT_ID_BYTES_MAX:
        raise RefusedError(
            f"invalid client id in {field}: at most {limits.MQTT_CLIENT_ID_BYTES_MAX} bytes of UTF-8"
        )
    return text


def _unknown(client_id: str) -> RequestError:
    return RequestError(ResponseCode.QUERY_NOT_FOUND, f"there is no session of client {client_id!r}")
