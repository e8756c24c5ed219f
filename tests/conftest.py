"""What holds for all tests: oracles to import, examples per profile, and no test of code older than
its source."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

# The slow twins of the compiled modules: `from record_oracle import ...`.
sys.path.insert(0, str(ROOT / "tests" / "oracles"))
# The parts of a simulated gateway.
sys.path.insert(0, str(ROOT / "tests" / "simulation"))
# A replicated broker of many processes.
sys.path.insert(0, str(ROOT / "deploy" / "cluster"))

# No deadline per example: how long one takes says more about the machine's other work than about ours.
settings.register_profile("default", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=20_000, suppress_health_check=list(HealthCheck))
settings.load_profile("default")

# Files and folders in the order they begin: those that wait long for other processes first, so that several
# processes of pytest have something to do until the end.
FIRST = ("interop", "test_demo.py", "pages", "crash", "integration", "fuzz", "property")

# Those with the fixture `spark` begin before all, in one process, which has the only Spark.
WITH_SPARK = frozenset(
    {"test_bridge_spark.py", "test_routes_paho.py", "test_spark_alerts.py", "test_spark_devices.py"}
    | {"test_spark_lake.py", "test_spark_path.py", "test_spark_sink.py", "test_spark_source.py"}
)

# Those of the console share a browser and a gateway, so they run in one process, too.
CONSOLE = "tests/console/"

# Random programs, kills and very many connections: they take three times as long when each line is counted,
# and run what others run. Rules about the tree run nothing of it.
UNTRACED = frozenset(
    {"repo", "property", "fuzz", "crash", "simulation", "test_simulation.py", "test_live_objects.py"}
    | {"test_session_model.py", "test_loop_turns.py", "test_mqtt_corpus_sockets.py"}
)

# A file system in memory: on a disk, a test with a store spends three quarters of its time in syncs, which it
# makes all the same. ON_DISK is what is large, is about a real disk, or asks which pages the cache has.
MEMORY = Path("/dev/shm")
ON_DISK = frozenset(
    {"crash", "test_cold_scan.py", "test_demo.py", "test_bridge_spark.py", "test_sql_filter.py"}
    | {"test_cold_pages.py", "test_cold_steps.py", "test_cold_reads.py", "test_shares.py"}
    | {"test_member_store.py", "test_store_retention.py", "test_wheel.py", "test_spark_cluster.py"}
)
# Files of ON_DISK's folders that have nothing of it: they damage what lies there.
OFF_DISK = frozenset({"test_store_damage.py"})

_CIMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+cimport|cimport\s+([\w.]+))", re.MULTILINE)


@pytest.fixture(scope="module")
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """The loop of a module's tests: asyncio's own, or uvloop's where the module is marked for it."""
    is_uvloop = request.node.get_closest_marker("uvloop") is not None
    return uvloop.EventLoopPolicy() if is_uvloop else asyncio.get_event_loop_policy()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let `no_cover` work in the processes of pytest-xdist.

    pytest-cov begins to trace in each of them before it knows that it is one, and a second time then; what it
    pauses is the second one, and the first would go on.
    """
    plugin = session.config.pluginmanager.getplugin("_cov")
    if hasattr(session.config, "workerinput") and plugin is not None and plugin.cov_controller is not None:
        plugin.cov_controller.cov.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage meanwhile: there is little, and looking takes a seventh of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files in the order of FIRST; what is in one stays together. Trace nothing of UNTRACED."""
    items.sort(key=_turn)
    for item in items:
        if not UNTRACED.isdisjoint(item.path.parts) or item.get_closest_marker("slow"):
            item.add_marker("no_cover")
        if item.get_closest_marker("spark_long") and os.environ.get("IOTMQ_SPARK") != "all":
            item.add_marker(pytest.mark.skip(reason="make spark"))


def _turn(item: pytest.Item) -> int:
    if item.path.name in WITH_SPARK:
        return -1
    return min((FIRST.index(part) for part in item.path.parts if part in FIRST), default=len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep what is in one file in one process, and WITH_SPARK in one as well.

    The last process begins at the other end of the order: its tests need the processor while those of the
    others wait.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            if file.startswith(CONSOLE):
                return CONSOLE
            return "spark" if file.rpartition("/")[2] in WITH_SPARK else file

        def _assign_work_unit(self, node: Any) -> None:
            if len(self.nodes) > 1 and node is self.nodes[-1]:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def spark_of_process() -> Iterator[None]:
    """At the end, stop the Spark that tests of this process have started."""
    yield
    from shared_spark import stop_spark

    stop_spark()


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, spark_of_process: None) -> Iterator[SparkSession]:
    """The Spark of this process, with nothing that another file's tests have left."""
    pytest.importorskip("pyspark")
    from shared_spark import leave_nothing, running_spark

    assert request.path.name in WITH_SPARK, f"{request.path.name} is not in WITH_SPARK (tests/conftest.py)"
    running = running_spark()
    yield running
    leave_nothing(running)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Where IOTMQ_INTEROP=required, a foreign client that is not installed is a failure."""
    report = yield
    if os.environ.get("IOTMQ_INTEROP") == "required" and item.get_closest_marker("interop"):
        refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport) -> None:
    """Make the report of a skipped test that of a failed one, with the reason it was skipped for."""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"interop tests must run here (IOTMQ_INTEROP=required): {reason}"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail before the first test when a compiled module is older than what it was compiled from.

    A run of all tests looks at every module, a run of some only at those the tests have imported.
    """
    if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        built = [file for package in ("iotmq", "loadtest") for file in (ROOT / package).rglob("*.so")]
    else:
        built = [
            Path(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)
        ]
    stale = sorted(str(file.relative_to(ROOT)) for file in built if is_stale(file, ROOT))
    if stale:
        raise pytest.UsageError(
            f"compiled modules older than their sources: {', '.join(stale)}; make compile"
        )
    # Collections look at what tests make, and no more at what pytest has of ten thousand of them.
    gc.collect()
    gc.freeze()


