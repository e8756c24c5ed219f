"""SUBSCRIBE and UNSUBSCRIBE: what is granted, who is told, and what is retained for a new filter."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from iotmq.limits import (
    MQTT_SHARES_PER_SESSION_MAX,
    MQTT_SUBSCRIPTIONS_PER_PACKET_MAX,
    MQTT_WILDCARD_LEVELS_MAX,
)
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.subscription_options import (
    NO_LOCAL,
    QOS,
    RETAIN_AS_PUBLISHED,
    SEND_RETAINED,
    SEND_RETAINED_WHEN_NEW,
    SubscriptionOptions,
)
from iotmq.mqtt.topics.filters import FilterIndex
from iotmq.mqtt.topics.topics import is_exclusive, is_private, is_shared, without_prefix
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.deliver.egress import Egress
from iotmq.mqtt_front.deliver.retained_egress import RetainedEgress
from iotmq.mqtt_front.deliver.sys_topics import SysTopics
from iotmq.mqtt_front.routing.device_names import names_of
from iotmq.mqtt_front.routing.refused_filters import refusal_text, refusals, refused_filter
from iotmq.mqtt_front.sessions.bridge_clients import mounted_filter
from iotmq.mqtt_front.sessions.durable import DurableSession
from iotmq.mqtt_front.sessions.durable_egress import DurableEgress
from iotmq.mqtt_front.sessions.exclusive import ExclusiveSubscriptions, plain_filters
from iotmq.mqtt_front.sessions.filter_shapes import FilterShapes
from iotmq.mqtt_front.sessions.session_rights import SessionRights
from iotmq.mqtt_front.sessions.shared_subscriptions import SharedSubscriptions
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.gateway import GatewayPort
from iotmq.ports.sessions import (
    EXCLUSIVE,
    Refused,
    SessionPort,
    SessionSubscription,
    SubscribeRequest,
    UnsubscribeRequest,
)
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import surviving

_log: Final = logging.getLogger("iotmq.mqtt")

_GRANTED_QOS_MAX: Final = 2
# In place of the packet id, which is never 0, in a SUBSCRIBE that the device has not sent.
_UNASKED: Final = 0
# SUBSCRIBEs of one filter that are answered in one turn of the loop, once a broker has taken it.
_ATTACHED_PER_TURN: Final = 8
# Filters of a lost connection that go in one turn of the loop: less than a tenth of a millisecond.
_DROPPED_PER_TURN: Final = 8
_WITHDRAWN_TOPICS_CACHED: Final = 1_024


class BrokerSessions(NamedTuple):
    """Hold the parts of a front end that exist where brokers keep sessions."""

    port: SessionPort
    durable: DurableEgress
    retained: RetainedEgress
    shared: SharedSubscriptions


class Subscriptions:
    """The subscriptions of the sessions connected to one front end."""

    def __init__(
        self,
        settings: MqttSettings,
        egress: Egress,
        gateway: GatewayPort,
        *,
        rights: SessionRights,
        sys_topics: SysTopics | None,
        at_brokers: BrokerSessions | None,
    ) -> None:
        """Without `at_brokers` sessions end with their connections, and are known to this process only."""
        self._egress = egress
        self._gateway = gateway
        self._per_session_max = settings.subscriptions_max
        self.at_brokers = at_brokers
        self._port = None if at_brokers is None else at_brokers.port
        self._retained = None if at_brokers is None else at_brokers.retained
        self._shared = None if at_brokers is None else at_brokers.shared
        self._sys_topics = sys_topics
        self.rights = rights
        self.rewrites = rights.rewrites
        self.exclusive = ExclusiveSubscriptions(self._port, is_enabled=settings.exclusive_subscriptions)
        self.shapes = FilterShapes()
        self.auto_refused = 0
        """Subscriptions nobody asked for, and that were refused."""
        self._loop = asyncio.get_running_loop()
        # Filters that brokers are being asked to take.
        self._attaching: dict[str, _Attachment] = {}
        self.count = 0
        """Subscriptions of connected sessions."""

    def subscribe(self, device: Device, event: packets.Subscribe) -> None:
        """Answer a SUBSCRIBE: at once, or when a broker has taken what is new."""
        wanted = event.subscriptions
        if device.bridge is not None:
            wanted = tuple((mounted_filter(device.bridge, name), options) for name, options in wanted)
        named = self.rewrites.subscriptions(wanted, names_of(device))
        event = event._replace(subscriptions=tuple(map(_checked, named)))
        self.rights.subscribe(device, event, partial(self._decide, device))

    def subscribe_automatically(self, device: Device, wanted: Sequence[tuple[str, int]]) -> None:
        """Give an open session subscriptions that it has not asked for, and does not have yet."""
        known = device.subscriptions or {}
        new = []
        retained = {}
        for topic_filter, asked in wanted:
            options = _stored_options(asked, 0)
            if known.get(topic_filter) != options:
                new.append((topic_filter, asked))
            elif _wants_retained(asked, is_known=True) and not is_shared(topic_filter):
                retained[topic_filter] = options
        if retained:
            self._begin(device, _Granted([], {}, retained))
        if new:
            self._decide(device, packets.Subscribe(_UNASKED, tuple(new)))

    def _decide(self, device: Device, event: packets.Subscribe) -> None:
        if not any(is_exclusive(name) for name, _ in event.subscriptions):
            self._subscribe(device, event)
            return
        known = device.subscriptions or {}
        if len({name for name, _ in event.subscriptions} - known.keys()) + len(known) > self._per_session_max:
            # Before somebody is asked for what there is no room for.
            refused = refused_filter(reason_codes.QUOTA_EXCEEDED.v5_code)
            kept = [(refused if is_exclusive(name) else name, asked) for name, asked in event.subscriptions]
            self._subscribe(device, event._replace(subscriptions=tuple(kept)))
            return
        self.exclusive.claim(device, event, partial(self._claimed, device))

    def _claimed(self, device: Device, event: packets.Subscribe) -> None:
        """Go on with a SUBSCRIBE when a broker has said which filters the device may have alone."""
        if device.close_reason is None:
            self._subscribe(device, event)
            device.after_answer()

    def _subscribe(self, device: Device, event: packets.Subscribe) -> None:
        if device.subscriptions is None:
            device.subscriptions = {}
        wanted = {
            name: _stored_options(asked, event.identifier)
            for name, asked in event.subscriptions
            if is_shared(name)
        }
        new_count = _new_count(wanted, device.subscriptions)
        if not wanted:
            self._subscribe_others(device, event, {})
        elif self._shared is None:
            refused = reason_codes.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
            self._subscribe_others(device, event, dict.fromkeys(wanted, refused))
        elif (
            len(device.subscriptions) + new_count > self._per_session_max
            or new_count + self._shared.count_of(device) > MQTT_SHARES_PER_SESSION_MAX
        ):
            refused = reason_codes.QUOTA_EXCEEDED.v5_code
            self._subscribe_others(device, event, dict.fromkeys(wanted, refused))
        else:
            self._shared.subscribe(device, wanted, partial(self._subscribe_others, device, event))

    def _subscribe_others(self, device: Device, event: packets.Subscribe, shared: dict[str, int]) -> None:
        """Go on with the filters that are not shared, and answer for all; `shared` has the others' codes."""
        if device.subscriptions is None or device.close_reason is not None:
            return
        shared = shared | refusals(event.subscriptions)
        granted_shares = {name: code for name, code in shared.items() if code < reason_codes.SUBACK_FAILURE}
        self.count += _new_count(granted_shares, device.subscriptions)
        device.subscriptions.update(granted_shares)
        if isinstance(device.session, DurableSession):
            self._subscribe_durably(device, device.session, event, shared)
            return
        granted = self._granted(device, event, shared)
        new_filters: list[tuple[int, str]] = []
        too_many: set[str] = set()
        awaited: dict[_Attachment, set[str]] = {}
        for topic_filter, options in granted.filters.items():
            filter_id = self._egress.subscribe(topic_filter, device, options)
            if filter_id is not None:
                if not self.shapes.take(topic_filter):
                    self._egress.unsubscribe(topic_filter, device)
                    self.shapes.give_back_for(device, topic_filter)
                    too_many.add(topic_filter)
                    continue
                new_filters.append((filter_id, topic_filter))
            elif (attachment := self._attaching.get(topic_filter)) is not None:
                awaited.setdefault(attachment, set()).add(topic_filter)
            self.count += topic_filter not in device.subscriptions
            device.subscriptions[topic_filter] = options
        if too_many:
            self.exclusive.release(device, _exclusive_of(event, too_many))
            granted.take_back(event, too_many, reason_codes.QUOTA_EXCEEDED.v5_code)
        if new_filters:
            own = _Attachment()
            awaited[own] = {topic_filter for _, topic_filter in new_filters}
            self._attaching.update(dict.fromkeys(awaited[own], own))
        if not awaited:
            self._answer(device, event, granted.codes)
            self._begin(device, granted)
            if shared:
                device.after_answer()
            return
        left = len(awaited)

        def attached(filters: set[str], is_attached: bool) -> None:
            nonlocal left
            left -= 1
            if device.close_reason is not None:
                return
            if not is_attached:
                self._drop(device, tuple(filters & (device.subscriptions or {}).keys()))
                granted.take_back(event, filters)
                self.exclusive.release(device, _exclusive_of(event, filters))
            if not left:
                self._answer(device, event, granted.codes)
                self._begin(device, granted)
                device.after_answer()

        for attachment, filters in awaited.items():
            attachment.waiting.append(partial(attached, filters))
        if new_filters:
            self._gateway.attach(new_filters, partial(self._attached, own, awaited[own]))

    def _attached(self, attachment: _Attachment, filters: set[str], is_attached: bool) -> None:
        """Brokers have taken new filters, or refused them: tell those who wait for it, some in each turn."""
        for _ in range(min(_ATTACHED_PER_TURN, len(attachment.waiting))):
            with surviving("answers to SUBSCRIBE"):
                attachment.waiting.popleft()(is_attached)
        if attachment.waiting:
            # Who subscribes meanwhile waits, too: refused filters are there until the last one has heard it.
            self._loop.call_soon(self._attached, attachment, filters, is_attached)
            return
        for topic_filter in filters:
            # Others may be attaching it anew, because everybody had left.
            if self._attaching.get(topic_filter) is attachment:
                del self._attaching[topic_filter]

    def _granted(self, device: Device, event: packets.Subscribe, shared: dict[str, int]) -> _Granted:
        """Return the granted subscriptions of a SUBSCRIBE; shared ones have their codes already."""
        known = device.subscriptions or {}
        granted = _Granted([], {}, {})
        count = len(known)
        for topic_filter, asked in event.subscriptions:
            if topic_filter in shared:
                granted.codes.append(shared[topic_filter])
                continue
            is_known = topic_filter in known or topic_filter in granted.filters
            if not is_known and (
                count >= self._per_session_max
                or not self.shapes.take_for(device, known, granted.filters, topic_filter)
            ):
                granted.codes.append(reason_codes.QUOTA_EXCEEDED.v5_code)
                continue
            count += not is_known
            former = granted.filters.get(topic_filter, known.get(topic_filter, 0))
            options = _stored_options(asked, event.identifier) | former & EXCLUSIVE
            granted.codes.append(options & QOS)
            granted.filters[topic_filter] = options
            if _wants_retained(asked, is_known=is_known):
                granted.retained[topic_filter] = options
        return granted

    def _answer(self, device: Device, event: packets.Subscribe, codes: Sequence[int]) -> None:
        self.rights.check_again(device, self.withdraw)
        if event.packet_id != _UNASKED:
            device.send_suback(event.packet_id, codes, refusal_text(event.subscriptions))
            for listener in device.group.listeners:
                listener.subscribed(device, event, codes)
            return
        self.auto_refused += sum(code >= reason_codes.SUBACK_FAILURE for code in codes)

    @property
    def retained_sent(self) -> int:
        """Retained messages that were sent to new subscriptions."""
        return 0 if self._retained is None else self._retained.delivered

    def unsubscribe(self, device: Device, event: packets.Unsubscribe) -> None:
        """Answer an UNSUBSCRIBE, as `subscribe` does."""
        filters = event.filters
        if device.bridge is not None:
            filters = tuple(mounted_filter(device.bridge, name) for name in filters)
        named = self.rewrites.unsubscriptions(filters, names_of(device), device.subscriptions or {})
        self._unsubscribe(device, event._replace(filters=plain_filters(named, device.subscriptions or {})))

    def withdraw(self, device: Device, filters: Sequence[str]) -> None:
        """Take subscriptions from a session, which is not told; filters as the session has them."""
        for start in range(0, len(filters), MQTT_SUBSCRIPTIONS_PER_PACKET_MAX):
            some = filters[start : start + MQTT_SUBSCRIPTIONS_PER_PACKET_MAX]
            self._unsubscribe(device, packets.Unsubscribe(_UNASKED, tuple(some)))
        if device.session is None and device.queued_bytes:
            _withdraw_queued(device, filters)

    def _unsubscribe(self, device: Device, event: packets.Unsubscribe) -> None:
        if self._shared is not None:
            self._shared.unsubscribe(device, event.filters)
        if self._retained is not None:
            self._retained.unsubscribe(device, event.filters)
        if isinstance(device.session, DurableSession):
            self._unsubscribe_durably(device, device.session, event)
            return
        codes = _unsuback_codes(device, event.filters)
        known = device.subscriptions or {}
        self.exclusive.release(device, [name for name in event.filters if known.get(name, 0) & EXCLUSIVE])
        self._drop(device, [name for name in event.filters if name in (device.subscriptions or {})])
        if self._sys_topics is not None:
            self._sys_topics.unsubscribe(device, event.filters)
        if event.packet_id != _UNASKED:
            device.send_unsuback(event.packet_id, codes)  # also when nothing was subscribed [MQTT-3.10.4-5]

    def resume(self, device: Device, found: Iterable[SessionSubscription]) -> None:
        """Take the filters of a kept session that is the device's now."""
        device.subscriptions = {entry.topic_filter: entry.options for entry in found}
        self.count += len(device.subscriptions)
        if self._sys_topics is not None:
            self._sys_topics.resume(device, device.subscriptions.items())

    def resume_shared(self, device: Device, found: Iterable[SessionSubscription]) -> None:
        """Join the groups of a kept session again, once its CONNECT is answered."""
        found = list(found)
        if self._shared is not None:
            self._shared.resume(device, found)
        self.exclusive.resume(device, found, self._lost)

    def _lost(self, device: Device, filters: list[str]) -> None:
        """Drop filters of a kept session that another session has to itself now."""
        if isinstance(device.session, DurableSession):
            self._unsubscribe_durably(device, device.session, packets.Unsubscribe(_UNASKED, tuple(filters)))

    def leave_shared(self, device: Device) -> None:
        """Tell brokers what a device has done in its groups, before it leaves its session."""
        if self._shared is not None:
            self._shared.leave(device)

    def drop_all(self, device: Device) -> None:
        """Forget the filters of a lost connection; those of a kept session stay at the broker.

        Without a kept session they go some in each turn of the loop: thousands would make everybody wait.
        """
        if self._retained is not None:
            self._retained.forget(device)
        if self._sys_topics is not None:
            self._sys_topics.forget(device)
        self.shapes.forget(device)
        if not device.subscriptions:
            return
        if device.session is not None:
            self.count -= len(device.subscriptions)
            device.subscriptions.clear()
        else:
            self._drop_in_turns(device, deque(device.subscriptions))

    def _drop_in_turns(self, device: Device, filters: deque[str]) -> None:
        some = [filters.popleft() for _ in range(min(_DROPPED_PER_TURN, len(filters)))]
        # One that its broker did not take in the end has gone already.
        self._drop(
            device, [topic_filter for topic_filter in some if topic_filter in (device.subscriptions or {})]
        )
        if filters:
            self._loop.call_soon(self._drop_in_turns, device, filters)

    def _drop(self, device: Device, filters: Iterable[str]) -> None:
        subscriptions = device.subscriptions
        if subscriptions is None:  # nothing was ever subscribed
            return
        unused = []
        for topic_filter in dict.fromkeys(filters):
            del subscriptions[topic_filter]
            self.count -= 1
            self.shapes.give_back_for(device, topic_filter)
            filter_id = self._egress.unsubscribe(topic_filter, device)
            if filter_id is not None:
                unused.append(filter_id)
                self.shapes.give_back(topic_filter)
        if unused:
            self._gateway.detach(unused)

    def _begin(self, device: Device, granted: _Granted) -> None:
        """Send what there is for new filters."""
        if self._retained is not None:
            # What is shared gets none (MQTT 5, 4.8.2), and is not among these.
            self._retained.send(device, granted.retained.items())
        if self._sys_topics is not None:
            self._sys_topics.resume(device, granted.filters.items())
            self._sys_topics.subscribe(device, granted.retained.items())

    # Sessions that are kept ---------------------------------------------------------------------------

    def _subscribe_durably(
        self, device: Device, session: DurableSession, event: packets.Subscribe, shared: dict[str, int]
    ) -> None:
        """As `subscribe`, but the broker keeps the filters and what comes for them."""
        assert self._port is not None
        assert device.subscriptions is not None
        known = device.subscriptions
        granted = self._granted(device, event, shared)

        def subscribed(found: list[SessionSubscription] | Refused) -> None:
            if isinstance(found, Refused):
                _log.warning("no subscription", extra={"client": device.client_id, "detail": found.remark})
                # What the session had before stays its own.
                self.exclusive.release(device, _exclusive_of(event, granted.filters.keys() - known.keys()))
                is_quota = found.code == ResponseCode.NO_PERMISSION
                code = reason_codes.QUOTA_EXCEEDED.v5_code if is_quota else reason_codes.SUBACK_FAILURE
                for topic_filter in granted.filters.keys() - known.keys():
                    self.shapes.give_back_for(device, topic_filter)
                granted.take_back(event, set(granted.filters), code)
                self._answer(device, event, granted.codes)
            else:
                self._answer(device, event, granted.codes)
                if not session.is_ended:
                    self.count += _new_count(granted.filters, known)
                    # Under the text that the session has already: there are many of these.
                    same_text = {entry.topic_filter: entry.topic_filter for entry in found}
                    known.update(
                        (same_text.get(name, name), options) for name, options in granted.filters.items()
                    )
                    session.add(found)
                    self._begin(device, granted)
            device.after_answer()

        if granted.filters:
            request = SubscribeRequest(
                client_id=session.client_id,
                epoch=session.epoch,
                subscriptions=list(granted.filters.items()),
            )
            self._port.subscribe(request, subscribed)
        else:
            self._answer(device, event, granted.codes)
            if shared:
                device.after_answer()

    def _unsubscribe_durably(
        self, device: Device, session: DurableSession, event: packets.Unsubscribe
    ) -> None:
        assert self._port is not None
        assert device.subscriptions is not None
        codes = _unsuback_codes(device, event.filters)
        for topic_filter in event.filters:
            if device.subscriptions.pop(topic_filter, None) is not None:
                self.count -= 1
                self.shapes.give_back_for(device, topic_filter)
        session.remove(event.filters)
        if self._sys_topics is not None:
            self._sys_topics.unsubscribe(device, event.filters)

        def unsubscribed(refused: Refused | None) -> None:
            if refused is None and event.packet_id == _UNASKED:
                return
            if refused is None:
                device.send_unsuback(event.packet_id, codes)
            else:
                # There is no UNSUBACK that says no before MQTT 5, and what the broker still has may come.
                device.close(reason_codes.SERVER_UNAVAILABLE, refused.remark)
            device.after_answer()

        request = UnsubscribeRequest(
            client_id=session.client_id, epoch=session.epoch, filters=list(event.filters)
        )
        self._port.unsubscribe(request, unsubscribed)


