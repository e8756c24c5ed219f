"""The words of `iotmq spark`: run a job here, or submit it to a cluster."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pkgutil
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, cast

import msgspec
from msgspec import Meta

from iotmq.errors import ConfigError
from iotmq.spelling import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iotmq.bridge.jobs.stream_run import Signals
    from iotmq.bridge.spark_session import Profile
    from iotmq.bridge.submitting.submission import Submission

_OK: Final = 0
_NO_SPARK: Final = "jobs need the extra spark: pip install 'iotmq[spark]'"


class Job(Protocol):
    """Have a name, settings and a function: a module of iotmq.bridge.jobs."""

    NAME: str
    Settings: type[msgspec.Struct]

    def run(self, spark: SparkSession, settings: Any, *, signals: Signals) -> int | None:
        """Work until the job is done or told to end; returns what the process answers to the shell."""


class SparkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session that a job runs in; under a submission only what the submission leaves open."""

    app_name: str = ""
    """Name of the application in Spark's pages and logs; empty for the name of the job."""
    cores: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Tasks at once; as many as processors when it is left out. A cluster decides by itself."""
    profile: Annotated[str, Meta(pattern="^(standard|low_latency)$")] = "standard"
    """`standard`, or `low_latency` for micro-batches that are 100 ms shorter; its checkpoints have to be on a
    local disk."""
    conf: dict[str, str] = msgspec.field(default_factory=dict)
    """Settings of Spark by their names, such as "spark.sql.shuffle.partitions" = "8"."""
    progress: bool = True
    """Print a line for each micro-batch that read rows: rows, rows per second, how far behind."""
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port of 127.0.0.1 that shows the same at /metrics, for Prometheus; 0 for none."""


def add_spark_actions(spark: argparse.ArgumentParser) -> None:
    """Add the actions of `spark`."""
    actions = spark.add_subparsers(title="actions", metavar="ACTION", required=True)
    run = actions.add_parser(
        "run",
        help="run a job in this process",
        description="Run a job here, with a Spark of its own. `jobs` lists them.",
    )
    run.add_argument("job", metavar="NAME", help="name of the job")
    _add_config(run, is_required=True)
    run.set_defaults(command=_run)
    jobs = actions.add_parser("jobs", help="list the jobs and what they do")
    jobs.set_defaults(command=_list)
    submit = actions.add_parser(
        "submit",
        help="run a job, or a program, on a cluster",
        description="Run a job, or a file of PySpark, by spark-submit. Executors get iotmq with its compiled "
        "modules, for machines like this one and the same version of Python.",
    )
    submit.add_argument("job", metavar="NAME|FILE.py", help="name of a job, or a program")
    submit.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the program")
    _add_config(submit, is_required=False)
    submit.add_argument("--master", required=True, metavar="ADDRESS",
                        help="local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT")  # fmt: skip
    submit.add_argument("--deploy-mode", choices=("client", "cluster"), default="client",
                        help="the driver runs here (client), or in the cluster (yarn, k8s)")  # fmt: skip
    submit.add_argument("--python", metavar="PROGRAM", default=_python_name(),
                        help="Python of the executors (%(default)s)")  # fmt: skip
    submit.add_argument("--with-dependencies", action="store_true",
                        help="send numpy, pyarrow and protobuf, too: 60 MB")  # fmt: skip
    submit.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting of Spark; may be repeated")  # fmt: skip
    submit.add_argument("--print", dest="is_printed", action="store_true",
                        help="check everything and print the command; start nothing")  # fmt: skip
    submit.set_defaults(command=_submit)


def _add_config(action: argparse.ArgumentParser, *, is_required: bool) -> None:
    action.add_argument("--config", type=Path, required=is_required, metavar="FILE.toml",
                        help="settings of the job, and of Spark in its section [spark]")  # fmt: skip


# Jobs ---------------------------------------------------------------------------------------------------


def find_job(name: str) -> Job:
    """Return the job of that name. ConfigError for an unknown one names those there are."""
    jobs = all_jobs()
    if name not in jobs:
        hint = did_you_mean(name, {each: each for each in jobs})
        raise ConfigError(f"there is no job {name!r}{hint}\n    jobs: {', '.join(jobs)}")
    return jobs[name]


def all_jobs() -> dict[str, Job]:
    """Return all jobs by name. ConfigError without Spark."""
    from iotmq.bridge import jobs

    found: dict[str, Job] = {}
    for module in pkgutil.iter_modules(jobs.__path__):
        try:
            job = importlib.import_module(f"{jobs.__name__}.{module.name}")
        except ModuleNotFoundError as error:
            raise ConfigError(f"{_NO_SPARK} ({error})") from error
        if hasattr(job, "NAME") and hasattr(job, "run"):
            found[job.NAME] = cast("Job", job)
    return dict(sorted(found.items()))