def is_stale(built: Path, root: Path) -> bool:
    """Whether an extension below `root` is older than its source or a .pxd that source includes."""
    if built.suffix != ".so" or not built.is_relative_to(root) or ".venv" in built.parts:
        return False
    module = built.parent / built.name.split(".", 1)[0]
    built_at = built.stat().st_mtime
    return any(source.stat().st_mtime > built_at for source in _sources(module, root))


def _sources(module: Path, root: Path) -> set[Path]:
    """The .pyx or .py and the .pxd of a module (a path without suffix), and every .pxd they cimport."""
    found: set[Path] = set()
    to_read = [
        source for suffix in (".pyx", ".pxd", ".py") if (source := module.with_suffix(suffix)).exists()
    ]
    while to_read:
        source = to_read.pop()
        if source in found or not source.exists():
            continue
        found.add(source)
        cimported = (match[1] or match[2] for match in _CIMPORT.finditer(source.read_text()))
        to_read += [root.joinpath(*name.split(".")).with_suffix(".pxd") for name in cimported]
    return found


@pytest.fixture(scope="session", autouse=True)
def memory_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A directory in memory for this process, where there is room for one; `tempfile` makes its own there."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < 1 << 30:
        yield None
        return
    for left in MEMORY.glob("iotmq-tests-*"):
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    path = MEMORY / f"iotmq-tests-{os.getpid()}"
    path.mkdir()
    # What pytest makes by itself is on the disk.
    tmp_path_factory.getbasetemp()
    before, tempfile.tempdir = tempfile.tempdir, str(path)
    yield path
    tempfile.tempdir = before
    shutil.rmtree(path)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path, memory_path: Path | None) -> Iterator[Path]:
    """In memory but for ON_DISK; what a test leaves that fails is copied to where it would have been."""
    if memory_path is None or _is_on_disk(request.path):
        yield tmp_path
        return
    path = memory_path / tmp_path.name
    path.mkdir()
    leave = _leaving(request.session, path, tmp_path)
    yield path
    leave()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Have the directories in memory that a module's fixtures make, as those of its tests."""
    makes_directories = fixturedef.scope == "module" and "tmp_path_factory" in fixturedef.argnames
    if not makes_directories or _is_on_disk(request.path):
        return (yield)
    memory_path = request.getfixturevalue("memory_path")
    if memory_path is None:
        return (yield)
    factory = request.getfixturevalue("tmp_path_factory")
    on_disk = factory.getbasetemp()
    path = memory_path / f"{request.path.stem}-{fixturedef.argname}"
    path.mkdir(exist_ok=True)
    # Behind all that the fixture does at its end.
    fixturedef.addfinalizer(_leaving(request.session, path, on_disk / path.name))
    factory._basetemp = path
    try:
        return (yield)
    finally:
        factory._basetemp = on_disk


def _is_on_disk(file: Path) -> bool:
    return not ON_DISK.isdisjoint(file.parts) and file.name not in OFF_DISK


def _leaving(session: pytest.Session, path: Path, kept: Path) -> Callable[[], None]:
    """Make the end of a directory in memory, of which a copy is kept when a test has failed meanwhile."""
    failed_count = session.testsfailed

    def leave() -> None:
        if session.testsfailed > failed_count:
            shutil.copytree(path, kept, dirs_exist_ok=True, symlinks=True, ignore=_not_files)
        # As pytest does it: something of the test may still be at its end.
        shutil.rmtree(path, ignore_errors=True)

    return leave


def _not_files(directory: str, names: list[str]) -> list[str]:
    """Sockets and pipes, which cannot be copied."""
    kinds = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
    return [name for name, kind in kinds.items() if stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind)]


@pytest.fixture(autouse=True)
def stores_agree(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every store of this process that a test closes is checked just before: log, queues and index agree.

    Tests of damage that stays say so with the mark `damaged_store`.
    """
    if "iotmq.store.store" not in sys.modules or request.node.get_closest_marker("damaged_store"):
        yield
        return
    from iotmq.store.store import Store

    problems: list[str] = []
    close = Store.close

    def check_and_close(store: Store) -> None:
        if not store._is_closed:
            problems.extend(store.check())
        close(store)

    monkeypatch.setattr(Store, "close", check_and_close)
    yield
    assert problems == []
