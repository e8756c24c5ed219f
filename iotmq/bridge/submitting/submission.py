"""The command line of spark-submit for one job: what each kind of cluster needs, and what it refuses."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from iotmq.bridge.submitting.packages import PACKAGES_DIRECTORY
from iotmq.errors import ConfigError

Kind = Literal["local", "standalone", "yarn", "kubernetes"]

#: Written aside for spark-submit, which takes a file: the command itself, run by the submission.
PROGRAM: Final = """\
import sys

from iotmq.commands.cli import main

sys.exit(main(sys.argv[1:]))
"""
_PACKAGES_PATH: Final = f"./{PACKAGES_DIRECTORY}"
_IMAGE: Final = "spark.kubernetes.container.image"
_UPLOAD: Final = "spark.kubernetes.file.upload.path"
# Everybody who may look at a cluster sees its settings and command lines.
_SECRET_NAME: Final = re.compile(r"(secret|password|token|(access|secret)[.]?key)$", re.IGNORECASE)


@dataclass(frozen=True)
class Submission:
    """One job for one cluster. `program` is a file of Python; `python` is what executors run it with."""

    master: str
    program: str
    arguments: Sequence[str] = ()
    archive: Path | None = None
    python: str = ""
    deploy_mode: Literal["client", "cluster"] = "client"
    conf: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[Path] = ()

    @property
    def kind(self) -> Kind:
        """Return what manages the cluster; raises ConfigError for an address that Spark does not know."""
        return kind_of_master(self.master)


def kind_of_master(master: str) -> Kind:
    """Return what manages the cluster at an address; raises ConfigError for one that Spark does not know."""
    if re.fullmatch(r"local(\[[\d*]+(,\d+)?\])?", master):
        return "local"
    if master == "yarn":
        return "yarn"
    for prefix, kind in (("spark://", "standalone"), ("k8s://", "kubernetes")):
        if master.startswith(prefix) and len(master) > len(prefix):
            return "standalone" if kind == "standalone" else "kubernetes"
    raise ConfigError(
        f"--master {master!r}: it is local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
    )


def submit_words(submission: Submission, *, spark_home: Path) -> list[str]:
    """Return the command; raises ConfigError for what the cluster would refuse, with the way out."""
    kind = submission.kind
    _check(submission, kind)
    conf: dict[str, str] = {}
    words = [str(spark_home / "bin" / "spark-submit"), "--master", submission.master]
    words += ["--deploy-mode", submission.deploy_mode]
    if kind != "local":
        if submission.archive is not None:
            words += ["--archives", f"{submission.archive}#{PACKAGES_DIRECTORY}"]
            conf["spark.executorEnv.PYTHONPATH"] = _PACKAGES_PATH
        conf["spark.pyspark.python"] = submission.python
        if submission.deploy_mode == "client":
            conf["spark.pyspark.driver.python"] = sys.executable
        if submission.deploy_mode == "cluster":
            name = "spark.yarn.appMasterEnv" if kind == "yarn" else "spark.kubernetes.driverEnv"
            conf[f"{name}.PYTHONPATH"] = _PACKAGES_PATH
            if submission.files:
                words += ["--files", ",".join(map(str, submission.files))]
    for name, value in (conf | dict(submission.conf)).items():
        words += ["--conf", f"{name}={value}"]
    return [*words, submission.program, *submission.arguments]


def submit_environment(
    submission: Submission, environment: Mapping[str, str], *, python: str, python_path: Sequence[str]
) -> dict[str, str]:
    """Return the environment of spark-submit. Interpreters on this machine find packages in `python_path`.

    Queries are planned here by the interpreter of the executors, which need not have any packages.
    """
    made = dict(environment)
    if submission.deploy_mode == "client":
        given = [made["PYTHONPATH"]] if made.get("PYTHONPATH") else []
        made["PYTHONPATH"] = os.pathsep.join([*given, *python_path])
    if submission.kind == "local":
        made.setdefault("PYSPARK_PYTHON", python)
        made.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return made


def _check(submission: Submission, kind: Kind) -> None:
    for name, value in submission.conf.items():
        if value and _SECRET_NAME.search(name):
            raise ConfigError(
                f"--conf {name}: everybody on this machine can read a command line, so it has no secrets. "
                "Use a file of settings that others cannot read (--properties-file of spark-submit), or the "
                "options secretKeyFile and secretKeyVariable of format iotmq"
            )
    if submission.deploy_mode == "cluster" and kind in ("local", "standalone"):
        raise ConfigError(
            f"--deploy-mode cluster: Spark does not run Python drivers on a {kind} cluster; "
            "leave it out, and the driver runs here"
        )
    if kind == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise ConfigError(
            "--master yarn: Spark finds the cluster through HADOOP_CONF_DIR or YARN_CONF_DIR; set it to the "
            "directory with core-site.xml and yarn-site.xml"
        )
    if kind == "kubernetes":
        if _IMAGE not in submission.conf:
            raise ConfigError(
                f"--master {submission.master}: give the executors an image, --conf {_IMAGE}=NAME, with "
                f"Spark 4.3 and {submission.python or 'Python'}"
            )
        if submission.deploy_mode == "cluster" and _UPLOAD not in submission.conf:
            raise ConfigError(
                "--deploy-mode cluster: the driver's pod gets program and packages over storage that both "
                f"can reach, --conf {_UPLOAD}=s3a://BUCKET/PATH"
            )