def read_job_settings(job: Job, file: Path) -> tuple[msgspec.Struct, SparkSettings]:
    """Read the file of a job; raises ConfigError that names every wrong setting and its line."""
    from iotmq.config.config import load_sections

    read = load_sections(file, {"": job.Settings, "spark": SparkSettings})
    return read[""], cast("SparkSettings", read["spark"])


def _list(_options: argparse.Namespace) -> int:
    for name, job in all_jobs().items():
        first, _, _ = (cast("Any", job).__doc__ or "").partition("\n")
        print(f"{name:20}  {first}")
    return _OK


def _run(options: argparse.Namespace) -> int:
    job = find_job(options.job)
    settings, of_spark = read_job_settings(job, options.config)
    from iotmq.bridge.jobs.metrics_page import metrics_page
    from iotmq.bridge.jobs.stream_run import Signals
    from iotmq.bridge.query_listener import ProgressListener
    from iotmq.bridge.spark_session import session
    from iotmq.console.exposition import Exposition

    signals = Signals()
    listener = ProgressListener(_say if of_spark.progress else _say_nothing)
    with contextlib.ExitStack() as stack:
        # From before Spark starts, which takes some seconds: what is stored by then is read all the same.
        stack.enter_context(signals.listening())
        if of_spark.metrics_port:
            try:
                page = metrics_page(Exposition((listener,)).render, of_spark.metrics_port)
                stack.enter_context(page)
            except OSError as error:
                raise ConfigError(
                    f"spark.metrics_port = {of_spark.metrics_port}: {error.strerror or error}"
                ) from error
        spark = session(
            of_spark.app_name or f"iotmq {job.NAME}",
            cores=of_spark.cores,
            profile=cast("Profile", of_spark.profile),
            conf=of_spark.conf,
        )
        stack.callback(spark.stop)
        spark.streams.addListener(listener)
        return job.run(spark, settings, signals=signals) or _OK


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _say_nothing(_line: str) -> None:
    """Stand in for `_say` where the metrics are enough."""


# Submitting ---------------------------------------------------------------------------------------------


def _submit(options: argparse.Namespace) -> int:
    from iotmq.bridge.submitting.submission import submit_environment, submit_words

    if not all("=" in pair for pair in options.conf):
        raise ConfigError("--conf takes NAME=VALUE")
    try:
        from pyspark.find_spark_home import _find_spark_home

        from iotmq.bridge.spark_session import ensure_java
    except ModuleNotFoundError as error:
        raise ConfigError(f"{_NO_SPARK} ({error})") from error
    with tempfile.TemporaryDirectory(prefix="iotmq-submit-") as name:
        submission = _submission(options, Path(name))
        words = submit_words(submission, spark_home=Path(_find_spark_home()))
        ensure_java()
        environment = submit_environment(
            submission, os.environ, python=sys.executable, python_path=_python_path()
        )
        if options.is_printed:
            print(shlex.join(words))
            return _OK
        return _watched(words, environment)


def _submission(options: argparse.Namespace, directory: Path) -> Submission:
    """Return what to submit; the program of a job is written to `directory`."""
    from iotmq.bridge.spark_session import cache_directory
    from iotmq.bridge.submitting.packages import packed
    from iotmq.bridge.submitting.submission import PROGRAM, Submission, kind_of_master

    files: list[Path] = []
    if options.job.endswith(".py"):
        if not Path(options.job).is_file():
            raise ConfigError(f"{options.job}: there is no such file")
        if options.config is not None:
            raise ConfigError("--config is for jobs; arguments of a program stand behind it")
        program, arguments = options.job, list(options.arguments)
    else:
        if options.arguments or options.config is None:
            raise ConfigError(f"a job takes --config FILE.toml; options stand before its name, {options.job}")
        read_job_settings(find_job(options.job), options.config)
        # In the cluster the file is in the working directory of the driver.
        is_away = options.deploy_mode == "cluster"
        files = [options.config.resolve()]
        config = options.config.name if is_away else str(files[0])
        written = directory / "iotmq_job.py"
        written.write_text(PROGRAM)
        program, arguments = str(written), ["spark", "run", options.job, "--config", config]
    is_local = kind_of_master(options.master) == "local"
    archive = None
    if not is_local:
        archive = packed(cache_directory() / "spark", with_dependencies=options.with_dependencies)
    return Submission(
        master=options.master,
        program=program,
        arguments=arguments,
        archive=archive,
        python=options.python,
        deploy_mode=options.deploy_mode,
        conf=dict(pair.split("=", 1) for pair in options.conf),
        files=files,
    )


def _watched(words: list[str], environment: Mapping[str, str]) -> int:
    """Run spark-submit to its end. It gets what would end this process, and ends in its own way."""
    process = subprocess.Popen(words, env=dict(environment))
    # What comes from the keyboard has reached the job already.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


def _python_path() -> list[str]:
    """Return where this interpreter finds iotmq and what it needs."""
    import iotmq

    top = str(Path(iotmq.__file__).resolve().parent.parent)
    return [top, *(path for path in sys.path if path.endswith("site-packages") and path != top)]


def _python_name() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"
