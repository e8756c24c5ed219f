"""Say what a device may do, and by which rule, without a device (`iotmq access test`, the HTTP API)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from iotmq.errors import ConfigError
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.topics.delayed import split_delayed
from iotmq.mqtt.topics.topics import decode_topic_filter, decode_topic_name
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.users_file import UsersFileError, read_users
from iotmq.mqtt_front.permissions.filter_decisions import Wanted, use_of
from iotmq.mqtt_front.permissions.identity_rules import rules_of_identity
from iotmq.mqtt_front.permissions.policies import Policies
from iotmq.mqtt_front.permissions.rule import PUBLISH, Decision, Use
from iotmq.mqtt_front.permissions.rules_file import RulesFileError, read_rules
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.mqtt_front.routing.device_names import DeviceNames
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.mqtt_front.settings.listeners import ListenerSettings
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.device_access import AccessDecision, AccessQuestion, AccessRule

_NOBODY_ASKED: Final = "nobody is asked who it is (mqtt.authentication), and there are no rules"
_OF_RULE: Final = ("name", "permission", "action", "topics", "who")


class ConfiguredAccess:
    """The identities and permissions that settings name (ports.device_access.DeviceAccess)."""

    def __init__(self, settings: MqttSettings) -> None:
        self._settings = settings

    def decide(self, question: AccessQuestion) -> AccessDecision:
        """Decide about what a device would do."""
        mqtt = self._settings
        settings = mqtt.permissions
        subject = self._subject(question)
        names = DeviceNames(subject.client_id, subject.user)
        rewrites = TopicRewrites(mqtt.rewrites)
        are_proved = mqtt.authentication.client_ids != "any"
        try:
            policy = Policies(settings, are_client_ids_proved=are_proved).policy_of(subject)
        except (OSError, RulesFileError) as error:
            raise ConfigError(f"{settings.permissions_file}: {error}") from error
        is_publish = question.action == "publish"
        try:
            really, use = (_published if is_publish else _subscribed)(question, rewrites, names)
        except (MqttProtocolError, UnicodeEncodeError) as error:
            raise ConfigError(f"topic {question.topic[:200]!r}: {error}") from error
        decision = policy.may_publish(really, use) if is_publish else policy.may_subscribe(really, use)
        identity = subject.identity
        if identity == Identity() and mqtt.needs_user_at(self._listener(question)):
            decision = Decision(False, "mqtt.authentication", "it cannot connect without a user name")
        elif not settings.permissions_file and (identity is None or identity.permissions is None):
            why = f'mqtt.permissions.without_rules = "{settings.without_rules}"'
            decision = decision._replace(detail=_NOBODY_ASKED if identity is None else why)
        return AccessDecision(
            is_allowed=decision.is_allowed,
            rule=decision.rule,
            detail=decision.detail,
            topic=really,
            qos=decision.qos,
        )

    def rules(self) -> list[AccessRule]:
        """Return the rules in their order; none without a file."""
        file = self._settings.permissions.permissions_file
        if not file:
            return []
        try:
            path = Path(file)
            names = [rule.name for rule in read_rules(path).rules]
            entries: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("rules", [])
        except (OSError, RulesFileError) as error:
            raise ConfigError(f"{file}: {error}") from error
        return [
            AccessRule(
                name=name,
                is_allow=entry["permission"] == "allow",
                action=entry["action"],
                topics=list(entry["topics"]),
                who={} if entry["who"] == "all" else entry["who"],
                conditions={key: value for key, value in entry.items() if key not in _OF_RULE},
            )
            # A file that is changed in between has the others' next time.
            for name, entry in zip(names, entries, strict=False)
        ]

    def users(self) -> Mapping[str, list[str]]:
        """Return the users of the file of users with their roles; none without a file."""
        file = self._settings.authentication.users_file
        if not file:
            return {}
        rules = self._settings.permissions.permissions_file
        try:
            roles_of = read_rules(Path(rules)).roles_of_user if rules else {}
            return {name: sorted(roles_of.get(name, ())) for name in read_users(Path(file))}
        except (OSError, RulesFileError, UsersFileError) as error:
            raise ConfigError(str(error)) from error

    def _subject(self, question: AccessQuestion) -> Subject:
        mqtt = self._settings
        listener = self._listener(question)
        user = question.user
        if user is None and listener.client_identity_is_user:
            user = question.certificate
        brought = question.permissions
        if brought is not None:
            try:
                rules_of_identity(list(brought))
            except ValueError as error:
                # A device with such rules may do nothing.
                raise ConfigError(f"permissions: {error}") from error
        identity = None
        if (
            user is not None
            or question.roles
            or question.groups
            or question.attributes
            or brought is not None
        ):
            identity = Identity(
                user=user,
                roles=question.roles,
                groups=question.groups,
                attributes=question.attributes,
                permissions=brought,
            )
        elif mqtt.asks_at(listener.name) or mqtt.needs_user_at(listener):
            identity = Identity()
        return Subject(
            client_id=question.client_id,
            identity=identity,
            address=question.address,
            listener=listener.name,
            certificate_identity=question.certificate,
        )

    def _listener(self, question: AccessQuestion) -> ListenerSettings:
        listeners = {each.name: each for each in self._settings.all_listeners}
        if question.listener is None:
            return self._settings.all_listeners[0]
        if question.listener not in listeners:
            names = ", ".join(listeners)
            raise ConfigError(f"listener {question.listener}: there is none; those are {names}")
        return listeners[question.listener]


def _published(question: AccessQuestion, rewrites: TopicRewrites, names: DeviceNames) -> tuple[str, Use]:
    delay_s, name = split_delayed(decode_topic_name(question.topic.encode()))
    really = rewrites.published(name, names)
    if not delay_s:
        delay_s, really = split_delayed(really)
    return really, Use(
        PUBLISH,
        qos=question.qos,
        is_retained=question.retain,
        is_will=question.will,
        is_delayed=delay_s > 0,
        payload_bytes=question.payload_bytes,
    )


def _subscribed(question: AccessQuestion, rewrites: TopicRewrites, names: DeviceNames) -> tuple[str, Use]:
    name = rewrites.subscribed(decode_topic_filter(question.topic.encode()), names)
    really, use = (None, None) if name is None else use_of(Wanted(name, question.qos))
    if really is None or use is None:
        raise ConfigError(f"topic {question.topic[:200]!r} is no filter that can be subscribed")
    return really, use
