"""What puts the OpenMessaging Benchmark in front of servers; itself it is in no package registry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from benchmarks import machine
from benchmarks.openmessaging import __main__ as program
from benchmarks.openmessaging import build, report

POM = """<?xml version="1.0"?>
<!-- a comment -->
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <artifactId>messaging-benchmark</artifactId>
  {}
</project>
"""
ROOT_POM = POM.format(
    """<modules><module>benchmark-framework</module><module>driver-kafka</module><module>package</module></modules>
  <build><plugins>
    <plugin><artifactId>spotless-maven-plugin</artifactId></plugin>
    <plugin><artifactId>maven-surefire-plugin</artifactId></plugin>
  </plugins></build>
  <profiles><profile><build><pluginManagement><plugins>
    <plugin><artifactId>maven-compiler-plugin</artifactId></plugin>
    <plugin><artifactId>maven-checkstyle-plugin</artifactId></plugin>
  </plugins></pluginManagement></build></profile></profiles>"""
)
FRAMEWORK_POM = POM.format(
    """<dependencies>
    <dependency><groupId>${project.groupId}</groupId><artifactId>driver-api</artifactId></dependency>
    <dependency><groupId>${project.groupId}</groupId><artifactId>driver-kafka</artifactId></dependency>
    <dependency><groupId>com.beust</groupId><artifactId>jcommander</artifactId></dependency>
  </dependencies>"""
)
RESULT = {
    "workload": "w", "driver": "MQTT", "publishRate": [1000.0, 3000.0], "publishErrorRate": [0.0, 0.0],
    "consumeRate": [900.0, 1100.0], "backlog": [5, 7],
    "aggregatedPublishLatency50pct": 0.25, "aggregatedPublishLatency99pct": 2.5,
    "aggregatedEndToEndLatency50pct": 1.0, "aggregatedEndToEndLatency99pct": 3.0,
}  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Laid out as the benchmark's repository is."""
    root = tmp_path / "checkout"
    for name in (*build.MODULES, "driver-kafka"):
        (root / name / "src").mkdir(parents=True)
        (root / name / "target").mkdir()
        (root / name / "src" / "Source.java").write_text(f"// {name}\n")
        (root / name / "pom.xml").write_text(FRAMEWORK_POM if name == build.FRAMEWORK else POM.format(""))
    (root / "pom.xml").write_text(ROOT_POM)
    (root / "lombok.config").write_text("x = y\n")
    return root


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `java` and `mvn` are looked for; the test writes them."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return directory


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def names(pom: str, tag: str) -> list[str | None]:
    return [
        each.text for each in ElementTree.fromstring(pom).iter(f"{{http://maven.apache.org/POM/4.0.0}}{tag}")
    ]


def test_of_the_project_our_modules_stay_and_no_check_of_style() -> None:
    pom = build.root_pom(ROOT_POM)
    assert names(pom, "module") == list(build.MODULES)
    assert names(pom, "artifactId") == [
        "messaging-benchmark", "maven-surefire-plugin", "maven-compiler-plugin",
    ]  # fmt: skip


def test_the_framework_needs_our_drivers_and_no_others() -> None:
    pom = build.framework_pom(FRAMEWORK_POM)
    assert names(pom, "artifactId") == [
        "messaging-benchmark", "jcommander", "driver-api", "driver-rocketmq", "driver-mqtt5",
    ]  # fmt: skip


@pytest.mark.parametrize("edit", [build.root_pom, build.framework_pom])
def test_a_project_of_another_shape_is_refused(edit: Any) -> None:
    with pytest.raises(build.UnavailableError, match="has no"):
        edit(POM.format(""))


def test_sources_are_built_as_they_are(checkout: Path, tmp_path: Path, programs: Path) -> None:
    write_program(programs / "java", "exit 1")
    write_program(
        programs / "mvn", 'echo "$@" > words\nmkdir -p benchmark-framework/target\n'
        f"echo /a.jar:/b.jar > benchmark-framework/{build.CLASS_PATH}\n",
    )  # fmt: skip
    directory = tmp_path / "built"
    for _ in range(2):
        classes, *jars = build.build(checkout, directory).split(":")
    assert classes == str(directory / "benchmark-framework" / "target" / "classes")
    assert jars == ["/a.jar", "/b.jar"]
    assert f"-Dmdep.outputFile={build.CLASS_PATH}" in (directory / "words").read_text()
    assert {path.name for path in directory.iterdir() if path.is_dir()} == set(build.MODULES)
    for name in build.MODULES:
        assert (directory / name / "src" / "Source.java").read_text() == f"// {name}\n"
    assert (directory / "lombok.config").exists()
    # The checkout is as it was.
    assert (checkout / "pom.xml").read_text() == ROOT_POM


