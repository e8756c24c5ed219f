"""What spark-submit is told for each kind of cluster, and what is refused before it is asked."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iotmq.bridge.submitting.submission import Submission, kind_of_master, submit_environment, submit_words
from iotmq.errors import ConfigError

HOME = Path("/spark")
STANDALONE = Submission(
    master="spark://m:7077",
    program="job.py",
    arguments=("spark", "run"),
    archive=Path("/cache/packages.zip"),
    python="python3.11",
)
KUBERNETES = replace(
    STANDALONE, master="k8s://https://k:6443", conf={"spark.kubernetes.container.image": "image"}
)


def words_of(submission: Submission) -> tuple[list[str], dict[str, str]]:
    """The command without its settings, and the settings."""
    words = submit_words(submission, spark_home=HOME)
    settings = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--conf")
    rest = [word for at, word in enumerate(words) if word != "--conf" and words[at - 1] != "--conf"]
    return rest, settings


def test_a_cluster_gets_the_packages_and_where_to_find_them() -> None:
    words, settings = words_of(replace(STANDALONE, conf={"spark.executor.memory": "2g"}))
    assert words == [
        *("/spark/bin/spark-submit", "--master", "spark://m:7077", "--deploy-mode", "client"),
        *("--archives", "/cache/packages.zip#iotmq-packages", "job.py", "spark", "run"),
    ]
    assert settings == {
        "spark.executorEnv.PYTHONPATH": "./iotmq-packages",
        "spark.pyspark.python": "python3.11",
        "spark.pyspark.driver.python": sys.executable,
        "spark.executor.memory": "2g",
    }


def test_a_local_master_needs_nothing_but_this_interpreter() -> None:
    local = replace(STANDALONE, master="local[2,4]", archive=None)
    assert words_of(local) == (
        [
            "/spark/bin/spark-submit",
            "--master",
            "local[2,4]",
            "--deploy-mode",
            "client",
            "job.py",
            "spark",
            "run",
        ],
        {},
    )
    made = submit_environment(local, {"PYTHONPATH": "/mine"}, python="/p/python", python_path=("/a", "/b"))
    assert made == {"PYTHONPATH": "/mine:/a:/b", "PYSPARK_PYTHON": "/p/python", "SPARK_LOCAL_IP": "127.0.0.1"}


def test_what_a_submission_says_wins_over_ours() -> None:
    _, settings = words_of(replace(STANDALONE, conf={"spark.pyspark.python": "/opt/python"}))
    assert settings["spark.pyspark.python"] == "/opt/python"


def test_a_driver_in_the_cluster_finds_the_packages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    away: dict[str, Any] = {"deploy_mode": "cluster", "files": (Path("/a/job.toml"),)}
    words, settings = words_of(replace(STANDALONE, master="yarn", **away))
    assert words[words.index("--files") + 1] == "/a/job.toml"
    assert settings["spark.yarn.appMasterEnv.PYTHONPATH"] == "./iotmq-packages"
    assert "spark.pyspark.driver.python" not in settings
    conf = {**KUBERNETES.conf, "spark.kubernetes.file.upload.path": "s3a://b/p"}
    _, settings = words_of(replace(KUBERNETES, conf=conf, **away))
    assert settings["spark.kubernetes.driverEnv.PYTHONPATH"] == "./iotmq-packages"
    assert "PYTHONPATH" not in submit_environment(
        replace(KUBERNETES, **away), {}, python="p", python_path=("/a",)
    )


@pytest.mark.parametrize(
    ("submission", "said"),
    [
        (replace(STANDALONE, deploy_mode="cluster"), "does not run Python drivers on a standalone cluster"),
        (replace(STANDALONE, master="local[2]", deploy_mode="cluster"), "on a local cluster"),
        (replace(STANDALONE, master="yarn"), "HADOOP_CONF_DIR or YARN_CONF_DIR"),
        (replace(KUBERNETES, conf={}), "--conf spark.kubernetes.container.image=NAME"),
        (replace(KUBERNETES, deploy_mode="cluster"), "--conf spark.kubernetes.file.upload.path"),
        (replace(STANDALONE, conf={"spark.ssl.keyPassword": "x"}), "everybody on this machine can read"),
        (replace(STANDALONE, conf={"spark.authenticate.secret": "x"}), "everybody on this machine can read"),
        (replace(STANDALONE, conf={"spark.hadoop.fs.s3a.access.key": "x"}), "secretKeyFile"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, submission: Submission, said: str
) -> None:
    for variable in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match=said):
        submit_words(submission, spark_home=HOME)


def test_settings_that_only_speak_of_secrets_are_taken() -> None:
    conf = {"spark.kubernetes.driver.secrets.keys": "/mnt", "spark.kubernetes.context": "c"}
    words_of(replace(KUBERNETES, conf={**KUBERNETES.conf, **conf}))


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        ("local", "local"),
        ("local[*]", "local"),
        ("local[2,4]", "local"),
        ("spark://a:1,b:2", "standalone"),
        ("yarn", "yarn"),
        ("k8s://https://h:6443", "kubernetes"),
    ],
)
def test_masters_are_known_by_their_address(master: str, kind: str) -> None:
    assert kind_of_master(master) == kind


@pytest.mark.parametrize("master", ["", "mesos://h", "spark://", "k8s://", "local[", "sc://h:15002"])
def test_other_masters_are_refused(master: str) -> None:
    with pytest.raises(ConfigError, match=r"it is local\[N\], spark://HOST:PORT, yarn or k8s://"):
        kind_of_master(master)
