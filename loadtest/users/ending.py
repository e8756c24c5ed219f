"""Let a master wait at the end of a run until its workers have settled and reported.

Locust's master asks its workers to stop and takes what they have sent half a second later. What was under
way then, and what turned out to be lost, would not be in the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import gevent
import gevent.event
import locust.stats
from locust.runners import STATE_INIT, STATE_STOPPED, STATE_STOPPING, MasterRunner, WorkerRunner

if TYPE_CHECKING:
    from locust.env import Environment

_SETTLE: Final = "iotmq_settle"
_SETTLED: Final = "iotmq_settled"
# For the slowest worker, beside Locust's own --stop-timeout.
_WAIT_S: Final = 40.0


def install(environment: Environment) -> None:
    """Wait for workers, as a master; answer it, as a worker."""
    runner = environment.runner
    if isinstance(runner, MasterRunner):
        _install_master(environment, runner)
    elif isinstance(runner, WorkerRunner):
        _install_worker(environment, runner)
    if getattr(environment.parsed_options, "csv_prefix", None):
        environment.events.quitting.add_listener(_wait_for_files)


def _wait_for_files(environment: Environment, **_: Any) -> None:
    """Let Locust write its CSV files once more: it does so every second, but not at the end."""
    assert environment.runner is not None
    environment.runner.stop()
    interval_s = locust.stats.CSV_STATS_INTERVAL_SEC
    # Once, and not again while the files are being closed.
    locust.stats.CSV_STATS_INTERVAL_SEC = 3600
    gevent.sleep(interval_s + 0.1)


def _install_master(environment: Environment, runner: MasterRunner) -> None:
    missing: set[str] = set()
    is_complete = gevent.event.Event()

    def settled(msg: Any, **_: Any) -> None:
        missing.discard(msg.node_id)
        if not missing:
            is_complete.set()

    def wait(**_: Any) -> None:
        missing.clear()
        is_complete.clear()
        missing.update(client.id for client in runner.clients.running + runner.clients.spawning)
        for client_id in list(missing):
            runner.send_message(_SETTLE, None, client_id)
        if missing:
            is_complete.wait(_WAIT_S + (environment.stop_timeout or 0))

    runner.register_message(_SETTLED, settled)
    environment.events.test_stopping.add_listener(wait)


def _install_worker(environment: Environment, runner: WorkerRunner) -> None:
    def settle(**_: Any) -> None:
        if runner.state not in (STATE_INIT, STATE_STOPPED, STATE_STOPPING):
            runner.stop()
        data: dict[str, Any] = {}
        environment.events.report_to_master.fire(client_id=runner.client_id, data=data)
        runner.send_message("stats", data)
        runner.send_message(_SETTLED)

    runner.register_message(_SETTLE, settle, concurrent=True)
