"""How many machines a number of devices needs: arithmetic over what was measured, and the page with it."""

import json

import pytest

from benchmarks import _room, _scaling, mqtt_scale
from benchmarks._deployment import GIB, Costs, Load, Rules, TooLargeError, deployment
from loadtest.reports.charts import Axis, Line, picture

COSTS = Costs(
    worker_bytes=GIB / 8,
    bare_bytes=2_000,
    subscribed_bytes=3_000,
    kernel_bytes=4_000,
    broker_bytes=GIB / 4,
    connected_bytes=200,
    filter_bytes=400,
    mark_bytes=20,
    session_bytes=100,
    kept_connected_bytes=900,
    channel_bytes=0,
    channel_cores=0.0001,
    connect_us=600,
    connect_more_us=0,
    connect_broker_us=60,
    ping_us=15,
    stored_us=15,
    stored_broker_us=6,
    delivered_us=30,
    delivered_broker_us=9,
    consumed_us=0,
    record_bytes=200,
)
LOAD = Load(
    name="test",
    devices=1_000_000,
    subscribed=0.5,
    kept=0.0,
    stored_per_s=20_000,
    delivered_per_s=10_000,
    payload_bytes=100,
    keep_alive_s=1_000_000,
)


def test_the_processor_of_everybody_follows_from_messages() -> None:
    found = deployment(LOAD, COSTS, Rules(utilisation=0.5))
    assert found.front_end_cores == pytest.approx((20_000 * 15 + 10_000 * 30) / 1e6 / 0.5)
    # 0.21 cores of messages, and 20 front ends that want 0.0001 of a core each.
    assert (found.workers, found.brokers) == (20, 1)
    assert found.broker_cores == pytest.approx((0.21 + 0.002) / 0.5)


def test_memory_is_that_of_devices_and_processes() -> None:
    found = deployment(LOAD, COSTS, Rules(hot_s=0))
    assert found.front_end_gib == pytest.approx(20 / 8 + (500_000 * 2_000 + 500_000 * 3_000) / GIB)
    assert found.kernel_gib == pytest.approx(1_000_000 * 4_000 / GIB)
    assert found.broker_each_gib == pytest.approx(0.25 + (1_000_000 * 200 + 500_000 * 400) / GIB)


def test_hosts_are_filled_by_memory_or_by_processors() -> None:
    # 20 workers, 2.5 GB and 4 GB: 8.5 GiB; the broker has 0.6 GiB.
    assert deployment(LOAD, COSTS, Rules(hot_s=0, host_gib=4, memory_share=1.0)).hosts == 3 + 1
    # The front ends want a core with the room around it, the broker a third of one.
    assert deployment(LOAD, COSTS, Rules(hot_s=0, host_cores=1)).hosts == 1 + 1
    assert deployment(LOAD, COSTS, Rules(hot_s=0, host_cores=1, utilisation=0.3)).hosts == 2 + 1


def test_a_kept_session_has_its_filter_in_it_and_costs_more_while_connected() -> None:
    found = deployment(LOAD._replace(kept=1.0), COSTS, Rules(hot_s=0))
    assert found.broker_each_gib == pytest.approx(0.25 + 1_000_000 * (100 + 900) / GIB)


def test_a_hot_log_is_in_the_memory_of_brokers() -> None:
    cold, hot = (deployment(LOAD, COSTS, Rules(hot_s=seconds)) for seconds in (0, 60))
    assert hot.broker_each_gib - cold.broker_each_gib == pytest.approx(30_000 * 300 * 60 / GIB)


def test_more_messages_need_more_brokers_and_each_stores_less() -> None:
    busy = LOAD._replace(stored_per_s=1_000_000, delivered_per_s=0)
    found = deployment(busy, COSTS, Rules())
    # 6 us each are 6 cores, and each broker has 0.6 less what 25 front ends take.
    assert found.workers == 25
    assert found.brokers == 11
    assert found.log_mb_per_s == pytest.approx(1_000_000 * 300 / 1e6 / 11)
    assert found.disk_tb == pytest.approx(1_000_000 * 300 * 86_400 / 1e12)


def test_filters_without_wildcards_are_whole_at_one_broker_and_a_mark_at_the_others() -> None:
    busy = LOAD._replace(stored_per_s=1_000_000, delivered_per_s=0)
    whole = deployment(busy, COSTS, Rules(hot_s=0, has_marks=False))
    marked = deployment(busy, COSTS, Rules(hot_s=0))
    saved = 500_000 * (400 - 20) * (1 - 1 / 11)
    assert whole.broker_each_gib - marked.broker_each_gib == pytest.approx(saved / GIB)
    wildcards = deployment(busy._replace(exact=0.0), COSTS, Rules(hot_s=0))
    assert wildcards.broker_each_gib == pytest.approx(whole.broker_each_gib)


