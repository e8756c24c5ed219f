"""Choose what decides for a connection: rules of its identity and of the file, or what holds without."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from iotmq.errors import ConfigError
from iotmq.mqtt_front.permissions.clauses import Clause
from iotmq.mqtt_front.permissions.decisions import Everything, OwnTopics, Policy, RulesPolicy
from iotmq.mqtt_front.permissions.identity_rules import rules_of_identity
from iotmq.mqtt_front.permissions.rule_set import RuleSet, clauses_of
from iotmq.mqtt_front.permissions.rules_file import RulesFileError, RulesOfFile, read_rules
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.mqtt_front.settings.permissions import PermissionSettings

_log: Final = logging.getLogger("iotmq.mqtt")

_NOTHING: Final = RulesPolicy(Subject(""), (), ())


class Policies:
    """The rules in force. ConfigError when there is to be a file of rules that is missing or wrong."""

    def __init__(self, settings: PermissionSettings, *, are_client_ids_proved: bool = False) -> None:
        """`are_client_ids_proved`: a device has client ids of its user alone (authentication.client_ids)."""
        self._without_rules = settings.without_rules
        self._are_client_ids_proved = are_client_ids_proved
        path = settings.permissions_file
        self.rules = RuleSet(_rules_at_start(Path(path))) if path else None
        """Those of the file, which may be others later."""

    def is_restricted(self, subject: Subject) -> bool:
        """Return whether a connection may not do everything; that does not change while it lasts."""
        if self.rules is not None:
            return True
        identity = subject.identity
        if identity is None:
            return False
        return identity.permissions is not None or self._without_rules != "everything"

    def policy_of(self, subject: Subject) -> Policy:
        """Return what decides for a restricted connection: its identity's rules, then those of the file."""
        brought = None if subject.identity is None else subject.identity.permissions
        publish: tuple[Clause, ...] = ()
        subscribe: tuple[Clause, ...] = ()
        if brought is not None:
            try:
                publish, subscribe = clauses_of(rules_of_identity(brought))
            except ValueError as error:
                _log.warning(
                    "the rules of an identity cannot be used, so it may do nothing",
                    extra={"client": subject.client_id, "user": subject.user, "detail": str(error)},
                )
                return _NOTHING
        if self.rules is not None:
            found = self.rules.clauses_for(subject)
            publish += found.publish
            subscribe += found.subscribe
        elif brought is None:
            if subject.identity is None or self._without_rules == "everything":
                return Everything()
            return OwnTopics(self._own_names(subject)) if self._without_rules == "own" else _NOTHING
        return RulesPolicy(subject, publish, subscribe)

    def _own_names(self, subject: Subject) -> tuple[str, ...]:
        """Return the names that make a topic a device's own, where there are no rules.

        A client id that a device has chosen is none: it may be "telemetry", a level of everybody's topics.
        """
        if subject.user is None:
            return ()
        return (subject.user, subject.client_id) if self._are_client_ids_proved else (subject.user,)


def _rules_at_start(path: Path) -> RulesOfFile:
    try:
        return read_rules(path)
    except FileNotFoundError:
        raise ConfigError(f"mqtt.permissions.permissions_file is {path}, which is not there") from None
    except (OSError, RulesFileError) as error:
        raise ConfigError(f"the permissions in {path} cannot be used: {error}") from error
