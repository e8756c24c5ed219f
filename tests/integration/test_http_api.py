"""The HTTP API of a real gateway: every route does what it says, with the role it names."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from http_api_caller import ROUTE_OF, TOKEN_SETTINGS, Caller, Event, Stream

import iotmq
from iotmq.audit_log import AUDIT_TOPIC
from iotmq.client.admin.cursors import encode_cursor
from iotmq.client.transport.message import Message
from iotmq.console.api.route import Role
from iotmq.console.api.stored_messages import BODIES_BYTES_MAX
from iotmq.limits import HTTP_STREAM_WAITING_BYTES_MAX

SETTINGS = TOKEN_SETTINGS + """
[[mqtt.routes]]
filter = "routed/+/state"
topic = "routed"
key = "{1}"
tags = "state"
properties = { unit = "{1}" }
[[mqtt.routes]]
filter = "routed/live"
topic = "routed-live"
store = false
[[mqtt.routes]]
filter = "routed/dropped"
drop = true
[[mqtt.routes]]
filter = "routed/frames"
topic = "routed"
checksum = { algorithm = "modbus" }
[[mqtt.listeners]]
name = "pages"
transport = "ws"
allowed_origins = ["*"]
[[mqtt.listeners]]
name = "others"
transport = "ws"
websocket_path = "/elsewhere"
allowed_origins = ["https://others.example"]
[[mqtt.rewrites]]
filter = "old/#"
pattern = "^old/(.+)$"
template = "routed/$1/state"
"""


class Device:
    """A device; `with` connects it and waits for the answer."""

    def __init__(self, port: int, client_id: str = "") -> None:
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, clean_session=not client_id)
        self._port = port
        self.got: dict[str, bytes] = {}
        self.granted = 0
        self.losses = 0
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect

    def __enter__(self) -> Device:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        eventually(self._client.is_connected, "the device is connected")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: bytes) -> None:
        self._client.publish(topic, payload, qos=1).wait_for_publish(30)

    def subscribe(self, topic_filter: str) -> None:
        before = self.granted
        self._client.subscribe(topic_filter, qos=1)
        eventually(lambda: self.granted > before, "the subscription is granted")

    def messages(self, count: int) -> dict[str, bytes]:
        eventually(lambda: len(self.got) >= count, "the messages")
        return self.got

    def wait_closed(self) -> None:
        eventually(lambda: self.losses > 0, "the device is disconnected")

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.got[message.topic] = message.payload

    def _on_subscribe(self, *_: object) -> None:
        self.granted += 1

    def _on_disconnect(self, *_: object) -> None:
        # It would come back by itself.
        self.losses += 1
        self._client.disconnect()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    directory = tmp_path_factory.mktemp("api")
    config = directory / "iotmq.toml"
    config.write_text(SETTINGS)
    with GatewayProcess(directory / "data", "store.hot_bytes=1048576", config=config) as gateway:
        yield Caller(gateway)


def connect(api: Caller) -> iotmq.SyncClient:
    return iotmq.connect_sync(f"iotmq://127.0.0.1:{api.gateway.ports['registry']}")


def test_a_published_message_comes_to_subscribers_and_is_read_back(api: Caller) -> None:
    with Device(api.gateway.ports["mqtt"]) as device:
        device.subscribe("plant/#")
        first = api.get("publish", body={"mqtt_topic": "plant/1/cmd", "payload": "on é"})
        assert (first["status"], first["topic"], first["broker"]) == ("SEND_OK", "mqtt", "broker-a")
        api.get("publish_raw", "plant/1//raw", query="qos=0", raw=b"\x00\xff")
        bad = {"mqtt_topic": "plant/+"}
        base64_text = base64.b64encode(b"\x01\x02").decode()
        many = api.get(
            "publish_many",
            body={
                "items": [
                    {"mqtt_topic": "plant/2", "payload_json": {"t": [1, 2.5]}},
                    bad,
                    {"mqtt_topic": "plant/3", "payload_base64": base64_text},
                    {"mqtt_topic": "plant/4", "payload": "a", "payload_base64": base64_text},
                ]
            },
        )
        assert many["stored"] == 2
        assert [each.get("problem", {}).get("status") for each in many["items"]] == [None, 422, None, 422]
        got = device.messages(4)
    assert got == {
        "plant/1/cmd": "on é".encode(),
        "plant/1//raw": b"\x00\xff",
        "plant/2": b'{"t": [1, 2.5]}',
        "plant/3": b"\x01\x02",
    }
    (read,) = api.get("read_messages", "mqtt", query=f"message_id={first['message_id']}")["items"]
    assert (read["payload"], read["mqtt_topic"], read["payload_bytes"]) == ("on é", "plant/1/cmd", 5)
    stored = many["items"][2]["stored"]
    (one,) = api.get("read_messages", "mqtt", query=f"message_id={stored['message_id']}")["items"]
    assert (one["queue"], one["offset"], one["mqtt_topic"], one["keys"]) == (
        stored["queue"],
        stored["offset"],
        "plant/3",
        ["plant/3"],
    )
    assert {name: one["properties"][name] for name in ("MQTT_QOS", "UNIQ_KEY", "CLUSTER")} == {
        "MQTT_QOS": "1",
        "UNIQ_KEY": stored["message_id"],
        "CLUSTER": "DefaultCluster",
    }
    place = read["offset_message_id"]
    assert api.get("show_message", place, query="payload_bytes_max=4")["payload"] == "on "
    (raw,) = api.get("read_messages", "mqtt", query="key=plant/1//raw")["items"]
    assert raw["payload_base64"] == "AP8="


def test_what_is_published_lands_where_a_device_would_have_put_it(api: Caller) -> None:
    with Device(api.gateway.ports["mqtt"]) as device:
        device.subscribe("#")
        for topic in ("routed/7/state", "old/8", "unrouted/1"):
            device.publish(topic, b"by a device")
            api.get("publish_raw", topic, raw=b"by http")
        live = api.get("publish", body={"mqtt_topic": "routed/live", "payload": "now"})
        assert (live["status"], live["topic"], live["offset"]) == ("NOT_STORED", "routed-live", None)
        eventually(lambda: device.got.get("routed/live") == b"now", "the message that is not stored")
    for topic, key in (("routed", "7"), ("routed", "8"), ("mqtt", "unrouted/1")):
        found = api.get("read_messages", topic, query=f"key={key}")["items"]
        assert {each["payload"] for each in found} == {"by a device", "by http"}
        alike = [
            {name: each.get(name) for name in ("topic", "queue", "mqtt_topic", "keys", "tags")}
            | {name: each["properties"].get(name) for name in ("unit", "MQTT_QOS", "MQTT_RETAIN")}
            for each in found
        ]
        assert alike[0] == alike[1]
    dropped = api.get("publish", body={"mqtt_topic": "routed/dropped"})
    assert (dropped["status"], dropped["topic"]) == ("NOT_STORED", "")
    assert "drops" in dropped["why"]
    aside = api.get("publish_raw", "routed/frames", raw=b"frame")
    assert (aside["status"], aside["topic"]) == ("SEND_OK", "mqtt-quarantine")
    assert "checksum" in aside["why"]
    named = api.get("publish", body={"mqtt_topic": "routed/7/state", "topic": "mqtt"})
    assert named["topic"] == "mqtt"
    assert api.ask("publish", body={"mqtt_topic": "$SYS/x"}).problem == "invalid"


def test_a_request_with_a_key_of_its_own_is_done_once(api: Caller) -> None:
    once = {"Idempotency-Key": "order-7"}
    first = api.get("publish_raw", "once/1", raw=b"a", headers=once)
    assert api.get("publish_raw", "once/1", raw=b"a", headers=once) == first
    assert api.get("publish", body={"mqtt_topic": "once/1", "payload": "a"}, headers=once) == first
    assert api.get("publish_raw", "once/1", raw=b"b", headers=once)["offset"] > first["offset"]
    assert api.get("publish_raw", "once/2", raw=b"a", headers=once)["message_id"] != first["message_id"]
    assert api.get("publish_raw", "once/1", raw=b"a", headers=once, role=Role.ADMINISTRATOR) != first
    api.get("put_topic", "once-topic", body={"queues": 1})
    sent = [api.get("send", "once-topic", body={"payload": "x"}, headers=once) for _ in range(2)]
    assert sent[0] == sent[1]
    body = {"items": [{"mqtt_topic": f"once/{number}", "payload": "x"} for number in range(20)]}
    many = [api.get("publish_many", body=body, headers=once) for _ in range(2)]
    assert many[0] == many[1]
    assert len({each["stored"]["message_id"] for each in many[0]["items"]}) == 20
    late = {"payload": "late", "delay_ms": 3_600_000}
    sent = [api.get("send", "once-topic", body=late, headers=once) for _ in range(2)]
    assert sent[0] == sent[1]
    assert (sent[0]["status"], sent[0]["offset"]) == ("SEND_OK", None)
    (waiting,) = api.get("list_delayed", query="topic=once-topic")["items"]
    assert waiting["message_id"] == sent[0]["message_id"]
    api.get("cancel_delayed", "once-topic", waiting["message_id"])
    soon = {"payload": "soon", "delay_ms": 1}
    sent = [api.get("send", "once-topic", body=soon, headers=once)]

    def payloads() -> list[str]:
        return [each["payload"] for each in api.get("read_messages", "once-topic", query="offset=0")["items"]]

    eventually(lambda: "soon" in payloads(), "the message has come")
    # It is known where it has come to, and does not wait once more.
    assert api.get("send", "once-topic", body=soon, headers=once) == sent[0]
    assert api.get("list_delayed", query="topic=once-topic")["items"] == []
    assert payloads() == ["x", "soon"]
    assert api.ask("publish", body={"mqtt_topic": "a"}, headers={"Idempotency-Key": "x" * 256}).status == 422


def test_retained_messages_are_listed_and_ended(api: Caller) -> None:
    for number in range(3):
        api.get("publish_raw", f"shelf/{number}", query="retain=true", raw=b"%d" % number)
    pages = api.pages("list_retained", query="filter=shelf/%2B&limit=2")
    assert [[each["mqtt_topic"] for each in page] for page in pages] == [["shelf/0", "shelf/1"], ["shelf/2"]]
    for number in range(2):
        api.get("publish_raw", f"long/{number}/{'x' * 3900}", query="retain=true", raw=b"1")
    pages = api.pages("list_retained", query="filter=long/%23&limit=1&payload_bytes_max=0")
    assert [each["mqtt_topic"][:7] for page in pages for each in page] == ["long/0/", "long/1/"]
    assert api.get("delete_retained", "shelf/1") == {"brokers": ["broker-a"]}
    eventually(
        lambda: len(api.get("list_retained", query="filter=shelf/%23")["items"]) == 2, "the end of the second"
    )
    assert api.ask("delete_retained", "shelf/1").problem == "not-found"
    assert api.ask("list_retained", query="filter=a%23").body["errors"][0]["parameter"] == "filter"


def test_a_stream_has_what_is_stored_and_goes_on_where_its_reader_was(api: Caller) -> None:
    assert api.ask("stream_messages", query="filter=a%23").body["errors"][0]["parameter"] == "filter"
    wrong = api.ask("stream_messages", query="filter=a&since=nothing")
    assert wrong.body["errors"][0]["parameter"] == "since"
    with Stream(api, "filter=live/%2B/t&payload_bytes_max=3") as stream, Stream(api, "filter=%23") as other:
        assert [each.kind for each in (*stream.events(1), *other.events(1))] == ["open", "open"]
        for number in range(3):
            api.get("publish_raw", f"live/{number}/t", raw=b"%d-long" % number)
            api.get("publish_raw", f"live/{number}/other", raw=b"x")
        events = stream.events(3)
        everything = other.events(6)
    assert [(each.data["mqtt_topic"], each.data["payload"]) for each in events] == [
        (f"live/{number}/t", f"{number}-l") for number in range(3)
    ]
    assert [each.id for each in everything[::2]] == [each.id for each in events]
    assert everything[0].data["payload"] == "0-long"
    api.get("publish_raw", "live/3/t", raw=b"3")
    with Stream(api, "filter=live/%2B/t", {"Last-Event-ID": events[1].id}) as stream:
        first, *rest = stream.events(3)
        assert (first.kind, first.id) == ("open", events[1].id)
        assert [each.data["mqtt_topic"] for each in rest] == ["live/2/t", "live/3/t"]
        api.get("publish_raw", "live/4/t", raw=b"4")
        assert stream.events(1)[0].data["mqtt_topic"] == "live/4/t"
    with Stream(api, f"filter=live/%2B/t&since={quote(rest[1].id)}") as stream:
        assert [each.data["mqtt_topic"] for each in stream.events(2)[1:]] == ["live/4/t"]
    with Stream(api, "filter=live/%2B/t&since=broker-a%3D7") as stream:
        gap = stream.events(2)[1]
        assert (gap.kind, gap.data["broker"], gap.data["from"]) == ("gap", "broker-a", 7)
        assert gap.data["to"] > 7


def test_a_reader_that_comes_back_late_gets_all_it_has_missed_at_its_own_pace(api: Caller) -> None:
    with Stream(api, "filter=late/%2B") as stream:
        place = stream.events(1)[0].id
    # Most of it is on the disk alone, as far as the broker knows.
    size = HTTP_STREAM_WAITING_BYTES_MAX // 4
    for number in range(12):
        api.get("publish_raw", f"late/{number}", raw=random.randbytes(size))
    with Stream(api, f"filter=late/%2B&payload_bytes_max={size}&since={quote(place)}") as stream:
        events = stream.events(13)[1:]
        api.get("publish_raw", "late/12", raw=b"")
        events += stream.events(1)
    assert [each.data["mqtt_topic"] for each in events] == [f"late/{number}" for number in range(13)]
    assert {each.data["payload_bytes"] for each in events[:-1]} == {size}


def test_topics_are_made_changed_scaled_and_deleted(api: Caller) -> None:
    assert api.get("put_topic", "api-topic", body={"queues": 3}) == {"brokers": ["broker-a"]}
    listed = api.get("list_topics", query="match=API-t")["items"]
    assert [(each["name"], each["queues"], each["is_system"]) for each in listed] == [("api-topic", 3, False)]
    sent = api.get(
        "send", "api-topic", body={"payload": "1", "key": "k", "tags": "t", "properties": {"a": "b"}}
    )
    detail = api.get("show_topic", "api-topic")
    assert [(each["queue"], each["state"]) for each in detail["queues"]] == [
        (0, "open"),
        (1, "open"),
        (2, "open"),
    ]
    assert sum(each["end"] for each in detail["queues"]) == 1
    found = api.get("read_messages", "api-topic", query=f"queue={sent['queue']}&from_ms=0")
    assert found["items"][0]["properties"]["a"] == "b"
    assert found["next_offset"] == 1
    frozen = api.get("freeze_queues", "api-topic", body={"queues": [2], "is_frozen": True})
    assert frozen["queues"][2]["state"] == "frozen"
    assert (
        api.get("freeze_queues", "api-topic", body={"queues": [2], "is_frozen": False})["queues"][2]["state"]
        == "open"
    )
    scaled = api.get("scale_topic", "api-topic", body={"queues": 5})
    assert scaled["topic"]["queues"] == 5
    assert api.get("scale_topic", "api-topic", body={"queues": 5}) == scaled
    system = api.get("list_topics", query="has_system=true&limit=1000")["items"]
    assert AUDIT_TOPIC in {each["name"] for each in system if each["is_system"]}
    assert api.get("delete_topic", "api-topic") == {"brokers": ["broker-a"]}
    assert api.ask("show_topic", "api-topic").problem == "not-found"


def test_payloads_of_an_answer_have_a_limit_however_small_they_are_stored(api: Caller) -> None:
    api.get("put_topic", "dense", body={"queues": 1})
    size = 1024 * 1024
    count = BODIES_BYTES_MAX // size + 2
    with connect(api) as client, client.producer("dense") as producer:
        for _ in range(count):
            producer.send(Message("dense", b"z" * size, key="dense"))
    cut = f"limit=500&payload_bytes_max={size}"
    first = api.get("read_messages", "dense", query=f"offset=0&{cut}")
    assert [len(each["payload"]) for each in first["items"]] == [size] * (count - 2)
    rest = api.get("read_messages", "dense", query=f"offset={first['next_offset']}&{cut}")
    assert [each["offset"] for each in rest["items"]] == [count - 2, count - 1]
    by_key = api.get("read_messages", "dense", query=f"key=dense&{cut}")["items"]
    assert ["payload" in each for each in by_key] == [True] * (count - 2) + [False] * 2
    assert "by itself" in by_key[-1]["problem"]
    alone = api.get("show_message", by_key[-1]["offset_message_id"])
    assert (len(alone["payload"]), "problem" in alone) == (size, False)
    elsewhere = "C0000201" + by_key[-1]["offset_message_id"][8:]
    assert api.ask("show_message", elsewhere).problem == "not-found"


def test_topics_of_the_gateway_are_its_own(api: Caller) -> None:
    forged = {"payload": '{"time_ms": 1, "event": "administered", "source": "x", "account": "root"}'}
    through = {"mqtt_topic": "a", "topic": AUDIT_TOPIC, **forged}
    for role in (Role.OPERATOR, Role.ADMINISTRATOR):
        assert api.ask("send", AUDIT_TOPIC, body=forged, role=role).problem == "forbidden"
        assert api.ask("publish", body=through, role=role).problem == "forbidden"
        assert api.ask("publish_raw", "a", query=f"topic={AUDIT_TOPIC}", role=role).problem == "forbidden"
        (outcome,) = api.get("publish_many", body={"items": [through]}, role=role)["items"]
        assert outcome["problem"]["status"] == 403
    for name in ("$SYS/broker/forged", "$iotmq/bans/client/eg==", "a/+"):
        hidden = {"payload": "x", "properties": {"MQTT_TOPIC": name}}
        assert api.ask("send", "mqtt", body=hidden).problem == "invalid"
        assert api.ask("publish", body={"mqtt_topic": name, "topic": "mqtt"}).problem == "invalid"
    # Nor by way of dead letters that say they had come from there.
    sent = api.get("send", "%DLQ%forger", body={**forged, "properties": {"RETRY_TOPIC": AUDIT_TOPIC}})
    (letter,) = api.get("list_dead_letters", "forger")["items"]
    place = letter["message"]["offset_message_id"]
    resent = api.get("resend_dead_letters", "forger", body={"message_ids": [sent["message_id"]]})
    assert resent == {"sent": 0, "left_message_ids": [place]}
    assert api.ask("resend_dead_letter", "forger", place, body={}).problem == "invalid"
    assert api.ask("resend_dead_letter", "forger", place, body={"topic": AUDIT_TOPIC}).problem == "forbidden"
    assert api.get("list_audit_records", query="account=root")["items"] == []
    assert api.ask("put_topic", AUDIT_TOPIC, body={"is_writable": False}).problem == "forbidden"
    assert api.ask("scale_topic", AUDIT_TOPIC, body={"queues": 8}).problem == "forbidden"
    frozen = {"queues": [0], "is_frozen": True}
    assert api.ask("freeze_queues", AUDIT_TOPIC, body=frozen).problem == "forbidden"
    queues = api.get("show_topic", AUDIT_TOPIC)["topic"]["queues"]
    assert api.get("put_topic", AUDIT_TOPIC, body={"queues": queues}, role=Role.ADMINISTRATOR)


def test_lists_are_read_page_by_page(api: Caller) -> None:
    for number in range(5):
        api.get("put_topic", f"page-{number}", body={"queues": 1})
    pages = api.pages("list_topics", query="match=page-&limit=2")
    assert [[each["name"] for each in page] for page in pages] == [
        ["page-0", "page-1"],
        ["page-2", "page-3"],
        ["page-4"],
    ]
    first = api.ask("list_topics", query="match=page-&limit=2&fields=name,queues")
    assert first.body["items"] == [{"name": f"page-{number}", "queues": 1} for number in range(2)]
    target = re.fullmatch(r"<(\?.+)>; rel=\"next\"", first.headers["link"])
    assert target is not None
    second = api.ask("list_topics", query=target[1].removeprefix("?"))
    assert second.body["items"] == [{"name": f"page-{number}", "queues": 1} for number in (2, 3)]
    assert api.ask("list_topics", query="fields=name,size").body["errors"][0]["parameter"] == "fields"
    assert api.ask("list_topics", query="cursor=%25%25").problem == "invalid"


def test_a_group_is_shown_moved_paused_and_deleted(api: Caller) -> None:
    api.get("put_topic", "group-topic", body={"queues": 1})
    with connect(api) as client:
        producer = client.producer()
        producer.start()
        for number in range(10):
            producer.send(Message("group-topic", b"%d" % number))
        consumer = client.pull_consumer("api-group")
        consumer.subscribe("group-topic")
        consumer.start()
        got = 0
        while got < 4:
            got += len(consumer.getmany(timeout_ms=5000, records_max=4 - got))
        consumer.commit()
        members = api.get("show_group", "api-group")["consumers"]
        assert [each["language"] for each in members] != []
        read = api.get("show_consumer", "api-group", members[0]["client_id"])["queues"]
        assert {"topic": "group-topic", "broker": "broker-a", "queue": 0} in read
    assert api.ask("show_consumer", "api-group", "nobody").problem == "not-found"
    shown = api.get("show_group", "api-group")
    assert (shown["group"]["behind"], shown["consumers"]) == (6, [])
    queues = [each for each in shown["queues"] if each["topic"] == "group-topic"]
    assert [(each["consumed"], each["end"]) for each in queues] == [(4, 10)]
    listed = {each["name"] for each in api.get("list_groups", query="limit=1000")["items"]}
    assert listed & {"api-group", "TOOLS_CONSUMER"} == {"api-group"}
    of_system = api.get("list_groups", query="limit=1000&has_system=true")["items"]
    assert {each["name"] for each in of_system} > listed | {"TOOLS_CONSUMER"}
    preview = api.get(
        "move_group", "api-group", body={"topic": "group-topic", "to_end": True, "is_preview": True}
    )
    assert (preview["skipped"], preview["repeated"], preview["is_preview"]) == (6, 0, True)
    assert api.get("show_group", "api-group")["group"]["behind"] == 6
    moved = api.get("move_group", "api-group", body={"topic": "group-topic", "to_end": True})
    assert moved["items"] == preview["items"]
    assert api.get("show_group", "api-group")["group"]["behind"] == 0
    again = api.get("move_group", "api-group", body={"topic": "group-topic", "to_ms": 0})
    assert again["repeated"] == 10
    assert api.ask("move_group", "api-group", body={"topic": "group-topic"}).problem == "invalid"
    assert api.get("change_group", "api-group", body={"is_consuming": False}) == {"brokers": ["broker-a"]}
    assert api.get("delete_group", "api-group") == {"brokers": ["broker-a"]}
    assert api.ask("show_group", "api-group").problem == "not-found"


def test_dead_letters_are_listed_and_sent_again(api: Caller) -> None:
    api.get("put_topic", "letters", body={"queues": 1})
    api.get("change_group", "letter-group", body={"retries_max": 0})
    with connect(api) as client:
        with client.producer() as producer:
            producer.send(Message("letters", b"bad", key="order-1"))

        def fail(_messages: object) -> None:
            raise ValueError("cannot be read")

        consumer = client.push_consumer("letter-group", fail)
        consumer.subscribe("letters")
        consumer.start()
        letters: list[Any] = []

        def is_given_up() -> bool:
            reply = api.ask("list_dead_letters", "letter-group")
            letters[:] = reply.body["items"] if reply.status == 200 else []
            return bool(letters)

        eventually(is_given_up, "a dead letter")
        consumer.stop()
    (letter,) = letters
    assert (letter["original_topic"], letter["message"]["payload"]) == ("letters", "bad")
    resent = api.get(
        "resend_dead_letters", "letter-group", body={"message_ids": [letter["message"]["message_id"]]}
    )
    assert resent == {"sent": 1, "left_message_ids": []}
    found = api.get("read_messages", "letters", query="offset=0")
    assert [each["payload"] for each in found["items"]] == ["bad", "bad"]
    for name in ("list_dead_letters", "export_dead_letters", "show_replay", "stop_replay"):
        assert api.ask(name, "nobody").problem == "not-found"
    assert api.ask("replay_dead_letters", "nobody", body={}).problem == "not-found"
    place = letter["message"]["offset_message_id"]
    stored = api.get(
        "resend_dead_letter",
        "letter-group",
        place,
        body={"payload_base64": "Z29vZA==", "key": "order-2", "properties": {"mended": "yes"}},
    )
    (edited,) = api.get("read_messages", "letters", query=f"offset={stored['offset']}")["items"]
    assert (edited["payload"], edited["keys"], edited["topic"]) == ("good", ["order-2"], "letters")
    assert edited["properties"]["mended"] == "yes"
    assert edited["properties"]["ORIGIN_MESSAGE_ID"] == letter["original_message_id"]
    both = {"payload": "a", "payload_base64": "Yg=="}
    assert api.ask("resend_dead_letter", "letter-group", place, body=both).problem == "invalid"
    assert api.ask("resend_dead_letter", "another", place, body={}).problem == "not-found"


def test_dead_letters_are_chosen_exported_and_replayed_at_a_rate(api: Caller) -> None:
    for topic in ("spoilt", "%DLQ%spoiling"):
        api.get("put_topic", topic, body={"queues": 1})
    with connect(api) as client, client.producer() as producer:
        for number in range(20):
            topic, key = ("spoilt", f"k{number}") if number else ("elsewhere", "k0")
            properties = {"RETRY_TOPIC": topic}
            producer.send(Message("%DLQ%spoiling", b"%d" % number, key=key, properties=properties))
    query = "original_topic=spoilt&key=k7"
    (found,) = api.get("list_dead_letters", "spoiling", query=query)["items"]
    assert found["message"]["payload"] == "7"
    (line,) = api.ask("export_dead_letters", "spoiling", query=query).body.splitlines()
    assert json.loads(line)["body"] == "7"
    assert len(api.ask("export_dead_letters", "spoiling").body.splitlines()) == 20
    assert api.ask("export_dead_letters", "spoiling", query="key=none").body == b""

    def replayed() -> Any:
        replay = api.get("show_replay", "spoiling")
        return replay if replay["state"] == "done" else None

    order = {"original_topic": "spoilt", "per_second": 0.01}
    begun = api.get("replay_dead_letters", "spoiling", body=order)
    assert (begun["state"], begun["total"], begun["by"]) == ("running", 20, "operator")
    assert api.ask("replay_dead_letters", "spoiling", body=order).problem == "conflict"
    eventually(lambda: api.get("show_replay", "spoiling")["sent"] == 1, "the first one")
    stopped = api.get("stop_replay", "spoiling")
    assert (stopped["state"], stopped["sent"]) == ("stopped", 1)
    assert api.get("replay_dead_letters", "spoiling", body=order | {"per_second": None})["per_second"] is None
    done = eventually(replayed, "the replay is done")
    # The one of another topic, passed over, holds the progress back: the first one went once more.
    assert (done["seen"], done["sent"], done["left"]) == (20, 19, 0)
    found = api.get("read_messages", "spoilt", query="offset=0")
    assert [each["payload"] for each in found["items"]] == ["1", *(str(number) for number in range(1, 20))]


def test_sessions_are_listed_shown_kicked_and_ended(api: Caller) -> None:
    port = api.gateway.ports["mqtt"]
    with Device(port, "pump/7") as device:
        device.subscribe("in/#")
        with Device(port, "pump/8") as other:
            other.subscribe("$share/g/jobs")
            first = api.get("list_sessions", query="prefix=pump/&limit=1")
            second = api.get("list_sessions", query=f"prefix=pump/&limit=1&cursor={first['next']}")
            assert [each["client_id"] for page in (first, second) for each in page["items"]] == [
                "pump/7",
                "pump/8",
            ]
            assert second["next"] is None
            assert [each["share"] for each in api.get("list_shares")["items"]] == ["$share/g/jobs"]
        state = api.get("show_session", "pump/7")
        assert [each["topic_filter"] for each in state["filters"]] == ["in/#"]
        assert state["front_end"]
        assert api.get("kick_client", "pump/7") == {"brokers": ["broker-a"]}
        device.wait_closed()
    eventually(lambda: not api.get("show_session", "pump/7")["front_end"], "the client is away")
    assert api.get("end_session", "pump/7") == {"brokers": ["broker-a"]}
    assert api.ask("show_session", "pump/7").problem == "not-found"
    assert api.ask("kick_client", "pump/7").problem == "not-found"


def test_connected_clients_are_listed_shown_and_disconnected(api: Caller) -> None:
    port = api.gateway.ports["mqtt"]
    with Device(port, "valve/7") as device, Device(port, "valve/8") as other:
        device.subscribe("open/#")
        first = api.get("list_clients", query="client_id=valve/*&sort=-subscriptions&limit=1")
        assert (first["matched"], first["problems"]) == (2, {})
        second = api.get(
            "list_clients",
            query=f"client_id=valve/*&sort=-subscriptions&limit=1&cursor={first['next']}",
        )
        rows = [*first["items"], *second["items"]]
        assert [(row["client_id"], row["subscriptions"], row["version"]) for row in rows] == [
            ("valve/7", 1, "3.1.1"),
            ("valve/8", 0, "3.1.1"),
        ]
        assert second["next"] is None
        few = "client_id=valve/*&subscriptions_min=1&is_kept=true&version=3.1.1&connected_from_ms=1"
        assert api.get("list_clients", query=few)["matched"] == 1
        assert api.ask("list_clients", query="cursor=eHg").body["errors"][0]["parameter"] == "cursor"
        assert api.ask("list_clients", query="sort=size").problem == "invalid"
        shown = api.get("show_client", "valve/7")
        assert [each["topic_filter"] for each in shown["subscriptions"]] == ["open/#"]
        assert api.ask("show_client", "nobody").problem == "not-found"
        listed = api.get("list_subscriptions", query="topic=open/1&client_id=valve/*")
        assert [(each["client_id"], each["topic_filter"]) for each in listed["items"]] == [
            ("valve/7", "open/#")
        ]
        assert api.ask("list_subscriptions", query="cursor=eHg").problem == "invalid"
        assert api.get("list_client_subscriptions", "valve/7")["is_connected"]
        assert api.get("list_slow_subscribers", query="by=dropped")["items"] == []
        assert api.ask("list_slow_subscribers", query="by=user").problem == "invalid"

        wanted = {"client_id": "valve/*"}
        tried = api.get("kick_clients", body={"filter": wanted, "is_dry_run": True})
        assert tried == {"matched": 2, "kicked": 0, "client_ids": ["valve/7", "valve/8"], "problems": {}}
        assert api.ask("kick_clients", body={"filter": wanted, "limit": 1}).problem == "conflict"
        assert api.ask("kick_clients", body={}).problem == "invalid"
        assert api.ask("kick_clients", body={"client_ids": []}).problem == "invalid"
        assert api.get("kick_clients", body={"client_ids": ["valve/8", "nobody"]})["kicked"] == 1
        other.wait_closed()
        assert api.get("disconnect_client", "valve/7")["kicked"] == 1
        device.wait_closed()
    assert api.ask("disconnect_client", "valve/7").problem == "not-found"
    api.get("publish_raw", "open/3", raw=b"turn it")
    queue = api.get("list_client_queue", "valve/7", query="topic_filter=open/%23&payload_bytes_max=4")
    assert (queue["behind"], queue["next"], queue["problems"], queue["left_out"]) == (1, None, {}, 0)
    assert [(each["mqtt_topic"], each["payload"]) for each in queue["items"]] == [("open/3", "turn")]
    assert queue["is_in_flight"] == [False]
    assert api.ask("list_client_queue", "valve/7", query="topic_filter=else").problem == "not-found"
    away = api.get("list_client_subscriptions", "valve/7")
    assert (away["is_connected"], [each["topic_filter"] for each in away["items"]]) == (False, ["open/#"])
    assert api.ask("list_client_subscriptions", "nobody").problem == "not-found"
    assert api.get("list_refused_clients", query="address=127.*")["problems"] == {}


def test_bans_and_delayed_messages_are_made_listed_and_ended(api: Caller) -> None:
    api.get("put_ban", "network", "192.0.2.0/24", body={"reason": "storm"})
    (ban,) = api.get("list_bans")["items"]
    assert (ban["kind"], ban["value"], ban["reason"], ban["by"]) == (
        "network",
        "192.0.2.0/24",
        "storm",
        "operator",
    )
    api.get("remove_ban", "network", "192.0.2.0/24")
    assert api.get("list_bans")["items"] == []
    refused = api.ask("put_ban", "address", "no address", body={})
    assert refused.problem == "invalid"
    assert refused.body["errors"][0]["parameter"] == "value"
    api.get("put_topic", "later", body={"queues": 1})
    sent = api.get("send", "later", body={"payload": "x", "delay_ms": 3_600_000})
    (waiting,) = api.get("list_delayed", query="topic=later")["items"]
    assert waiting["message_id"] == sent["message_id"]
    assert api.get("cancel_delayed", "later", sent["message_id"]) == {"message_id": sent["message_id"]}
    assert api.ask("cancel_delayed", "later", sent["message_id"]).problem == "not-found"


def test_brokers_and_front_ends_are_shown_and_drained(api: Caller) -> None:
    (broker,) = api.get("list_brokers")["items"]
    assert broker["address"] == f"127.0.0.1:{api.gateway.ports['broker']}"
    assert int(api.get("show_broker", "broker-a")["facts"]["msgPutTotalTodayNow"]) >= 0
    assert api.get("show_broker", "broker-a")["replication"] is None, "nobody copies its log"
    assert api.ask("show_broker", "nobody").problem == "not-found"
    (front_end,) = api.get("list_front_ends")["items"]
    name = front_end["name"]
    api.get("drain_front_end", name, body={"is_draining": True, "per_second": 10})
    assert api.get("list_front_ends")["items"][0]["is_draining"]
    api.get("drain_front_end", name, body={"is_draining": False})
    assert api.ask("drain_front_end", "nobody", body={"is_draining": True}).problem == "not-found"


def test_browsers_are_told_the_listeners_for_them(api: Caller) -> None:
    listed = {each.pop("name"): each for each in api.get("list_websockets")["items"]}
    assert listed.keys() == {"pages", "others"}
    assert all(each.pop("port") for each in listed.values())
    assert listed["pages"] == {"scheme": "ws", "path": "/mqtt", "is_allowed": True}
    assert listed["others"] == {"scheme": "ws", "path": "/elsewhere", "is_allowed": False}


def test_the_history_of_metrics_is_that_of_a_process(api: Caller) -> None:
    names = [each["name"] for each in api.get("list_series", query="process=broker-a")["items"]]
    assert names == [each["name"] for each in api.get("list_series", query="process=local")["items"]]
    query = "series=iotmq_mqtt_connections&series=iotmq_mqtt_published_total&from_ms=1&step_s=60"
    for process in ("", "&process=broker-a", "&process=local"):
        found = api.get("show_history", query=query + process)
        assert (found["step_s"], found["count"]) == (60, 1_440)
    assert api.ask("show_history", query="series=x&process=nobody").problem == "not-found"
    assert api.ask("show_history").problem == "invalid"
    assert api.ask("show_history", query="series=x&step_s=11").problem == "invalid"
    later = "series=x&from_ms=9007199254740991"
    assert api.ask("show_history", query=later).problem == "invalid"
    assert api.ask("show_history", query=later + "&process=broker-a").problem == "invalid"


def test_statistics_are_those_of_all_brokers(api: Caller) -> None:
    found = api.get("show_topic_statistics", query="step=hour")
    assert (found["step_ms"], found["count"]) == (3_600_000, 60)
    assert (found["steps"], found["problems"]) == ([], {})
    named = api.get("show_group_statistics", query="step=day&name=a&name=")
    assert [each["name"] for each in named["steps"]] == ["a", ""]
    assert all(len(column) == 60 for each in named["steps"] for column in each["counts"].values())
    assert api.get("show_client_statistics", query="limit=1&from_ms=1")["sums"] == []
    assert api.ask("show_client_statistics", query="step=week").problem == "invalid"
    assert api.ask("show_client_statistics", query="name=a&from_ms=1").problem == "invalid"


def test_a_trace_is_begun_read_downloaded_ended_and_deleted(api: Caller) -> None:
    name = "<b>\u202edevice"
    begun = api.get(
        "start_trace", body={"kind": "client", "value": name, "name": "of-device", "payload_bytes": 100}
    )
    assert begun == {"name": "of-device", "front_ends": ["local"], "problems": {}}
    by_itself = api.get("start_trace", body={"kind": "address", "value": "10.0.0.0/8"})["name"]
    for _ in range(2):
        with Device(api.gateway.ports["mqtt"], name) as device:
            device.subscribe("traced/#")
            api.get("publish_raw", "traced/1", raw=b"hello")
            device.messages(1)
    events = [each for page in api.pages("read_trace", "of-device", query="limit=3") for each in page]
    assert {each["client"] for each in events} == {name}
    kinds = [f"{each['what']} {each['kind']}" for each in events]
    for kind in ("received CONNECT", "decided session", "sent CONNACK", "sent SUBACK", "sent PUBLISH"):
        assert kinds.count(kind) == 2, (kind, kinds)
    text = api.ask("download_trace", "of-device")
    assert text.headers["content-disposition"] == 'attachment; filename="of-device.txt"'
    assert "<b>\\u202edevice 127.0.0.1 sent PUBLISH topic=traced/1" in text.body.decode()
    assert "payload=hello" in text.body.decode()
    lines = api.ask("download_trace", "of-device", query="format=jsonl").body
    assert [json.loads(line)["kind"] for line in lines.splitlines()][: len(kinds)] == [
        kind.partition(" ")[2] for kind in kinds
    ]
    listed = api.get("list_traces")
    assert {each["name"]: each["is_running"] for each in listed["items"]} == {
        "of-device": True,
        by_itself: True,
    }
    assert api.get("stop_trace", by_itself)["front_ends"] == ["local"]
    assert not api.get("show_trace", by_itself)["is_running"]
    assert api.get("show_trace", "of-device")["by"] == "operator"
    assert (
        api.ask("start_trace", body={"kind": "client", "value": "c", "name": "of-device"}).problem
        == "conflict"
    )
    wrong = api.ask("start_trace", body={"kind": "topic", "value": "a/#/b"})
    assert (wrong.problem, wrong.body["errors"][0]["pointer"]) == ("invalid", "/value")
    for each in ("of-device", by_itself):
        assert api.get("delete_trace", each)["front_ends"] == ["local"]
        for route in ("show_trace", "stop_trace", "delete_trace", "read_trace", "download_trace"):
            assert api.ask(route, each).problem == "not-found"
    assert api.ask("read_trace", "x", query="cursor=!").problem == "invalid"


def test_the_latest_message_of_a_topic_is_the_retained_one_or_a_later_one(api: Caller) -> None:
    assert api.ask("show_latest", "latest/1").problem == "not-found"
    api.get("publish_raw", "latest/1", raw=b"first")
    shown = api.get("show_latest", "latest/1")
    assert (shown["message"]["payload"], shown["is_retained"]) == ("first", False)
    api.get("publish_raw", "latest/1", query="retain=true", raw=b"kept")
    eventually(lambda: api.get("show_latest", "latest/1")["is_retained"], "the retained message")
    api.get("publish_raw", "latest/1", raw=b"last")
    shown = api.get("show_latest", "latest/1", query="payload_bytes_max=2")
    assert (shown["message"]["payload"], shown["is_retained"]) == ("la", False)
    # The key of its route is that of other topics, too.
    api.get("publish_raw", "routed/latest/state", raw=b"mine")
    api.get("publish", body={"mqtt_topic": "other/latest", "topic": "routed", "payload": "not mine"})
    assert api.get("show_latest", "routed/latest/state")["message"]["payload"] == "mine"
    assert api.ask("show_latest", "latest/+").problem == "invalid"


def test_audit_records_are_listed_from_the_newest_page_by_page(api: Caller) -> None:
    for number in range(5):
        api.get("put_topic", f"audit-{number}", body={"queues": 1}, role=Role.ADMINISTRATOR)

    def names_in(page: Any) -> list[str]:
        return [text for each in page["items"] for text in re.findall(r"audit-\d", each["details"]["fields"])]

    mine = "event=administered&account=administrator"

    def found(more: str) -> list[str]:
        return names_in(api.get("list_audit_records", query=f"{mine}&limit=1000{more}"))

    eventually(lambda: len(found("")) == 5, "the records")
    assert found("") == [f"audit-{number}" for number in (4, 3, 2, 1, 0)]
    names: list[str] = []
    cursor = ""
    while len(names) < 5:
        page = api.get("list_audit_records", query=f"{mine}&limit=2&cursor={cursor}")
        names += names_in(page)
        cursor = page["next"]
    assert names == found("")
    newest = api.get("list_audit_records", query=f"{mine}&fields=time_ms,request")["items"][0]
    assert set(newest) == {"time_ms", "request"}
    assert found(f"&from_ms={newest['time_ms'] + 1}") == []
    assert "audit-4" not in found(f"&to_ms={newest['time_ms'] - 1}")
    assert api.get("list_audit_records", query="client=nobody")["items"] == []
    assert api.ask("list_audit_records", query="cursor=W10").problem == "invalid"
    ahead = encode_cursor("audit", {"broker-a/0": 1 << 62})
    assert api.get("list_audit_records", query=f"{mine}&limit=5&cursor={ahead}")["items"]


def test_changes_are_audited_with_who_made_them(api: Caller) -> None:
    api.get("put_topic", "audited", body={"queues": 2}, role=Role.ADMINISTRATOR)

    def is_recorded() -> bool:
        read = api.get("read_messages", AUDIT_TOPIC, query="offset=0&limit=500")["items"]
        records = [json.loads(each["payload"]) for each in read]
        return any(
            (each.get("request"), each.get("account"), each.get("result"))
            == ("put_topic", "administrator", "done")
            and "audited" in each["fields"]
            for each in records
        )

    eventually(is_recorded, "the audit record")


def test_settings_of_brokers_are_listed_and_changed(api: Caller) -> None:
    (of_broker,) = api.get("list_settings")["items"]
    assert of_broker["broker"] == "broker-a"
    before = of_broker["settings"]["autoCreateTopicEnable"]
    other = "false" if before == "true" else "true"
    for value in (other, before):
        told = api.get("change_settings", "broker-a", body={"settings": {"autoCreateTopicEnable": value}})
        assert told == {"brokers": ["broker-a"]}
        (of_broker,) = api.get("list_settings")["items"]
        assert of_broker["settings"]["autoCreateTopicEnable"] == value
    fixed = api.ask("change_settings", "broker-a", body={"settings": {"brokerName": "other"}})
    assert fixed.status in (409, 422), fixed
    assert api.ask("change_settings", "nobody", body={"settings": {"a": "b"}}).problem == "not-found"
    assert api.ask("change_settings", "broker-a", body={"settings": {}}).problem == "invalid"


def test_what_a_device_may_do_is_said_with_the_rule(api: Caller) -> None:
    assert api.get("list_permissions") == {"items": []}
    assert api.get("list_device_users") == {"items": [], "next": None}
    asked = {"client_id": "pump-7", "action": "publish", "topic": "old/7"}
    decision = api.get("try_access", body=asked)
    assert (decision["is_allowed"], decision["topic"]) == (True, "routed/7/state")
    assert "nobody is asked" in decision["detail"]
    own = [{"permission": "deny", "action": "all", "topic": "routed/#"}]
    refused = api.get("try_access", body={**asked, "permissions": own})
    assert (refused["is_allowed"], refused["rule"]) == (False, "identity[0]")
    for wrong in ({"topic": "a/+"}, {"listener": "none"}, {"permissions": [{"permission": "maybe"}]}):
        assert api.ask("try_access", body={**asked, **wrong}).problem == "invalid"


def test_what_is_well_is_said(api: Caller) -> None:
    assert {"store", "broker", "mqtt"} <= set(api.get("check_ready")["checked"])
    assert "iotmq_store_refusing" in api.get("check_alarms")["checked"]
    assert api.get("check_port", str(api.gateway.ports["mqtt"]))["checked"] == ["mqtt"]
    refused = api.ask("check_port", "1")
    assert (refused.problem, refused.body["detail"]) == ("unhealthy", "nothing listens on port 1")
    assert refused.headers["retry-after"] == "1"
    assert api.get("check_certificates") == {"checked": []}
    assert api.get("list_certificates") == {"items": []}


def test_changes_are_followed_as_they_come_and_from_a_place_on(api: Caller) -> None:
    assert api.ask("stream_changes", query="since=nothing").body["errors"][0]["parameter"] == "since"
    with Stream(api, "what=records", of="changes") as stream:
        (opened,) = stream.events(1)
        assert opened.data == {"records": True, "alarms": False}
        seen: list[Event] = []
        for queues in (1, 2):
            api.get("put_topic", "followed", body={"queues": queues})
        while len(seen) < 2:
            # The broker has records of its own, too.
            seen += [each for each in stream.events(1) if each.data.get("request") == "put_topic"]
        assert {(each.kind, each.data["account"]) for each in seen} == {("record", "operator")}
    with Stream(api, "what=records", {"Last-Event-ID": seen[0].id}, of="changes") as stream:
        stream.events(1)
        while (found := stream.events(1)[0]).data.get("request") != "put_topic":
            pass
        assert found.data == seen[1].data


def test_every_route_is_asked_by_a_test_of_its_area() -> None:
    sources = "".join(file.read_text() for file in Path(__file__).parent.glob("test_http_api*.py"))
    calls = set(re.findall(r'\.(?:get|ask)\(\s*"(\w+)"', sources))
    assert set(ROUTE_OF) - calls == set()