def test_copies_multiply_members_and_disks() -> None:
    one, three = (deployment(LOAD, COSTS, Rules(copies=copies)) for copies in (1, 3))
    assert (three.brokers, three.members) == (one.brokers, 3 * one.brokers)
    assert three.disk_tb == pytest.approx(3 * one.disk_tb)
    assert three.broker_cores == pytest.approx(2 * one.broker_cores)


def test_brokers_limit_how_fast_devices_come_back_because_all_are_asked() -> None:
    found = deployment(LOAD, COSTS, Rules())
    assert found.is_return_limited_by_brokers
    assert found.return_s == pytest.approx(1_000_000 * 60 / 1e6 / 0.6)
    slow = deployment(LOAD, COSTS._replace(connect_us=6_000), Rules())
    assert not slow.is_return_limited_by_brokers
    assert slow.return_s == pytest.approx(1_000_000 * 6_000 / 1e6 / 0.6 / 20)


def test_front_ends_that_fill_each_broker_are_too_many_for_any_number_of_brokers() -> None:
    with pytest.raises(TooLargeError, match="20 front ends keep each broker busy"):
        deployment(LOAD, COSTS._replace(channel_cores=0.03), Rules())


def test_the_page_has_the_tables_and_pictures_of_the_numbers_beside_it() -> None:
    measured = json.loads(_scaling.KEPT.read_text())
    page = _scaling.PAGE.read_text()
    assert _scaling.written(page, measured) == page
    for name, text in _scaling.pictures(measured).items():
        assert (_scaling.FOLDER / name).read_text() == text
        assert f"(scaling/{name})" in page


def test_every_cost_is_explained_on_the_page() -> None:
    assert tuple(_scaling.UNITS) == Costs._fields


# Room

MACHINE = _room.Machine(
    files_each=20_000,
    files_free=1_000_000,
    ports=28_232,
    memory_bytes=16 * GIB,
    backlog=4_096,
    tracked_free=None,
)
NEEDS = _room.Needs(connections=120_000, workers=8, connects_in_progress=512)


def test_a_machine_that_is_large_enough_is_taken() -> None:
    assert _room.why_not(NEEDS, MACHINE) == []


@pytest.mark.parametrize(
    ("needs", "machine", "why"),
    [
        (NEEDS._replace(workers=6), MACHINE, "more workers, or ulimit -Hn"),
        (NEEDS, MACHINE._replace(files_each=15_499), "a process of the load needs 15,500 open files"),
        (NEEDS, MACHINE._replace(files_free=239_999), "fs.file-max"),
        (NEEDS, MACHINE._replace(ports=14_999), "net.ipv4.ip_local_port_range"),
        (NEEDS, MACHINE._replace(memory_bytes=4 * GIB), "MiB of memory"),
        (NEEDS, MACHINE._replace(backlog=63), "net.core.somaxconn"),
        (NEEDS, MACHINE._replace(tracked_free=119_999), "nf_conntrack_max"),
    ],
)
def test_what_is_missing_is_named_with_its_setting(
    needs: _room.Needs, machine: _room.Machine, why: str
) -> None:
    assert why in " ".join(_room.why_not(needs, machine))


def test_what_is_just_enough_is_enough() -> None:
    assert (
        _room.why_not(
            NEEDS, MACHINE._replace(files_free=240_000, ports=15_000, backlog=64, tracked_free=120_000)
        )
        == []
    )


def test_this_machine_can_be_looked_at() -> None:
    found = _room.this_machine()
    assert min(found.files_each, found.files_free, found.ports, found.memory_bytes, found.backlog) > 0


def test_points_are_named_as_they_are_kept() -> None:
    assert str(mqtt_scale._point("8x120000")) == "8 workers, 120000 connections"
    assert str(mqtt_scale._point("8x10000x3")) == "8 workers, 10000 connections, 3 brokers"


def test_a_run_that_cannot_be_made_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mqtt_scale", "1x120000"])
    monkeypatch.setattr(_room, "this_machine", lambda: MACHINE)
    assert mqtt_scale.main() == 2
    assert "more workers, or ulimit -Hn" in capsys.readouterr().out


def test_a_picture_has_every_measured_point_and_a_legend() -> None:
    text = picture(
        "T", "us", [Line("a <line>", [(1_000, 1.0), (120_000, 5.0)])], Axis("", is_logarithmic=True)
    )
    assert text.count("<circle") == 2
    assert "a &lt;line&gt;" in text
    assert all(mark in text for mark in (">1k<", ">10k<", ">100k<"))
    assert ">1M<" not in text
