"""Apply rules to sessions: to wills, filters of a SUBSCRIBE, and what a session subscribed before.

A right is needed for what is really subscribed or published: the filter or topic after `mqtt.rewrites`,
without `$share/GROUP/`, `$exclusive/` and `$delayed/SECONDS/`. Filters of `mqtt.auto_subscriptions` are the
operator's and need none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from iotmq.clock import Clock
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.subscription_options import QOS
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.permissions.filter_decisions import Wanted, use_of
from iotmq.mqtt_front.permissions.permissions import Permissions, subject_of
from iotmq.mqtt_front.permissions.questions import Answer, AskedPolicy
from iotmq.mqtt_front.permissions.refusals import REVOKED
from iotmq.mqtt_front.permissions.rights import Rights
from iotmq.mqtt_front.permissions.rule import PUBLISH, Decision, Use
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.device_names import names_of
from iotmq.mqtt_front.routing.refused_filters import refused_filter
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.mqtt_front.sessions.auto_subscriptions import AutoSubscriptions
from iotmq.mqtt_front.sessions.left_wills import LeftWill, LeftWills
from iotmq.ports.sessions import EXCLUSIVE
from iotmq.supervised import surviving

# How long connections are gone through in one turn of the loop when rules have changed.
_TURN_S: Final = 0.002

Withdraw = Callable[[Device, list[str]], None]


class SessionRights:
    """Asks the permissions of a front end about its sessions."""

    def __init__(
        self,
        permissions: Permissions,
        ingress: Ingress,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        rewrites: TopicRewrites,
        auto_subscriptions: AutoSubscriptions,
    ) -> None:
        self.permissions: Final = permissions
        self.rewrites: Final = rewrites
        self.auto_subscriptions: Final = auto_subscriptions
        self._ingress = ingress
        self._loop = loop
        self._clock = clock
        # Those whose wills others have no opinion about.
        self._wills_by_rules: set[Device] = set()
        # Those whose subscriptions are being compared, and whether that has to be done again then.
        self._under_way: dict[Device, bool] = {}
        # Those whose subscriptions are compared with changed rules.
        self._checking: Iterator[Device | LeftWill] | None = None

    # Wills

    def will(self, device: Device, will: packets.Will | None, done: Callable[[bool], None]) -> None:
        """Call `done`, at once or later, with whether the device may have this will."""
        asked = None if will is None or device.rights is None else self._will_use(device, will)
        if asked is None:
            done(True)
            return
        topic, use = asked
        policy = device.rights.policy
        if isinstance(policy, AskedPolicy) and not policy.is_known(PUBLISH, topic):
            told = partial(self._answered_will, device, policy, asked, done)
            self.permissions.questions.ask(device.rights.subject, "publish", topic, told)
            return
        self._decide_will(device, policy.may_publish(topic, use), topic, done)

    def allows_still(self, device: Device, will: packets.Will) -> bool:
        """Return whether a will that was allowed at the CONNECT is allowed by the rules of today."""
        asked = None if device.rights is None else self._will_use(device, will)
        return self._allows_still(device.rights, asked, is_for_rules=device in self._wills_by_rules)

    def _allows_still(
        self, rights: Rights | None, asked: tuple[str, Use] | None, *, is_for_rules: bool
    ) -> bool:
        if rights is None or asked is None:
            return True
        policy = rights.policy
        if isinstance(policy, AskedPolicy) and not policy.is_known(PUBLISH, asked[0]):
            if not is_for_rules:
                # They said yes at the CONNECT, and nobody waits for another answer at its end.
                return True
            policy = policy.rules
        decision: Decision = policy.may_publish(*asked)
        if not decision.is_allowed:
            self._note_will(rights, asked[0], decision)
        return decision.is_allowed

    def left_will(self, book: LeftWills, device: Device, will: packets.Will) -> LeftWill:
        """Return what is asked later about a will that a broker is to keep for a while."""
        rights: Rights | None = device.rights
        return LeftWill(
            book,
            subject_of(device) if rights is None else rights.subject,
            rights,
            None if rights is None else self._will_use(device, will),
            is_for_rules=device in self._wills_by_rules,
        )

    def forget(self, device: Device) -> None:
        """The connection is over, and its will published or not."""
        self._wills_by_rules.discard(device)
        self._under_way.pop(device, None)

    def _will_use(self, device: Device, will: packets.Will) -> tuple[str, Use] | None:
        try:
            topic, is_delayed = self._ingress.will_topic(device, will)
        except MqttProtocolError:
            # It is not stored, which the log says then.
            return None
        return topic, Use(
            PUBLISH,
            qos=will.qos,
            is_retained=will.retain,
            is_will=True,
            is_delayed=is_delayed,
            payload_bytes=len(will.payload),
        )

    def _answered_will(
        self,
        device: Device,
        policy: AskedPolicy,
        asked: tuple[str, Use],
        done: Callable[[bool], None],
        answer: Answer,
    ) -> None:
        policy.tell(PUBLISH, asked[0], answer)
        if device.close_reason is None:
            if answer.is_allowed is None:
                self._wills_by_rules.add(device)
            self._decide_will(device, policy.may_publish(*asked), asked[0], done)
            device.after_answer()

    def _decide_will(
        self, device: Device, decision: Decision, topic: str, done: Callable[[bool], None]
    ) -> None:
        if decision.is_allowed:
            device.note("permission", topic, result="allowed", what="will", rule=decision.rule)
        else:
            self._note_will(device.rights, topic, decision)
        done(decision.is_allowed)

    def _note_will(self, rights: Rights, topic: str, decision: Decision) -> None:
        self.permissions.refusals.note(
            rights.subject, "will", topic, rule=decision.rule, detail=decision.detail
        )

    # SUBSCRIBE

    def subscribe(
        self, device: Device, event: packets.Subscribe, done: Callable[[packets.Subscribe], None]
    ) -> None:
        """Call `done`, at once or later, with the filters that a device may not subscribe refused."""
        if device.rights is None:
            done(event)
            return
        device.rights.note_decided()
        wanted = [Wanted(name, options) for name, options in event.subscriptions]
        is_later = False

        def decided(found: list[Decision | None]) -> None:
            if device.close_reason is not None:
                return
            granted = tuple(map(partial(self._granted, device), wanted, found))
            done(event._replace(subscriptions=granted))
            if is_later:
                device.after_answer()

        self.permissions.filters.decide(device.rights, wanted, decided)
        is_later = True

    def _granted(self, device: Device, wanted: Wanted, decision: Decision | None) -> tuple[str, int]:
        name, options, _ = wanted
        if decision is None:
            return name, options
        if decision.is_allowed:
            device.note("permission", name, result="allowed", what="subscribe", rule=decision.rule)
            return name, options & ~QOS | min(options & QOS, decision.qos)
        self.permissions.refusals.note(
            device.rights.subject, "subscribe", name, rule=decision.rule, detail=decision.detail
        )
        return refused_filter(NOT_AUTHORIZED.v5_code), options

    # What a session has already

    def lost_on_return(
        self, device: Device, held: Iterable[tuple[str, int]], done: Callable[[list[str]], None]
    ) -> None:
        """As `lost`, of a kept session that is about to open: `check_again` is to follow."""
        if device.rights is not None:
            device.rights.note_decided()
        self.lost(device, held, done)

    def lost(
        self, device: Device, held: Iterable[tuple[str, int]], done: Callable[[list[str]], None]
    ) -> None:
        """Call `done`, at once or later, with the filters that a session has and may not have any more."""
        wanted = [Wanted(name, options, bool(options & EXCLUSIVE)) for name, options in dict(held).items()]
        prefix = self._bound_to(device)
        if wanted and (prefix or device.rights is not None):
            automatic = {name for name, _ in self.auto_subscriptions.of(names_of(device))}
            wanted = [entry for entry in wanted if entry.topic_filter not in automatic]
        outside = {entry.topic_filter for entry in wanted if not (use_of(entry)[0] or "").startswith(prefix)}
        wanted = [entry for entry in wanted if entry.topic_filter not in outside]
        if device.rights is None or not wanted:
            done(list(outside))
            return

        def decided(found: Sequence[Decision | None]) -> None:
            lost = list(outside)
            for entry, decision in zip(wanted, found, strict=True):
                if decision is None or (decision.is_allowed and entry.options & QOS <= decision.qos):
                    continue
                lost.append(entry.topic_filter)
                self.permissions.refusals.note(
                    device.rights.subject,
                    REVOKED,
                    entry.topic_filter,
                    rule=decision.rule,
                    detail=decision.detail,
                )
            done(lost)

        self.permissions.filters.decide(device.rights, wanted, decided)

    def _bound_to(self, device: Device) -> str:
        """Return what the filters of a bridge's session begin with; those that were rewritten do not."""
        bridge = device.bridge
        return "" if bridge is None or self.rewrites.has_filters else bridge.prefix.decode()

    def check(self, device: Device, withdraw: Withdraw) -> None:
        """Take from a connected device the subscriptions that it may not have any more.

        A device that has it done over and over, by showing tokens, has it done one at a time.
        """
        if device.rights is None or device.close_reason is not None or not device.subscriptions:
            return
        if device in self._under_way:
            self._under_way[device] = True
            return

        def decided(filters: list[str]) -> None:
            is_wanted_again = self._under_way.pop(device, False)
            if device.close_reason is not None:
                return
            if filters:
                withdraw(device, filters)
                if self.permissions.settings.on_revocation == "disconnect":
                    device.close(NOT_AUTHORIZED, "a subscription is not allowed any more")
                    device.finish()
                    return
            if is_wanted_again:
                self._loop.call_soon(self.check, device, withdraw)

        self._under_way[device] = False
        self.lost(device, device.subscriptions.items(), decided)

    def renewed(self, device: Device, withdraw: Withdraw) -> None:
        """A connected device has another identity of the same user, which may bring other rules."""
        device.rights = self.permissions.renewed(device)
        self.check(device, withdraw)

    def check_again(self, device: Device, withdraw: Withdraw) -> None:
        """Check what a device has if rules have changed since it was decided that it may have it."""
        if device.rights is not None and device.rights.is_outdated:
            self._loop.call_soon(self.check, device, withdraw)

    def rules_changed(self, devices: Iterable[Device | LeftWill], withdraw: Withdraw) -> None:
        """Compare what devices have subscribed, and wills that wait, with the rules: some in each turn."""
        is_running = self._checking is not None
        self._checking = iter(deque(devices))
        if not is_running:
            self._loop.call_soon(self._check_some, withdraw)

    def _check_will(self, will: LeftWill) -> None:
        if not self._allows_still(will.rights, will.asked, is_for_rules=will.is_for_rules):
            will.close(NOT_AUTHORIZED)

    def _check_some(self, withdraw: Withdraw) -> None:
        end_s = self._clock.monotonic_s() + _TURN_S
        assert self._checking is not None
        for device in self._checking:
            with surviving("comparing subscriptions with rules"):
                if isinstance(device, LeftWill):
                    self._check_will(device)
                else:
                    self.check(device, withdraw)
            if self._clock.monotonic_s() >= end_s:
                self._loop.call_soon(self._check_some, withdraw)
                return
        self._checking = None