class _Attachment:
    """Hold those who wait until brokers have taken, or refused, some new filters."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[Callable[[bool], None]] = deque()


class _Granted(NamedTuple):
    """A SUBSCRIBE's codes in its order; the filters that were granted and those whose retained messages are
    wanted, with options as in `ports.sessions.SessionSubscription`."""

    codes: list[int]
    filters: dict[str, int]
    retained: dict[str, int]

    def take_back(
        self, event: packets.Subscribe, refused: set[str], code: int = reason_codes.SUBACK_FAILURE
    ) -> None:
        """Refuse filters after all; a set, because each of a thousand is looked for in it."""
        for place, (topic_filter, _) in enumerate(event.subscriptions):
            if topic_filter in refused and self.codes[place] < reason_codes.SUBACK_FAILURE:
                self.codes[place] = code
        for topic_filter in refused:
            self.filters.pop(topic_filter, None)
            self.retained.pop(topic_filter, None)


def _withdraw_queued(device: Device, filters: Iterable[str]) -> None:
    """Drop what waits for a slow device because of filters that it may not have any more, and of no other."""
    lost, kept = _index_of(filters), _index_of(device.subscriptions or ())
    prefix = b"" if device.bridge is None else device.bridge.prefix

    def is_unwanted(topic: bytes) -> bool:
        name = (prefix + topic).decode()
        return bool(lost.match(name)) and not kept.match(name)

    device.withdraw_queued(is_unwanted)


def _index_of(filters: Iterable[str]) -> FilterIndex:
    index = FilterIndex(cached_topics_max=_WITHDRAWN_TOPICS_CACHED)
    for name in filters:
        # What is for a group is not there, and waits elsewhere.
        if not is_shared(name):
            index.add(name)
    return index


def _checked(subscription: tuple[str, int]) -> tuple[str, int]:
    """Refuse a filter of topics that are no device's, and one with wildcards that is too deep.

    Every topic as deep would be compared with it.
    """
    name, asked = subscription
    if name.startswith("$") and is_private(without_prefix(name)):
        return refused_filter(reason_codes.NOT_AUTHORIZED.v5_code, "the topics are the server's own"), asked
    if name.count("/") < MQTT_WILDCARD_LEVELS_MAX or ("+" not in name and "#" not in name):
        return subscription
    levels = name.split("/")
    if is_shared(name):
        levels = levels[2:]
    elif is_exclusive(name):
        levels = levels[1:]
    if len(levels) <= MQTT_WILDCARD_LEVELS_MAX:
        return subscription
    why = f"a filter with wildcards has at most {MQTT_WILDCARD_LEVELS_MAX} levels"
    return refused_filter(reason_codes.QUOTA_EXCEEDED.v5_code, why), asked


def _new_count(filters: Collection[str], known: Collection[str]) -> int:
    """Return how many are not known. (A difference of sets goes through all that are: of thousands.)"""
    return sum(topic_filter not in known for topic_filter in filters)


def _stored_options(asked: int, identifier: int) -> int:
    """Pack the stored options: QoS, no-local, retain-as-published, and above them the identifier."""
    kept = asked & (NO_LOCAL | RETAIN_AS_PUBLISHED | EXCLUSIVE)
    return kept | min(asked & QOS, _GRANTED_QOS_MAX) | identifier << 8


def _exclusive_of(event: packets.Subscribe, filters: Collection[str]) -> list[str]:
    """Return those of `filters` that a SUBSCRIBE asks for as exclusive subscriptions."""
    return [name for name, asked in event.subscriptions if asked & EXCLUSIVE and name in filters]


def _wants_retained(asked: int, *, is_known: bool) -> bool:
    """Apply retain handling [MQTT-3.3.1-9] to [MQTT-3.3.1-11]."""
    handling = SubscriptionOptions.decode(asked).retain_handling
    return handling == SEND_RETAINED or (handling == SEND_RETAINED_WHEN_NEW and not is_known)


def _unsuback_codes(device: Device, filters: Sequence[str]) -> list[int]:
    """Per filter, whether there was such a subscription; one that is named twice goes with the first."""
    known = set(device.subscriptions or ())
    codes: list[int] = []
    for topic_filter in filters:
        codes.append(0 if topic_filter in known else reason_codes.NO_SUBSCRIPTION_EXISTED)
        known.discard(topic_filter)
    return codes
