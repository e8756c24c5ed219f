"""The permissions of a front end: rules from a file and from identities, and who else is asked.

Everything that a device may is decided by a `Rights` of its connection, or freely where it has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from iotmq.audit_log import Record, no_audit
from iotmq.clock import Clock
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.permissions.decisions import Policy
from iotmq.mqtt_front.permissions.filter_decisions import FilterDecisions
from iotmq.mqtt_front.permissions.policies import Policies
from iotmq.mqtt_front.permissions.questions import AskedPolicy, Decider, Questions
from iotmq.mqtt_front.permissions.refusals import Refusals
from iotmq.mqtt_front.permissions.rights import Rights, RulesVersion
from iotmq.mqtt_front.permissions.rule_set import RuleSet
from iotmq.mqtt_front.permissions.rules_file import RulesFileError, read_rules
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.mqtt_front.settings.permissions import PermissionSettings
from iotmq.supervised import repeat, supervise
from iotmq.watched_file import WatchedFiles

_log: Final = logging.getLogger("iotmq.mqtt")


class Permissions:
    """Hold what the devices of a front end may do; a role of it: `start()`, `close()`, `metrics()`.

    ConfigError when the file of rules is missing or breaks a rule.
    """

    def __init__(
        self,
        settings: PermissionSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        are_client_ids_proved: bool = False,
        deciders: Sequence[Decider] = (),
        audit: Record = no_audit,
    ) -> None:
        self.settings: Final = settings
        self._path = Path(settings.permissions_file) if settings.permissions_file else None
        self._watched = None if self._path is None else WatchedFiles(self._path)
        self.policies: Final = Policies(settings, are_client_ids_proved=are_client_ids_proved)
        self._version = RulesVersion()
        self.questions: Final = Questions(deciders, loop, timeout_s=settings.answer_timeout_s)
        self.filters: Final = FilterDecisions(loop, self.questions, clock)
        self.refusals: Final = Refusals(clock, audit)
        self._tasks: list[asyncio.Task[None]] = []
        self._changed: Callable[[], None] | None = None
        self.reloads_count = 0
        self.failed_reloads_count = 0

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to look for changes of the file; `changed` is called after each, to check connections."""
        self._changed = changed
        if self._watched is not None:
            self._tasks.append(supervise("reading of permissions", self._reload_repeatedly))
        if self.questions:
            forget = supervise(
                "answers of plug-ins", lambda: repeat(self.settings.answer_cache_s, self._forget)
            )
            self._tasks.append(forget)

    def close(self) -> None:
        """Stop; nobody asks any more. May be called twice."""
        for task in self._tasks:
            task.cancel()
        self.questions.close()

    def rights_of(self, device: Device) -> Rights | None:
        """Return the rights of a connection that opens its session; None: it may do everything."""
        subject = subject_of(device)
        is_restricted = self.questions or self.policies.is_restricted(subject)
        return Rights(self, subject, self._version) if is_restricted else None

    def renewed(self, device: Device) -> Rights | None:
        """Return the rights of a connection that has another identity now."""
        rights: Rights | None = device.rights
        if rights is None:
            return self.rights_of(device)
        # What waits for an answer goes on with it.
        rights.change(subject_of(device))
        return rights

    def policy_of(self, subject: Subject) -> Policy:
        """Return what the present rules are for a connection (rights.RightsSource)."""
        policy = self.policies.policy_of(subject)
        return AskedPolicy(policy) if self.questions else policy

    # The file

    async def _reload_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self.settings.reload_interval_s)
            await self.reload()

    async def reload(self) -> None:
        """Read the file again if it changed; one that breaks a rule changes nothing and is counted."""
        if self._path is None or self._watched is None:
            return
        path = self._path
        try:
            rules = await self._watched.read_changed(lambda: RuleSet(read_rules(path)))
        except (OSError, RulesFileError) as error:
            self.failed_reloads_count += 1
            if not isinstance(error, (RulesFileError, FileNotFoundError)):
                # No open file was left, or the like: not the file changes.
                self._watched.forget()
            _log.error(
                "the changed permissions are not used, the former ones hold",
                extra={"file": str(self._path), "detail": str(error)},
            )
            return
        if rules is None:
            return
        self.policies.rules = rules
        self.reloads_count += 1
        _log.info("permissions read", extra={"file": str(self._path), "rules": len(rules.rules)})
        self._forget()
        if self._changed is not None:
            self._changed()

    def _forget(self) -> None:
        """Have every connection ask anew from its next message on."""
        self._version.number += 1

    def metrics(self) -> Iterable[Metric]:
        if self.policies.rules is not None:
            yield from samples(
                ("iotmq_mqtt_permission_rules", "Rules in force.", len(self.policies.rules.rules)),
                (
                    "iotmq_mqtt_permissions_reloads_total",
                    "Times changed rules were read.",
                    self.reloads_count,
                ),
                (
                    "iotmq_mqtt_permissions_failed_reloads_total",
                    "Times changed rules could not be used; the former ones hold.",
                    self.failed_reloads_count,
                ),
            )
        yield from self.questions.metrics()
        yield from self.refusals.metrics()


def subject_of(device: Device) -> Subject:
    """Return what rules may ask of a connection."""
    assert device.client_id is not None
    peer = device.peer
    return Subject(
        client_id=device.client_id,
        identity=device.identity,
        address=peer.address_on(device.transport),
        listener=peer.listener,
        certificate_identity=peer.certificate_identity,
    )
