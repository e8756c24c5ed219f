"""`SwarmUser`: one Locust user is thousands of devices, in the compiled engine and a process of its own.

Its reports are added to Locust's statistics as they come, so that the page and the files show each
connection and each message, though no event was fired for any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from locust import User, task
from locust.env import Environment
from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_STOPPING

from iotmq.mqtt_client.address import parse_url
from loadtest.swarm import Plan
from loadtest.users.devices_tab import Devices
from loadtest.users.faults import (
    LOST,
    NO_ANSWER,
    NO_CONNECTION,
    REPEATED,
    UNSENT,
    Fault,
    fault_of_code,
    fault_of_number,
)
from loadtest.users.mqtt_client import REQUEST_TYPE, event_name
from loadtest.users.numbering import Numbers
from loadtest.users.statistics import Batch, install_buckets, merge
from loadtest.users.swarm_process import SwarmProcess

_FAULT_ROWS: Final = {"failed": "connect", "lost": "disconnect"}


class SwarmUser(User):
    """Thousands of devices; `plan` says how many there are and what they send.

    In topic, filter, client id and will topic `{swarm}` is the number of the swarm, `{n}` that of the device.
    """

    abstract = True

    plan: ClassVar[Plan]
    """Subclasses have one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have the page show the plan's server, where no other is given."""
        super().__init_subclass__(**kwargs)
        if cls.host is None and hasattr(cls, "plan"):
            cls.host = f"{cls.plan.host}:{cls.plan.port}"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        install_buckets()
        self._numbers = Numbers.get(environment)
        self._devices = Devices.get(environment)
        self._before: dict[str, int] = {}
        self._overdue_count = 0
        self._faults_before: dict[str, dict[int, int]] = {}

    def event_name(self, action: str, qos: int, topic: str) -> str:
        """Name the row of `publish` and `receive`; the topic is the plan's template."""
        return event_name(action, qos, topic)

    @classmethod
    def plan_of_swarm(cls, number: int, host: str | None) -> Plan:
        """Return the plan of the swarm with this number, for the server that `--host` names."""
        plan = cls.plan
        devices = max(plan.publishers, plan.subscribers, plan.idle)
        changes: dict[str, Any] = {
            name: value.replace("{swarm}", str(number))
            for name in ("topic", "filter", "client_id", "will_topic")
            if (value := getattr(plan, name)) is not None
        }
        if plan.client_id == Plan.client_id:  # type: ignore[misc]
            changes["client_id"] = f"{cls.__name__}-{{kind}}-{{n}}"
        if host:
            address, user_name, password, _ = parse_url(host if "://" in host else f"mqtt://{host}")
            changes |= {"host": address.host, "port": address.port}
            if address.scheme in ("ws", "wss"):
                changes["websocket_path"] = address.path
            if address.is_secure:
                changes["tls"] = True
            if user_name is not None:
                changes["username"] = user_name
            if password is not None:
                changes["password"] = password.decode()
        return replace(plan, number_base=plan.number_base + number * devices, measures_acks=True, **changes)

    @task
    def run_swarm(self) -> None:
        kind = type(self).__name__
        number = self._numbers.take(kind)
        plan = self.plan_of_swarm(number, self.host)
        process = SwarmProcess(plan)
        try:
            for report in process.reports():
                self._take(plan, report)
                if self._state == LOCUST_STATE_STOPPING:
                    break
            else:
                # Its messages are all sent, or its server has sent all devices away.
                raise StopUser
        except Fault as fault:
            self._give_up(fault)
            raise StopUser from None
        finally:
            try:
                for report in process.stop():
                    self._take(plan, report)
            except Fault as fault:
                self._give_up(fault)
            self._devices.leave(self)
            self._numbers.give_back(kind, number)

    def _give_up(self, fault: Fault) -> None:
        """The swarm's own process failed. Nobody knows what it had to say, so the run fails."""
        self._fail("connect", fault, 1)
        self.environment.events.user_error.fire(user_instance=self, exception=fault, tb=None)

    def _take(self, plan: Plan, report: dict[str, Any]) -> None:
        """Add what is new in a report to the statistics."""
        if report["state"] == "refused":
            raise Fault(report["error"])
        counters: dict[str, int] = report["counters"]
        before, self._before = self._before, counters
        new = {name: count - before.get(name, 0) for name, count in counters.items()}
        histograms = report["histograms"]
        self._take_faults(report["faults"], new)
        self._fail("connect", Fault(NO_ANSWER), report["overdue"] - self._overdue_count)
        self._overdue_count = report["overdue"]
        self._add_row("connect", histograms["connection"])
        if new["reconnected"]:
            self._add_row("reconnect", histograms["reconnection"])
        is_over = report["state"] == "over"
        self._take_published(plan, new, histograms["acknowledgement"], is_over=is_over)
        self._take_delivered(plan, new, histograms, is_over=is_over)
        self._devices.report(self, report["connections"], counters["ready"], report["cpu_s"])

    def _take_published(
        self, plan: Plan, new: Mapping[str, int], histogram: Mapping[str, Any], *, is_over: bool
    ) -> None:
        if not plan.publishers:
            return
        # Of all swarms of this class one row: the template's name.
        name = self.event_name("publish", plan.qos, self.plan.topic)
        done = new["acknowledged"] if plan.qos else new["published"]
        self._add_row(name, histogram, done, payload_bytes=plan.payload_bytes)
        self._fail(name, Fault("its connection was lost before it was acknowledged"), new["abandoned"])
        self._fail(name, Fault(NO_CONNECTION), new["paced_missed"])
        if is_over:
            self._fail(name, Fault(NO_ANSWER), self._before["outstanding"])
            self._fail(name, Fault(UNSENT), self._before["unsent"])

    def _take_delivered(
        self, plan: Plan, new: Mapping[str, int], histograms: Mapping[str, Any], *, is_over: bool
    ) -> None:
        histogram, subscription = histograms["delivery"], histograms["subscription"]
        if not plan.subscribers:
            return
        qos = plan.qos if plan.filter_qos is None else plan.filter_qos
        if subscription["counts"]:
            self._add_row(self.event_name("subscribe", qos, self.plan.filter), subscription)
        name = self.event_name("receive", qos, self.plan.filter)
        batch = self._row(name, histogram, new["delivered"])
        batch.content_bytes = new["delivered_payload_bytes"]
        for counter, kind in (("sequence_repeats", REPEATED), ("misdelivered", "for another device")):
            if new[counter]:
                batch.mark_failed(Fault(kind), new[counter])
        merge(self.environment.stats, batch)
        self._fail(name, Fault(LOST), new["sequence_gaps"])
        if is_over and plan.deliveries_per_message:
            # The ends of streams, and what a group shares, leave no gaps.
            now = self._before
            expected = plan.deliveries_per_message * (now["published"] - now["abandoned"])
            came = now["delivered"] - now["sequence_repeats"] + now["sequence_gaps"]
            self._fail(name, Fault(LOST), expected - came)

    def _take_faults(self, faults: Mapping[str, Mapping[str, int]], new: Mapping[str, int]) -> None:
        for kind, counts in faults.items():
            before = self._faults_before.setdefault(kind, {})
            for key, count in counts.items():
                number = int(key)
                fresh = count - before.get(number, 0)
                before[number] = count
                if kind == "refused":
                    self._fail("connect", fault_of_code(_reason(number)), fresh)
                else:
                    self._fail(_FAULT_ROWS[kind], fault_of_number(number), fresh)
        for counter in ("acks_unknown", "acks_out_of_order"):
            text = counter.replace("acks_", "acknowledgement ").replace("_", " ")
            self._fail("publish", Fault(text), new[counter])

    def _row(self, name: str, histogram: Mapping[str, Any], count: int) -> Batch:
        batch = Batch(REQUEST_TYPE, name)
        counts = {int(edge): number for edge, number in histogram["counts"].items()}
        batch.add_times(counts, total_ns=histogram["total_ns"], max_ns=histogram["max_ns"])
        batch.add_untimed(max(0, count - batch.timed_count))
        return batch

    def _add_row(
        self, name: str, histogram: Mapping[str, Any], count: int = 0, *, payload_bytes: int = 0
    ) -> None:
        batch = self._row(name, histogram, count)
        batch.content_bytes = payload_bytes * batch.request_count
        merge(self.environment.stats, batch)

    def _fail(self, name: str, fault: Fault, count: int) -> None:
        if count > 0:
            batch = Batch(REQUEST_TYPE, name)
            batch.add_failures(fault, count)
            merge(self.environment.stats, batch)


def _reason(code: int) -> int:
    """Return the reason code of MQTT 5 for one of CONNACK before it."""
    from iotmq.mqtt.reason_codes import CONNECT_RETURN_CODES

    return CONNECT_RETURN_CODES.get(code, code)
