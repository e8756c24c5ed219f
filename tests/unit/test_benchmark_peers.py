"""The peers of the benchmarks, none started: where they come from, what they are told, what is compared."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from benchmarks import _wire_load, broker_beside_kafka, machine, mqtt_side_by_side, native_side_by_side, peers
from benchmarks.broker_beside_kafka import Found
from benchmarks.mqtt_side_by_side import SCENARIOS, Pair
from benchmarks.peers import __main__ as fetch
from benchmarks.peers import mqtt, native
from benchmarks.peers.server import free_port_beside
from benchmarks.peers.sources import DebianSource, Given, GoProgram, Jars, Wheel, pom

EVERY = [*native.PEERS.values(), *mqtt.PEERS.values()]
# What makes the difference in the files or the command of each.
DURABLE_WORDS = {
    "mosquitto": "persistence true",
    "mosquitto-2.1": "mosquitto_persist_sqlite.so",
    "flashmq": "storage_dir",
    "nanomq": "sqlite {",
    "nats": "sync_interval: always",
    "hivemq": "<mode>file</mode>",
    "redis": "--appendfsync always",
    "rocketmq": "flushDiskType=SYNC_FLUSH",
    "kafka": "log.flush.interval.messages=1",
}


def place_in(directory: Path, setting: str = peers.FAST, **more: bool) -> peers.Place:
    return peers.Place(directory=directory, port=4711, spare_port=4712, setting=setting, **more)  # type: ignore[arg-type]


def text_of(launch: peers.Launch) -> str:
    return "\n".join([" ".join(launch.command), *launch.files.values(), *launch.environment.values()])


def program_of(peer: peers.Peer, directory: Path) -> Path:
    """A path as `find` gives it, with the plug-in that Mosquitto 2.1 is built with."""
    (directory / "src").mkdir()
    (directory / "mosquitto_persist_sqlite.so").touch()
    return directory / "src" / peer.name


@pytest.mark.parametrize("peer", EVERY, ids=lambda peer: f"{peer.name}-{peer.launch.__module__[-4:]}")
def test_a_peer_listens_where_it_is_told_and_keeps_what_it_is_told(peer: peers.Peer, tmp_path: Path) -> None:
    program = program_of(peer, tmp_path)
    texts = {setting: text_of(peer.launch(program, place_in(tmp_path, setting))) for setting in peer.settings}
    assert all("4711" in text and str(program) in text for text in texts.values())
    if peers.DURABLE in texts:
        word = DURABLE_WORDS[peer.name]
        assert word in texts[peers.DURABLE]
        assert word not in texts[peers.FAST]


@pytest.mark.parametrize("peer", EVERY, ids=lambda peer: f"{peer.name}-{peer.launch.__module__[-4:]}")
def test_the_files_of_a_peer_lie_in_its_directory(peer: peers.Peer, tmp_path: Path) -> None:
    launch = peer.launch(program_of(peer, tmp_path), place_in(tmp_path))
    assert all(not Path(path).is_absolute() and ".." not in path for path in launch.files)
    assert all(text.endswith(("\n", ">")) for text in launch.files.values())


@pytest.mark.parametrize(
    "peer", [one for one in mqtt.PEERS.values() if one.has_websocket], ids=lambda one: one.name
)
def test_a_peer_that_has_websockets_is_told_so(peer: peers.Peer, tmp_path: Path) -> None:
    program = program_of(peer, tmp_path)
    plain, web = (
        text_of(peer.launch(program, place_in(tmp_path, is_websocket=is_websocket)))
        for is_websocket in (False, True)
    )
    assert plain != web
    assert "4711" in web


def test_rumqttd_has_a_listener_for_each_version(tmp_path: Path) -> None:
    peer = mqtt.PEERS["rumqttd"]
    assert "[v4.1]" in text_of(peer.launch(tmp_path, place_in(tmp_path)))
    assert "[v5.1]" in text_of(peer.launch(tmp_path, place_in(tmp_path, is_mqtt5=True)))


def test_further_lines_come_last(tmp_path: Path) -> None:
    place = peers.Place(directory=tmp_path, port=1, spare_port=2, more=("listener 3", "max_qos 1"))
    (text,) = mqtt.MOSQUITTO.launch(Path("mosquitto"), place).files.values()
    assert text.endswith("\nlistener 3\nmax_qos 1\n")


def test_mosquitto_without_its_plug_in_cannot_be_durable(tmp_path: Path) -> None:
    program = tmp_path / "src" / "mosquitto"
    with pytest.raises(peers.PeerError, match=r"no mosquitto_persist_sqlite\.so beside"):
        mqtt.PEERS["mosquitto-2.1"].launch(program, place_in(tmp_path, peers.DURABLE))


# Where they come from


def test_a_given_program_is_found_or_it_is_said_how_to_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Given("IOTMQ_PEER_SOME", "Some broker", "some")
    monkeypatch.delenv("IOTMQ_PEER_SOME", raising=False)
    with pytest.raises(peers.PeerError, match=r"Some broker is in no package registry: .*IOTMQ_PEER_SOME"):
        source.find(tmp_path)
    monkeypatch.setenv("IOTMQ_PEER_SOME", str(tmp_path))
    program = tmp_path / "build" / "some"
    program.parent.mkdir()
    program.write_text("no program")
    with pytest.raises(peers.PeerError, match="there is no program some"):
        source.find(tmp_path)
    program.chmod(0o755)
    assert source.find(tmp_path) == program
    monkeypatch.setenv("IOTMQ_PEER_SOME", str(program))
    assert source.find(tmp_path) == program


def test_what_was_not_fetched_is_not_there_and_what_was_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.sources._needs", lambda program, name: None)
    for source, stamp in (
        (Wheel("some==1"), "some==1"),
        (GoProgram("example.org/some", "v1", "some"), "example.org/some@v1"),
        (Jars(("a:b:1", "c:d:2")), "a:b:1\nc:d:2"),
        (DebianSource("main/s/some_1.tar.gz", "0f" * 32, (), {}, "some"), "0f" * 32),
    ):
        directory = tmp_path / type(source).__name__
        with pytest.raises(peers.PeerError, match=f"python -m benchmarks.peers {directory.name}"):
            source.find(directory)
        directory.mkdir()
        (directory / "complete").write_text(stamp)
        source.fetch(directory)
        assert source.find(directory).is_relative_to(directory)
        # Another version is fetched anew.
        (directory / "complete").write_text("of another version")
        with pytest.raises(peers.PeerError, match="has not been fetched"):
            source.find(directory)


def test_maven_is_asked_for_the_jars_of_a_peer() -> None:
    assert "<groupId>a</groupId><artifactId>b</artifactId><version>1</version>" in pom(["a:b:1"])


def test_what_cannot_be_had_is_said_and_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IOTMQ_PEER_FLASHMQ", raising=False)
    assert fetch.main(["flashmq"]) == 1
    assert "FlashMQ: CANNOT BE HAD: FlashMQ is in no package registry" in capsys.readouterr().err
    assert list(peers.those_there([mqtt.PEERS["flashmq"]])) == []
    assert "FlashMQ: SKIPPED: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        fetch.main(["nothing"])


def test_a_peer_without_a_durable_setting_is_not_started_in_it() -> None:
    with (
        pytest.raises(peers.PeerError, match=r"rumqttd .* has no durable setting"),
        peers.started(mqtt.PEERS["rumqttd"], core=None, setting=peers.DURABLE),
    ):
        pass


def test_a_port_has_its_neighbours_free() -> None:
    port = free_port_beside(1, -2)
    for one in (port, port + 1, port - 2):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", one))


# What is compared


def test_a_pair_has_results_of_its_own_and_does_what_its_peer_can() -> None:
    first, other = Pair(mqtt.MOSQUITTO, peers.FAST), Pair(mqtt.PEERS["nats"], peers.DURABLE)
    assert first.scenarios == list(SCENARIOS)
    assert first.key("idle") == "idle"
    assert set(other.scenarios) < set(SCENARIOS)
    assert other.key("idle") == "idle beside nats, durable"
    assert first.refusal(SCENARIOS["qos1_window100_v5"]) == ""
    assert other.refusal(SCENARIOS["qos1_window100_v5"]) == "it has no MQTT 5"
    assert other.refusal(SCENARIOS["idle_websocket"]) == "it has no WebSockets"


def test_every_peer_can_do_what_it_does_by_default() -> None:
    for peer in mqtt.PEERS.values():
        for setting in peer.settings:
            pair = Pair(peer, setting)
            assert [pair.refusal(SCENARIOS[name]) for name in pair.scenarios] == [""] * len(pair.scenarios)


def test_a_summary_compares_iotmq_with_its_peer() -> None:
    rounds = {"nats": [{"messages_per_s": 2.0}], "iotmq": [{"messages_per_s": 5.0}]}
    summary = mqtt_side_by_side._summary("qos1_window1", rounds)
    assert summary["ratios"]["messages_per_s"]["of_medians"] == 2.5
    assert mqtt_side_by_side._rows("qos1_window1", summary, "nats")[0][1:4] == ["2", "5", "2.50x"]


def test_a_case_gets_whole_steps_of_records() -> None:
    step = native_side_by_side.STEP_RECORDS
    assert native_side_by_side.count_for(1.0, 1_024_000) == step
    assert native_side_by_side.count_for(10_000.0, 1_024_000) == 50_000 // step * step
    assert native_side_by_side.count_for(1e9, 1_024_000) == 1_024_000


def test_native_rounds_become_medians_and_a_ratio() -> None:
    rounds = {
        "iotmq": [10.0, 40.0, 30.0],
        "iotmq us/record": [1.0, 2.0, 3.0],
        "nats": [10.0, 10.0, 10.0],
        "nats us/record": [4.0, 4.0, 4.0],
    }
    found = native_side_by_side.compare(rounds, "nats")
    assert found == {"iotmq": 30, "iotmq us/record": 2, "nats": 10, "nats us/record": 4, "ratio": 3}
    rows = native_side_by_side.rows_of(
        native.NATS, peers.FAST, dict.fromkeys(native_side_by_side.CASES, found)
    )
    assert rows[0] == ["NATS JetStream 2.15, fast: produce", "30", "10", "3.00x", "2.00", "4.00"]


def test_kafka_is_compared_by_processor_time() -> None:
    sides = {"iotmq": [Found(2e6, 0.5), Found(3e6, 0.25)], "kafka": [Found(1e6, 1.0), Found(1e6, 1.0)]}
    found = broker_beside_kafka.compare(dict.fromkeys(broker_beside_kafka.CASES, sides))
    assert found["fetch 64 KiB"] == {
        "iotmq": 0.375, "kafka": 1.0, "iotmq records/s": 2.5e6, "kafka records/s": 1e6, "ratio": 0.375,
    }  # fmt: skip
    assert broker_beside_kafka.rows_of("fast", found)[0][:4] == [
        "fast: produce 10 KB",
        "0.375",
        "1.000",
        "0.38x",
    ]


def test_batches_of_ours_are_not_larger_than_those_of_kafka() -> None:
    each = broker_beside_kafka.batch_records(10_000)
    assert each * 100 < 10_000 < (each + 1) * 130
    assert "acks=1" in broker_beside_kafka.producer_words(9, "t", 10_000, 5, peers.FAST)
    assert "acks=all" in broker_beside_kafka.producer_words(9, "t", 10_000, 5, peers.DURABLE)


@pytest.mark.parametrize("size", range(1, 12))
def test_answers_are_counted_by_their_mark_however_they_arrive(size: int) -> None:
    answers = _wire_load.marked(b'"seq":')
    stream = b'MSG a 1 9\r\n{"seq":1}\r\nMSG a 1 10\r\n{"seq":22}\r\n{"se"}{"seq":"seq":'
    counted, rest = 0, b""
    for at in range(0, len(stream), size):
        data = rest + stream[at : at + size]
        count, end = answers(data, len(data))
        counted, rest = counted + count, data[end:]
    assert counted == 4


def test_peers_are_fetched_below_build() -> None:
    assert machine.PEERS == machine.ROOT / "build" / "peers"


def test_a_source_of_debian_is_only_built_when_it_is_the_one_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = tmp_path / "mirror" / "pool"
    pool.mkdir(parents=True)
    (pool / "some_1.orig.tar.gz").write_bytes(b"something else")
    monkeypatch.setattr("benchmarks.peers.sources._needs", lambda program, name: None)
    monkeypatch.setattr("benchmarks.peers.sources._debian_mirror", lambda: f"{tmp_path.as_uri()}/mirror/")
    source = DebianSource("some_1.orig.tar.gz", "0f" * 32, (), {}, "some")
    with pytest.raises(
        peers.PeerError, match=r"some_1\.orig\.tar\.gz has the SHA-256 [0-9a-f]{64}, not 0f0f"
    ):
        source.fetch(tmp_path / "peer")
    needs = DebianSource("some_1.orig.tar.gz", "0f" * 32, (), {"no/such.h": "some-dev"}, "some")
    with pytest.raises(peers.PeerError, match=r"no/such\.h is not installed .*apt install some-dev"):
        needs.fetch(tmp_path / "peer")


def test_a_server_that_is_not_measured_stands_still_meanwhile() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        with peers.standing_still(child.pid):
            assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        assert os.WIFCONTINUED(os.waitpid(child.pid, os.WCONTINUED)[1])
    finally:
        child.kill()
        child.wait()


def test_answers_to_pulls_are_checked_by_their_next_offsets() -> None:
    def answer(offset: int) -> bytes:
        body = b'{"nextBeginOffset":"%d"}' % offset + b"x" * 10
        return len(body).to_bytes(4, "big") + body

    data = bytearray(answer(64) + answer(32) + answer(96)[:-1])
    expected = {b"32", b"64", b"96"}
    count, end = _wire_load._pulled(expected, data, len(data))
    assert (count, end) == (2, len(answer(64) + answer(32)))
    assert expected == {b"96"}
    with pytest.raises(KeyError):
        _wire_load._pulled(expected, data, len(data))
