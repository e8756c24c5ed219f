"""What every benchmark leans on: starting servers, watching them, adding up and telling."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks import _report, machine, mqtt_side_by_side, peers
from benchmarks.peers.mqtt import MOSQUITTO

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None,
    reason="mosquitto is not installed",
)


@needs_mosquitto
def test_a_server_is_started_watched_and_stopped() -> None:
    core, _ = machine.cores()
    with peers.started(MOSQUITTO, core=core) as server:
        assert os.sched_getaffinity(server.pid) == {core}
        memory = server.memory_bytes()
        assert 0 < memory["anonymous"] <= memory["rss"]
        assert server.cpu_s() >= 0
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    assert not Path(f"/proc/{server.pid}").exists()


@needs_mosquitto
def test_a_server_that_ends_by_itself_is_an_error() -> None:
    def lose() -> None:
        with peers.started(MOSQUITTO, core=machine.cores()[0]) as server:
            os.kill(server.pid, 9)
            os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(peers.PeerError, match="mosquitto ended"):
        lose()


def test_free_ports_differ() -> None:
    assert len(set(peers.free_ports(20))) == 20


def test_results_of_other_scenarios_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    machine.save("b", {"one": {"x": 1}, "two": 2})
    path = machine.save("b", {"one": {"x": 3}})
    assert path.read_text() == '{\n  "one": {\n    "x": 3\n  },\n  "two": 2\n}\n'


def test_ratios_are_of_medians_with_the_spread_of_rounds() -> None:
    ratio = mqtt_side_by_side._ratio([1.0, 2.0, 4.0], [10.0, 30.0, 20.0])
    assert ratio == {"of_medians": 10.0, "min": 5.0, "max": 15.0}
    assert mqtt_side_by_side._ratio([0.0], [1.0]) is None
    assert machine.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_a_summary_of_one_side_can_be_told() -> None:
    rounds = {"mosquitto": [{"messages_per_s": 1234.0, "violations": 0}]}
    rows = mqtt_side_by_side._rows(
        "qos1_window1", mqtt_side_by_side._summary("qos1_window1", rounds), "mosquitto"
    )
    assert rows[0][:3] == ["the same with window 1", "1,234", "-"]
    assert machine.table(["work", "a", "b", "", "", ""], rows).splitlines()[2].endswith(">= 1x")


def test_warming_touches_at_most_what_is_asked_for(tmp_path: Path) -> None:
    assert machine.warm_page_cache(tmp_path, 0) == 0.0
    assert machine.warm_page_cache(tmp_path, 16 * 1024 * 1024) >= 0.0
    assert list(tmp_path.iterdir()) == []


def test_the_runner_knows_the_benchmarks_and_only_them() -> None:
    assert "mqtt_side_by_side" in runner.names()
    assert not {"peers", "machine", "__main__"} & set(runner.names())


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        mqtt_side_by_side.main(["nothing"])
    assert "unknown scenario nothing" in capsys.readouterr().err


def test_the_page_has_a_number_for_every_row() -> None:
    """`python -m benchmarks --report` writes them."""
    table = _report.PAGE.read_text().split(_report.BEGIN)[1].split(_report.END)[0]
    found = _report.rows_of(table)
    there = {cells[0] for cells in found}
    assert [(cells[0], cells[1], cells[5]) for cells in found] == [
        (row.work, row.mark, f"`{row.benchmark}`")
        for row in _report.ROWS
        if not row.is_optional or row.work in there
    ]
    assert all(cells[2][0].isdigit() and cells[6].startswith("20") for cells in found)


def test_the_page_lists_the_peers_as_they_are_described() -> None:
    """`python -m benchmarks --report` writes them."""
    table = _report.PAGE.read_text().split(_report.PEERS_BEGIN)[1].split(_report.PEERS_END)[0]
    assert table.strip() == _report.peers_table().strip()


def test_rows_of_the_page_have_different_names() -> None:
    names = [(row.work, row.benchmark) for row in _report.ROWS]
    assert len(set(names)) == len(names)


def test_numbers_are_found_in_what_a_benchmark_keeps() -> None:
    kept = {"a": {"rounds": [1, 5, 3]}, "last": {"median": 7, "min": 1}, "n": 2}
    assert _report._number(kept, ("a", "rounds")) == 3
    assert _report._number(kept, ("last",)) == 7
    assert _report._number(kept, ("*",)) == 2
    assert _report._number(kept, ("a", "nothing")) is None