def test_without_a_benchmark_the_reason_is_said_and_nothing_is_measured(
    checkout: Path, tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv(program.CHECKOUT, raising=False)
    monkeypatch.setattr(machine, "ROOT", tmp_path)

    def reason(*words: str) -> str:
        assert program.main(words) == program.SKIPPED
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("SKIPPED, nothing is measured: ")
        return said.err

    assert "in no package registry: name a checkout" in reason()
    assert "no driver-api, driver-rocketmq" in reason("--checkout", str(tmp_path))
    monkeypatch.setenv("PATH", str(programs))
    assert "java is not installed" in reason("--checkout", str(checkout))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    write_program(programs / "java", "exit 1")
    write_program(programs / "mvn", "echo no such library\nexit 1\n")
    monkeypatch.setenv(program.CHECKOUT, str(checkout))
    assert "no such library" in reason()


def test_what_is_asked_for_must_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in ((["nothing"], "unknown workload nothing"), (["--minutes", "0"], "at least 1")):
        with pytest.raises(SystemExit):
            program.main(words)
        assert text in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(program.WORKLOADS.glob("*.yaml")), ids=lambda path: path.stem)
def test_workloads_say_what_the_benchmark_asks_for(path: Path) -> None:
    workload = yaml.safe_load(path.read_text())
    assert set(workload) == {
        "name", "topics", "partitionsPerTopic", "keyDistributor", "messageSize", "useRandomizedPayloads",
        "randomBytesRatio", "randomizedPayloadPoolSize", "subscriptionsPerTopic", "consumerPerSubscription",
        "producersPerTopic", "producerRate", "consumerBacklogSizeGB", "warmupDurationMinutes",
        "testDurationMinutes",
    }  # fmt: skip
    assert path.stem.startswith("max-rate") == (workload["producerRate"] == 0)
    assert ("100b" in path.stem) == (workload["messageSize"] == 100)
    assert f"{workload['topics']}-topic" in path.stem
    assert f"-{workload['partitionsPerTopic']}-partition" in path.stem
    short = yaml.safe_load(program.workload_settings(path.stem, 2))
    assert short == workload | {"warmupDurationMinutes": 0, "testDurationMinutes": 2}
    assert program.workload_settings(path.stem, None) == path.read_text()


def test_drivers_are_told_where_the_server_is_and_nothing_else_changes() -> None:
    addresses = {"namesrvAddr": "127.0.0.1:1", "serverUri": "tcp://127.0.0.1:2"}
    rocketmq, mqtt5 = (yaml.safe_load(program.driver_settings(name, addresses)) for name in program.SIDES)
    assert rocketmq["driverClass"].endswith("rocketmq.RocketMQBenchmarkDriver")
    assert (rocketmq["namesrvAddr"], rocketmq["clusterName"]) == ("127.0.0.1:1", "DefaultCluster")
    assert "serverUri" not in rocketmq
    assert mqtt5["driverClass"].endswith("mqtt5.MqttBenchmarkDriver")
    assert mqtt5["client"]["serverUri"] == "tcp://127.0.0.1:2"
    assert mqtt5["consumer"]["cleanSession"] is True
    assert "namesrvAddr" not in mqtt5


@contextlib.contextmanager
def nobody(_directory: Path) -> Iterator[program.Addresses]:
    yield {"serverUri": "tcp://127.0.0.1:2"}


def test_a_result_is_kept_and_a_run_without_one_fails(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "build", lambda _checkout, _directory: "/classes")
    monkeypatch.setattr(program, "SIDES", {"mqtt5": {"iotmq": nobody}})
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "runs")
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    # As the benchmark does: an --output, a workload behind; and a thread that keeps it from ending.
    stays = f'[ "$5" = {program.MAIN} ] || exit 1\ncp {tmp_path}/result.json "$9"\nexec sleep 60\n'
    write_program(programs / "java", stays)
    monkeypatch.setattr(program, "_LEAVE_S", 0.1)
    assert program.main(["1-topic-1-partition-1kb", "--minutes", "1"]) == 0
    assert "published/s 2,000, consumed/s 1,000" in capsys.readouterr().out
    table = (tmp_path / "results" / report.TABLE).read_text()
    assert (
        "| 1-topic-1-partition-1kb | mqtt5 | iotmq | 2,000 | 1,000 | 0 | 7 | 0.2, 2.5 | 1.0, 3.0 | 20"
        in table
    )
    (kept,) = (tmp_path / "results").glob("*.json")
    assert json.loads(kept.read_text())["result"] == RESULT

    write_program(programs / "java", "echo no consumers\nexit 0\n")
    assert program.main(["1-topic-1-partition-1kb"]) == 1
    said = capsys.readouterr().err
    assert "no consumers" in said
    assert "failed: 1-topic-1-partition-1kb, mqtt5, iotmq" in said
    # What was measured before is still there, and no run leaves files.
    assert report.write() == 0
    assert list((tmp_path / "runs").iterdir()) == []


def test_without_results_there_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert program.main(["--report"]) == 1
    assert list(tmp_path.iterdir()) == []
