"""Gateways that are bridged with each other: what goes, what comes, and what must not come back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from bridged_gateways import bodies, bridge, gateway, messages, receive, send
from certificates import make_certificate, make_root
from eventually import eventually, soon
from gateway_process import GatewayProcess, free_port
from mqtt_publisher import Publisher

from iotmq.config.config import config_from_table
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_client import Address, MqttClient, MqttClientSettings

ROOT = Path(__file__).resolve().parents[2]
EDGE = ROOT / "deploy" / "edge.toml"


def settings(running: GatewayProcess, client_id: str, **fields: object) -> MqttClientSettings:
    address = Address(host="127.0.0.1", port=running.mqtt_port)
    return MqttClientSettings(address=address, client_id=client_id, **fields)  # type: ignore[arg-type]


async def published(
    running: GatewayProcess, *publications: tuple[str, str], client_id: str = "device", **options: object
) -> None:
    async with MqttClient(settings(running, client_id)) as client:
        for topic, payload in publications:
            await client.publish(topic, payload.encode(), **({"qos": 1} | options))  # type: ignore[arg-type]


def publish(
    running: GatewayProcess, *publications: tuple[str, str], client_id: str = "device", **options: object
) -> None:
    asyncio.run(published(running, *publications, client_id=client_id, **options))


def edge_config(tmp_path: Path, centre_port: int, **changed: str) -> str:
    """The ready-made edge, with a centre that is here."""
    text = EDGE.read_text()
    found = {
        "mqtts://centre.example.com:8883": f"mqtt://127.0.0.1:{centre_port}",
        'user_name = "site-1"\npassword = "change-me"\n': "reconnect_min_s = 0.1\nreconnect_max_s = 0.5\n",
        'data = "/var/lib/iotmq"\n': "",
        **changed,
    }
    for old, new in found.items():
        assert old in text
        text = text.replace(old, new)
    return text


def test_the_ready_made_edge_loses_nothing_while_both_sides_are_killed(tmp_path: Path) -> None:
    centre = gateway(tmp_path, "centre")
    edge = gateway(tmp_path, "site-1", config=edge_config(tmp_path, centre.mqtt_port))
    # At full speed it would be hundreds of thousands of messages.
    publishers = [
        Publisher(edge.mqtt_port, f"device-{n}", f"devices/{n}/telemetry", pause_s=0.05) for n in range(4)
    ]

    async def load() -> None:
        running = [asyncio.ensure_future(each.run()) for each in publishers]

        async def all_have(count: int) -> None:
            await soon(
                lambda: all(len(each.acknowledged) >= count for each in publishers), f"{count} of each"
            )

        await all_have(100)
        await asyncio.to_thread(centre.restart)
        await all_have(200)
        await asyncio.to_thread(centre.kill)
        await all_have(400)
        await asyncio.to_thread(edge.restart)
        await all_have(600)
        await asyncio.to_thread(centre.start)
        await all_have(700)
        await asyncio.to_thread(edge.restart)
        await all_have(800)
        for each in publishers:
            each.finish()
        await asyncio.gather(*running)

    with centre, edge:
        asyncio.run(load())
        wanted = {f"{each.name}-{number}" for each in publishers for number in each.acknowledged}
        eventually(lambda: wanted <= set(bodies(centre)), "all is at the centre")
        found = messages(centre)
    for number in range(len(publishers)):
        topic = f"sites/site-1/devices/{number}/telemetry"
        own = [message for message in found if message.properties["MQTT_TOPIC"] == topic]
        assert len({message.queue_id for message in own}) == 1
        numbers = [int(message.body.decode().rpartition("-")[2]) for message in own]
        firsts = list(dict.fromkeys(numbers))
        # A message that comes again, comes with all behind it.
        assert firsts == sorted(firsts), "in the order in which the device has sent"
        ids = [message.properties["MQTT_USER.iotmq-message"] for message in own]
        assert len(set(ids)) >= len(firsts)
        by_id = {identity: message.body for identity, message in zip(ids, own, strict=True)}
        assert all(by_id[identity] == message.body for identity, message in zip(ids, own, strict=True))


def test_what_services_say_at_the_centre_comes_to_the_devices_of_the_site(tmp_path: Path) -> None:
    centre = gateway(tmp_path, "centre")
    edge = gateway(tmp_path, "site-1", config=edge_config(tmp_path, centre.mqtt_port))

    async def talk() -> None:
        async with (
            MqttClient(settings(edge, "pump")) as pump,
            MqttClient(settings(centre, "service")) as service,
        ):
            await pump.subscribe(("pump/#", 1))
            await service.publish("commands/site-1/pump/open", b"now", qos=1)
            (message,) = await pump.next_batch()
            assert (message.topic, message.payload) == ("pump/open", b"now")
            pump.acknowledge()
            # While the edge is away.
            await asyncio.to_thread(edge.kill)
            await service.publish("commands/site-1/pump/close", b"later", qos=1)
            await asyncio.to_thread(edge.start)
            async with MqttClient(settings(edge, "other")) as other:
                del other
            eventually(lambda: "later" in bodies(edge), "what came meanwhile")

    with centre, edge:
        eventually(lambda: edge.metric("iotmq_bridge_connections") == 1, "connected")
        asyncio.run(talk())


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_bridge_both_ways_sends_nothing_back(tmp_path: Path, version: str) -> None:
    one = gateway(tmp_path, "one")
    both = bridge("one", one.mqtt_port, send(), receive("#"), version=version)
    two = gateway(tmp_path, "two", config=both)
    with one, two:
        eventually(lambda: two.metric("iotmq_bridge_connections") == 1, "connected")
        publish(one, ("a", "at one"))
        publish(two, ("a", "at two"))
        eventually(lambda: bodies(one) == bodies(two) == ["at one", "at two"], "both have both")
        publish(one, ("a", "last"))
        eventually(lambda: "last" in bodies(two), "the last")
        eventually(lambda: two.metric("iotmq_bridge_lag_messages") == 0, "nothing waits")
        assert bodies(one) == bodies(two) == ["at one", "at two", "last"]


def test_two_gateways_that_bridge_to_each_other_both_ways_end_every_loop(tmp_path: Path) -> None:
    one, two = gateway(tmp_path, "one"), gateway(tmp_path, "two")
    for own, other, name in ((one, two, "two"), (two, one, "one")):
        (tmp_path / f"{own.data.name}.toml").write_text(bridge(name, other.mqtt_port, send(), receive("#")))
    with one, two:
        for each in (one, two):
            eventually(lambda each=each: each.metric("iotmq_bridge_connections") == 1, "connected")  # type: ignore[misc]
        publish(one, *(("a", str(number)) for number in range(10)))
        publish(two, *(("b", str(number)) for number in range(10, 20)))
        everything = {str(number) for number in range(20)}
        eventually(lambda: set(bodies(one)) == set(bodies(two)) == everything, "both have all")

        def quiet() -> bool:
            counts = [len(bodies(each)) for each in (one, two)]
            lags = [each.metric("iotmq_bridge_lag_messages") for each in (one, two)]
            return lags == [0, 0] and counts == [len(bodies(each)) for each in (one, two)]

        eventually(quiet, "nothing goes round")
        # Each has its own, and what came over the two bridges between them.
        assert max(len(bodies(one)), len(bodies(two))) <= 3 * len(everything)
        assert one.metric("iotmq_bridge_looped_total") + two.metric("iotmq_bridge_looped_total") > 0


def test_retained_messages_and_their_ends_cross(tmp_path: Path) -> None:
    centre = gateway(tmp_path, "centre")
    edge = gateway(tmp_path, "edge", config=bridge("centre", centre.mqtt_port, send()))

    async def retained() -> list[bytes]:
        async with MqttClient(settings(centre, "late")) as late:
            await late.subscribe(("#", 1))
            await late.publish("end", b"end", qos=1)
            found = []
            while True:
                for message in await late.next_batch():
                    if message.topic == "end":
                        return found
                    found.append(message.payload)

    with centre, edge:
        publish(edge, ("r", "kept"), retain=True)
        eventually(lambda: "kept" in bodies(centre), "it is there")
        eventually(lambda: asyncio.run(retained()) == [b"kept"], "and retained")
        publish(edge, ("r", ""), retain=True)
        eventually(lambda: asyncio.run(retained()) == [], "until it is deleted")


def test_the_centre_puts_a_bridge_below_its_prefix_and_knows_the_devices_behind_it(tmp_path: Path) -> None:
    clients = """
        [[mqtt.bridge_clients]]
        client_id = "edge-*"
        prefix = "sites/%c/"
        is_trusted = true
    """
    centre = gateway(tmp_path, "centre", config=clients)
    edge = gateway(
        tmp_path, "edge", config=bridge("centre", centre.mqtt_port, send(), receive("commands/#", qos=2))
    )
    with centre, edge:
        eventually(lambda: edge.metric("iotmq_bridge_connections") == 1, "connected")
        publish(edge, ("temperature", "20"), client_id="sensor-7")
        (found,) = eventually(lambda: messages(centre), "it is there")
        assert found.properties["MQTT_TOPIC"] == "sites/edge-centre/temperature"
        assert found.properties["MQTT_CLIENT_ID"] == "sensor-7"
        assert found.properties["MQTT_BRIDGE"] == "edge-centre"
        publish(centre, ("sites/edge-centre/commands/go", "yes"), ("commands/go", "another site's"))
        eventually(lambda: "yes" in bodies(edge), "what is for it")
        came = [message for message in messages(edge) if message.body == b"yes"]
        assert came[0].properties["MQTT_TOPIC"] == "commands/go"
        assert "another site's" not in bodies(edge)
        assert centre.metric("iotmq_mqtt_bridges") == 1


def test_an_unknown_device_cannot_take_the_name_of_another(tmp_path: Path) -> None:
    with gateway(tmp_path, "centre") as centre:
        lie = Properties(user_properties=(("iotmq-client-id", "somebody"),))
        publish(centre, ("a", "1"), client_id="liar", properties=lie)
        (found,) = messages(centre)
        assert found.properties["MQTT_CLIENT_ID"] == "liar"
        assert "MQTT_BRIDGE" not in found.properties


def test_messages_of_qos_0_of_an_outage_are_left_out_where_that_is_wanted(tmp_path: Path) -> None:
    centre = gateway(tmp_path, "centre")
    config = bridge("centre", centre.mqtt_port, send(), drops_qos0_offline=True)
    edge = gateway(tmp_path, "edge", config=config)
    with edge:
        publish(edge, ("a", "late 0"), qos=0)
        publish(edge, ("a", "late 1"))
        with centre:
            eventually(lambda: "late 1" in bodies(centre), "what has QoS 1")
            publish(edge, ("a", "live 0"), qos=0)
            eventually(lambda: bodies(centre) == ["late 1", "live 0"], "and what is new")
            assert edge.metric("iotmq_bridge_dropped_total") == 1


def test_a_backlog_goes_at_its_pace(tmp_path: Path) -> None:
    centre = gateway(tmp_path, "centre")
    edge = gateway(tmp_path, "edge", config=bridge("centre", centre.mqtt_port, send(), messages_per_s=200))
    with edge:
        publish(edge, *(("a", f"{number:03}") for number in range(300)))
        with centre:
            eventually(lambda: len(bodies(centre)) >= 50, "it has begun")
            first = len(bodies(centre))
            assert first < 250
            eventually(lambda: len(bodies(centre)) == 300, "all")
            assert [message.body.decode() for message in messages(centre)] == [f"{n:03}" for n in range(300)]


def test_several_connections_keep_the_order_of_each_key(tmp_path: Path) -> None:
    centre = gateway(tmp_path, "centre", "mqtt.receive_max=7")
    edge = gateway(
        tmp_path, "edge", config=bridge("centre", centre.mqtt_port, send(), connections=3, in_flight_max=50)
    )
    with centre, edge:
        publish(edge, *((f"devices/{number % 10}", f"{number:04}") for number in range(1_000)))
        eventually(lambda: len(bodies(centre)) == 1_000, "all are there")
        found = messages(centre)
        for device in range(10):
            own = [m.body.decode() for m in found if m.properties["MQTT_TOPIC"] == f"devices/{device}"]
            assert own == sorted(own)
        assert edge.metric("iotmq_bridge_connections") == 3
        assert edge.metric("iotmq_bridge_reconnects_total") == 0, "the receive maximum was kept"


def test_tls_and_status(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    server = make_certificate(tmp_path, root)
    port = free_port()
    listener = f"""
        [[mqtt.listeners]]
        name = "tls"
        transport = "tls"
        listen_host = "127.0.0.1"
        listen_port = {port}
        certificates = [{{ certificate_file = "{server.certificate}", key_file = "{server.key}" }}]
    """
    centre = gateway(tmp_path, "centre", config=listener)
    away = bridge("away", free_port(), send("none"))
    config = bridge("centre", port, send(), address=f"mqtts://localhost:{port}", tls_ca_file=root.certificate)
    edge = gateway(tmp_path, "edge", config=config + away)

    def status(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "iotmq", "bridges", "status", *words, "--http",
             f"http://127.0.0.1:{edge.ports['http']}"],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip

    with centre, edge:
        publish(edge, ("a", "1"))
        eventually(lambda: bodies(centre) == ["1"], "over TLS")
        eventually(lambda: "connected" in status().stdout, "it is shown")
        shown = status("--json")
        assert shown.returncode == 1, "one is away"
        assert '"bridge":"away","is":"away"' in shown.stdout
        assert '"bridge":"centre","is":"connected"' in shown.stdout


def test_an_alarm_is_on_while_the_oldest_message_is_too_old(tmp_path: Path) -> None:
    centre = gateway(tmp_path, "centre")
    config = bridge("centre", centre.mqtt_port, send(), alarm_age_s=0.5)
    edge = gateway(tmp_path, "edge", config=config)
    with edge:
        publish(edge, ("a", "1"))
        code_and_text = eventually(
            lambda: found if (found := edge.http("/readyz"))[0] != 200 else None, "the alarm"
        )
        assert "1 messages of bridge centre wait" in code_and_text[1]
        assert edge.metric("iotmq_bridge_alarm") == 1
        with centre:
            eventually(lambda: edge.http("/readyz")[0] == 200, "it is over")


def test_bridges_run_in_a_process_of_their_own(tmp_path: Path) -> None:
    centre = gateway(tmp_path, "centre")
    with gateway(tmp_path, "edge") as edge, centre:
        file = tmp_path / "bridges.toml"
        file.write_text(bridge("centre", centre.mqtt_port, send(), receive("commands/#")))
        http = free_port()
        process = subprocess.Popen(
            [sys.executable, "-m", "iotmq", "bridges", "run", "--config", str(file), "--set",
             f"http.listen_port={http}", "--set", f"mqtt.registries={edge.registry}",
             "--set", "mqtt.gateway_name=edge"],
            cwd=ROOT, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            publish(edge, ("a", "1"))
            eventually(lambda: bodies(centre) == ["1"], "it goes")
            publish(centre, ("commands/a", "2"))
            eventually(lambda: "2" in bodies(edge), "it comes")
        finally:
            process.terminate()
            assert process.wait(30) == 0


def test_the_edge_as_it_stands_is_a_valid_configuration() -> None:
    import tomllib

    config = config_from_table(tomllib.loads(EDGE.read_text()))
    assert config.bridges[0].send[0].qos_min == 1
