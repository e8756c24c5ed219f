"""Count devices beside Locust's users, which may be thousands each, and show them on the web page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from locust.runners import MasterRunner, WorkerRunner

if TYPE_CHECKING:
    from locust.env import Environment

    from loadtest.users.process import Process

_KEY: Final = "iotmq_devices"


class Devices:
    """The devices of this process; on a master of all workers."""

    _known: ClassVar[dict[int, Devices]] = {}

    @classmethod
    def get(cls, environment: Environment) -> Devices:
        """Return those of an environment."""
        return cls._known.setdefault(id(environment), cls())

    def __init__(self) -> None:
        # By swarm: devices, those connected, and the processor's seconds.
        self._swarms: dict[object, tuple[int, int, float]] = {}
        self._workers: dict[str, tuple[int, int, int]] = {}
        # Where there are devices that are users of their own.
        self.process: Process | None = None

    def report(self, swarm: object, devices: int, connected: int, cpu_s: float) -> None:
        """Take the state of a swarm."""
        self._swarms[swarm] = (devices, connected, cpu_s)

    def leave(self, swarm: object) -> None:
        """Forget a swarm."""
        self._swarms.pop(swarm, None)

    def report_worker(self, worker: str, counts: tuple[int, int, int]) -> None:
        """Take the sums of a worker."""
        self._workers[worker] = counts

    @property
    def sums(self) -> tuple[int, int, int]:
        """Return devices, those connected, and swarms."""
        rows = list(self._workers.values())
        rows += [(devices, connected, 1) for devices, connected, _ in self._swarms.values()]
        if self.process is not None:
            rows.append((self.process.devices_count, self.process.connected_count, 0))
        return tuple(map(sum, zip(*rows, strict=True))) if rows else (0, 0, 0)  # type: ignore[return-value]


def install(environment: Environment) -> None:
    """Have workers report their devices, and the web page show them."""
    devices = Devices.get(environment)
    runner = environment.runner
    if isinstance(runner, WorkerRunner):

        def report(client_id: str, data: dict[str, Any]) -> None:
            data[_KEY] = devices.sums

        environment.events.report_to_master.add_listener(report)
    elif isinstance(runner, MasterRunner):

        def take(client_id: str, data: dict[str, Any]) -> None:
            if _KEY in data:
                devices.report_worker(client_id, tuple(data[_KEY]))

        environment.events.worker_report.add_listener(take)
    web_ui = environment.web_ui
    if web_ui is None or web_ui.app is None:
        return

    def add_devices(response: Any) -> Any:
        """Put the devices into the numbers that the page asks for every two seconds."""
        from flask import request

        if request.path == "/stats/requests" and response.is_json:
            values = response.get_json()
            count, connected, swarms = devices.sums
            values["extended_stats"] = [
                *values.get("extended_stats", []),
                {
                    "key": "devices",
                    "data": [{"devices": count, "connected": connected, "swarms": swarms}],
                },
            ]
            response.set_data(json.dumps(values))
        return response

    web_ui.app.after_request(add_devices)
    web_ui.template_args["extended_tabs"] = [{"title": "Devices", "key": "devices"}]
    web_ui.template_args["extended_tables"] = [
        {
            "key": "devices",
            "structure": [
                {"key": "devices", "title": "Devices"},
                {"key": "connected", "title": "Connected"},
                {"key": "swarms", "title": "Swarms"},
            ],
        }
    ]
