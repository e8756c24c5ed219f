"""Throws streams and programs at the MQTT decoder and connection core: versions 3.1, 3.1.1 and 5, in-process.

No socket and no broker: thousands of inputs a second. There are two kinds.

*Streams*: packets of a device, legal, malformed or mutated, in any pieces. Allowed: what the slow twin of
tests/oracles says of the same bytes (reason, events, messages, answers), and nothing else.

*Programs*: both sides of one connection in random order: a device that keeps the rules for a while and then
may not, and an owner that delivers messages, acknowledges late, answers SUBSCRIBE, lets time pass, or hangs
up. Allowed:

* nothing is raised; the connection ends for a reason of `reason_codes` only, and a device that has kept the
  rules is never told that it broke one;
* what comes out is whole packets of a server in this version, CONNACK first and once, nothing behind
  DISCONNECT, which 3.1 and 3.1.1 never get; codes are those of their packet;
* PUBLISH: no packet larger than the device takes, no more in flight than it takes, packet ids not 0 and not
  in use, never DUP, aliases from 1 to the device's maximum and known; each message once, in order per QoS,
  with its topic, payload and properties;
* each PUBLISH of the device is acknowledged once, in order, with its packet id, and not before its owner
  says so;
* what is queued stays within its limit, and after an end nothing is.

This file with --seconds, or `make fuzz`. --seed N --first K plays again from input K.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "oracles")]

from fake_gateway import split_output  # noqa: E402
from module_files import load_module  # noqa: E402
from mqtt_cases import VERSIONS  # noqa: E402
from mqtt_comparison import check_against_twin  # noqa: E402
from mqtt_core import new_connection  # noqa: E402

from iotmq.mqtt import reason_codes  # noqa: E402
from iotmq.mqtt.codec import packets  # noqa: E402
from iotmq.mqtt.codec.field_reader import FieldReader  # noqa: E402
from iotmq.mqtt.codec.packets import Connect, Will  # noqa: E402
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, encode_properties, read_properties  # noqa: E402
from iotmq.mqtt.reason_codes import Reason  # noqa: E402
from iotmq.mqtt.server.connection import CLOSED, CONNECTED, OPENING  # noqa: E402

fuzz_ports = load_module(ROOT / "tests" / "fuzz" / "fuzz_ports.py")
Finding = fuzz_ports.Finding

PACKET_BYTES_MAX = 2_000
QUEUED_BYTES_MAX = 3_000
REASONS = {reason for reason in vars(reason_codes).values() if isinstance(reason, Reason)}
# What a server says, by version; type 15, AUTH, only to those who began with it.
SAYS = {level: {2, 3, 4, 5, 6, 7, 9, 11, 13} | ({14} if level == 5 else set()) for level in (3, 4, 5)}
TOPICS = [b"a", b"devices/17/telemetry", "温度/ℬ".encode(), b"long/" * 12 + b"x"]


# Streams -------------------------------------------------------------------------------------------------

_VERSIONS = dict(zip((3, 4, 5), VERSIONS, strict=True))
# MQTT 3.1 gets the cases of 3.1.1.
_CASES = {
    level: [case.stream for case in version.named]
    + [case.stream for cases in version.made.values() for case in cases[:: max(1, len(cases) // every)]]
    for level, version, every in ((4, _VERSIONS[4], 40), (5, _VERSIONS[5], 80))
}


def stream_of(source: random.Random, level: int) -> bytes:
    """A CONNECT, mostly, and packets behind it, mostly legal."""
    parts = [_VERSIONS[level].connect] if source.random() < 0.95 else []
    for _ in range(source.randrange(12)):
        if source.random() < 0.8:
            parts.append(device_packet(source, level))
        else:
            parts.append(source.choice(_CASES[5 if level == 5 else 4]))
    return b"".join(parts)


def device_packet(source: random.Random, level: int) -> bytes:
    """A legal packet of a device, though maybe not now."""
    is_v5 = level == 5
    packet_id = source.randrange(1, 6)
    kind = source.choices([3, 4, 5, 6, 7, 8, 10, 12], weights=(8, 2, 2, 3, 2, 2, 1, 1))[0]
    if kind == packets.PUBLISH:
        qos = source.randrange(3)
        return packets.encode_publish(
            source.choice(TOPICS), source.randbytes(source.choice([0, 1, 90, 300])), qos=qos,
            packet_id=packet_id, retain=source.random() < 0.2, dup=bool(qos) and source.random() < 0.2,
            properties=message_properties(source) if is_v5 else None,
        )  # fmt: skip
    if kind == packets.SUBSCRIBE:
        filters = [(source.choice(["a", "a/+", "#", "$share/g/a"]), source.randrange(3))] * source.randrange(
            1, 3
        )
        return packets.encode_subscribe(packet_id, filters, NO_PROPERTIES if is_v5 else None)
    if kind == packets.UNSUBSCRIBE:
        return packets.encode_unsubscribe(packet_id, ["a", "#"], NO_PROPERTIES if is_v5 else None)
    if kind == packets.PINGREQ:
        return packets.PINGREQ_PACKET
    return packets.encode_acknowledgement(kind, packet_id)


def message_properties(source: random.Random) -> Properties:
    """What a PUBLISH may have; an alias beside a topic, always."""
    return Properties(
        payload_format=source.choice([None, None, 0]),
        message_expiry_s=source.choice([None, None, 5, 3_600]),
        content_type=source.choice([None, "text/plain", "é"]),
        response_topic=source.choice([None, None, "answers/1"]),
        correlation_data=source.choice([None, b"\0\xff"]),
        topic_alias=source.choice([None, None, 1, 2, 32]),
        user_properties=tuple(source.choices([("a", "b"), ("", ""), ("北", "\n")], k=source.randrange(3))),
    )


def pieces_of(source: random.Random, stream: bytes) -> list[bytes]:
    """The stream at once, byte by byte, or cut anywhere."""
    how = source.randrange(4)
    if how == 0 or not stream:
        return [stream]
    if how == 1 and len(stream) < 3_000:
        return [stream[at : at + 1] for at in range(len(stream))]
    ends = sorted(source.randrange(len(stream) + 1) for _ in range(source.randrange(1, 8)))
    return [stream[start:end] for start, end in zip([0, *ends], [*ends, len(stream)], strict=True)]


def play_stream(source: random.Random) -> str:
    level = source.choice([3, 4, 5, 5])
    stream = stream_of(source, level)
    if source.random() < 0.5:
        stream = fuzz_ports.mutate(source, stream)[:50_000]
    chunks = pieces_of(source, stream)
    try:
        expected = check_against_twin(chunks, packet_bytes_max=PACKET_BYTES_MAX)
    except Exception as error:
        raise Finding(f"not what the twin says of {[chunk.hex() for chunk in chunks]}: {error!r}") from error
    return f"stream {level}: {expected.close_reason.name if expected.close_reason else 'goes on'}"


# Programs ------------------------------------------------------------------------------------------------


class Program:
    """One connection, both its sides, and what each may expect of the other."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.level = source.choice([3, 4, 5, 5, 5])
        self.is_legal = True
        """The device has kept the rules so far."""
        self.now_s = 0.0
        self.receive_max = source.choice([1, 3, 1_024])
        self.window = source.choice([1, 2, 10])
        self.settings_window = source.choice([1, 5, 100])
        self.sent_bytes_max = source.choice([None, None, 60, 400])
        self.alias_max = source.choice([None, 0, 1, 3])
        self.connection, self.sink = new_connection(
            packet_bytes_max=PACKET_BYTES_MAX, in_flight_max=self.settings_window,
            queued_bytes_max=QUEUED_BYTES_MAX, receive_max=self.receive_max,
        )  # fmt: skip
        self.said: list[tuple[int, bytes]] = []
        self.aliases: dict[int, bytes] = {}
        # Messages the owner delivered and the device has not got: one line per QoS 0 and for QoS 1 and 2.
        self.expected: tuple[deque[Any], deque[Any]] = (deque(), deque())
        self.in_flight: dict[int, int] = {}
        """Packet id -> the type the server waits for next."""
        self.unacknowledged: deque[tuple[int, int, int]] = deque()
        """(sequence, packet id, QoS) of the device's messages, acknowledged or not, without an answer."""
        self.durable: set[int] = set()
        self.received: set[int] = set()
        """Packet ids of QoS 2 between PUBLISH and PUBCOMP."""
        self.subscribes: list[packets.Event] = []
        self.wanted: Counter[int] = Counter()
        """Answers the server owes, by type."""

    # The device

    def send(self, data: bytes) -> None:
        for piece in pieces_of(self.source, data):
            self.connection.receive_data(piece, self.now_s)
        for event in self.connection.events_received():
            if isinstance(event, packets.Subscribe | packets.Unsubscribe):
                self.subscribes.append(event)

    def device_connects(self) -> None:
        told = NO_PROPERTIES
        if self.level == 5:
            told = Properties(
                receive_max=self.window, packet_bytes_max=self.sent_bytes_max, topic_alias_max=self.alias_max,
                session_expiry_s=self.source.choice([None, 60]),
            )  # fmt: skip
        else:
            self.window, self.sent_bytes_max, self.alias_max = 65_535, None, 0
        will = self.source.choice([None, Will("w", b"x", 1, False)])
        connect = Connect("d", True, 60, will, None, None, self.level, told)
        for piece in pieces_of(self.source, packets.encode_connect(connect)):
            self.connection.receive_data(piece, self.now_s)
        assert self.connection.state == OPENING
        self.connection.events_received()
        self.connection.open_session(session_present=self.source.random() < 0.5)

    def device_publishes(self) -> None:
        qos = self.source.randrange(3)
        in_use = {packet_id for _, packet_id, _ in self.unacknowledged} | self.received
        packet_id = self.source.choice([each for each in range(1, 2_000) if each not in in_use])
        unanswered = sum(1 for _, _, each in self.unacknowledged if each == 1) + len(self.received)
        if self.level == 5 and qos and unanswered >= self.receive_max:
            return
        topic, payload = self.source.choice(TOPICS), self.source.randbytes(self.source.choice([0, 50]))
        is_repeated = qos == 2 and bool(self.received) and self.source.random() < 0.3
        if is_repeated:
            packet_id = self.source.choice(sorted(self.received))
        known = len(self.sink.published)
        self.send(
            packets.encode_publish(
                topic, payload, qos=qos, packet_id=packet_id, dup=is_repeated,
                properties=message_properties(self.source) if self.level == 5 else None,
            )
        )  # fmt: skip
        if self.connection.state != CONNECTED or not self.is_legal:
            return  # one that broke the rules may have begun another packet
        new = self.sink.published[known:]
        if is_repeated:
            if new:
                raise Finding("a repeated message of QoS 2 was handed on")
            # Its answer waits behind those of the messages before it, and needs no promise.
            self.unacknowledged.append((-1, packet_id, 2))
            return
        if len(new) != 1 or new[0][:3] != (topic.decode(), payload, qos):
            raise Finding(f"published {topic!r} of QoS {qos}, the sink got {new}")
        if qos:
            self.unacknowledged.append((new[0][4], packet_id, qos))
        if qos == 2:
            self.received.add(packet_id)

    def device_acknowledges(self) -> None:
        if not self.in_flight:
            return
        packet_id = self.source.choice(sorted(self.in_flight))
        awaited = self.in_flight[packet_id]
        code = self.source.choice([0, 0, 0, 0x10, 0x87]) if self.level == 5 and awaited != 7 else 0
        if awaited == packets.PUBREC and code < 0x80:
            self.in_flight[packet_id] = packets.PUBCOMP
            self.wanted[packets.PUBREL] += 1
        else:
            del self.in_flight[packet_id]
        self.send(packets.encode_acknowledgement(awaited, packet_id, code))

    def device_releases(self) -> None:
        answered = self.received - {packet_id for _, packet_id, _ in self.unacknowledged}
        if answered:
            packet_id = self.source.choice(sorted(answered))
            self.received.discard(packet_id)
            self.wanted[packets.PUBCOMP] += 1
            self.send(packets.encode_acknowledgement(packets.PUBREL, packet_id))

    def device_asks(self) -> None:
        is_v5 = self.level == 5
        kind = self.source.randrange(3)
        if kind == 0:
            self.wanted[packets.PINGRESP] += 1
            self.send(packets.PINGREQ_PACKET)
        elif kind == 1:
            filters = [("a/+", self.source.randrange(3))]
            self.send(packets.encode_subscribe(5, filters, NO_PROPERTIES if is_v5 else None))
        else:
            self.send(packets.encode_unsubscribe(6, ["a/+"], NO_PROPERTIES if is_v5 else None))

    def device_misbehaves(self) -> None:
        self.is_legal = False
        data = self.source.choice(_CASES[5 if self.level == 5 else 4])
        if self.source.random() < 0.5:
            data = fuzz_ports.mutate(self.source, data)[:5_000]
        self.send(data)

    def device_goes(self) -> None:
        if self.source.random() < 0.5:
            self.send(packets.DISCONNECT_PACKET)
        else:
            self.connection.receive_eof()

    # Its owner

    def owner_delivers(self) -> None:
        qos, topic = self.source.randrange(3), self.source.choice(TOPICS)
        payload = self.source.randbytes(self.source.choice([0, 30, 500]))
        is_retained = self.source.random() < 0.2
        identifiers = self.source.choice([(), (), (1,), (268_435_455, 7)]) if self.level == 5 else ()
        properties = Properties(content_type=self.source.choice([None, "x" * 20]))
        taken = self.connection.deliver_message(
            topic, payload, qos, properties=encode_properties(properties)[1:], is_retained=is_retained,
            identifiers=identifiers,
        )  # fmt: skip
        if taken and self.connection.state == CONNECTED:
            told = None
            if self.level == 5:
                told = Properties(
                    content_type=properties.content_type, subscription_identifiers=tuple(identifiers)
                )
            self.expected[qos > 0].append((topic, payload, qos, is_retained, told))

    def owner_acknowledges(self) -> None:
        waiting = [one[0] for one in self.unacknowledged if one[0] >= 0 and one[0] not in self.durable]
        if waiting:
            sequence = self.source.choice(waiting)
            self.durable.add(sequence)
            self.connection.acknowledge_published(sequence)

    def owner_answers(self) -> None:
        if self.subscribes:
            event = self.subscribes.pop(0)
            if isinstance(event, packets.Subscribe):
                self.wanted[packets.SUBACK] += 1
                codes = [self.source.choice([0, 1, 2, 0x80, 0x97]) for _ in event.subscriptions]
                self.connection.send_suback(event.packet_id, codes)
            elif isinstance(event, packets.Unsubscribe):
                self.wanted[packets.UNSUBACK] += 1
                self.connection.send_unsuback(event.packet_id, [0] * len(event.filters))

    def owner_hangs_up(self) -> None:
        reason = self.source.choice(
            [reason_codes.SESSION_TAKEN_OVER, reason_codes.SERVER_SHUTTING_DOWN, reason_codes.NOT_STORED]
        )
        self.connection.close(reason, self.source.choice(["", "because", "x" * 600]))

    def time_passes(self) -> None:
        self.now_s += self.source.random() * 10

    # What comes out

    def read(self) -> None:
        output = self.connection.data_to_send()
        try:
            found = split_output(output)
        except (IndexError, AssertionError) as error:
            raise Finding(f"half a packet came out: {output.hex()}") from error
        for first, body in found:
            self._read_one(first, body)
            self.said.append((first, body))

    def _read_one(self, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind not in SAYS[self.level]:
            raise Finding(f"type {kind} is not for version {self.level}")
        if bool(self.said) is (kind == packets.CONNACK):
            raise Finding(f"CONNACK comes first and once, not type {kind} behind {self.said}")
        if self.said and self.said[-1][0] >> 4 == packets.DISCONNECT:
            raise Finding(f"type {kind} behind DISCONNECT")
        size = 2 + len(body) + (len(body) > 127)
        if self.sent_bytes_max is not None and size > self.sent_bytes_max:
            raise Finding(f"{size} bytes to a device that takes {self.sent_bytes_max}")
        if kind == packets.PUBLISH:
            self._read_publish(first, body)
        elif kind in (packets.PUBACK, packets.PUBREC):
            self._read_acknowledgement(kind, body)
        elif kind == packets.DISCONNECT:
            if self.connection.state != CLOSED or body[0] not in reason_codes.SERVER_DISCONNECT_CODES:
                raise Finding(f"DISCONNECT {body.hex()}")
        elif kind != packets.CONNACK and self.is_legal:
            self.wanted[kind] -= 1
            if self.wanted[kind] < 0:
                raise Finding(f"type {kind} that nobody asked for")

    def _read_publish(self, first: int, body: bytes) -> None:
        reader = FieldReader(body, "PUBLISH")
        topic, qos = reader.binary(), first >> 1 & 3
        packet_id = reader.u16() if qos else 0
        told = read_properties(reader, packets.PUBLISH) if self.level == 5 else None
        payload = b"" if reader.is_at_end else reader.take(reader._end - reader._at)
        if first & 8:
            raise Finding("DUP on a message that was never sent before")
        if told is not None and told.topic_alias is not None:
            if not 1 <= told.topic_alias <= (self.alias_max or 0):
                raise Finding(f"alias {told.topic_alias} for a device that takes {self.alias_max}")
            if topic:
                self.aliases[told.topic_alias] = topic
            elif told.topic_alias not in self.aliases:
                raise Finding(f"alias {told.topic_alias} means nothing yet")
            topic = self.aliases[told.topic_alias]
            told = Properties(
                content_type=told.content_type, subscription_identifiers=told.subscription_identifiers
            )
        if qos:
            if packet_id == 0 or packet_id in self.in_flight:
                raise Finding(f"packet id {packet_id} is in use")
            self.in_flight[packet_id] = packets.PUBACK if qos == 1 else packets.PUBREC
            # What a device that broke the rules has acknowledged is not known here.
            if self.is_legal and len(self.in_flight) > min(self.window, self.settings_window):
                raise Finding(f"{len(self.in_flight)} in flight")
        waiting = self.expected[qos > 0]
        got = (topic, payload, qos, bool(first & 1), told)
        if not waiting or waiting.popleft() != got:
            raise Finding(f"delivered {got}")

    def _read_acknowledgement(self, kind: int, body: bytes) -> None:
        if not self.is_legal:
            return
        if not self.unacknowledged:
            raise Finding(f"type {kind} for nothing")
        sequence, packet_id, qos = self.unacknowledged.popleft()
        if sequence >= 0 and sequence not in self.durable:
            raise Finding("acknowledged before its owner said so")
        if (kind, body) != (packets.PUBACK if qos == 1 else packets.PUBREC, packet_id.to_bytes(2, "big")):
            raise Finding(f"acknowledged {kind} {body.hex()}, next was {packet_id} of QoS {qos}")

    def check(self) -> None:
        connection = self.connection
        reason = connection.close_reason
        if (reason is None) is (connection.state == CLOSED):
            raise Finding(f"state {connection.state} with reason {reason}")
        if reason is not None and reason not in REASONS:
            raise Finding(f"ended for {reason}")
        if reason is not None and reason.is_peer_fault and self.is_legal:
            raise Finding(f"a device that kept the rules was hung up on: {reason} {connection.close_detail}")
        # One message of any size is taken when there is none.
        if connection.queued_bytes > QUEUED_BYTES_MAX + 1_000:
            raise Finding(f"{connection.queued_bytes} bytes are queued")
        if self.is_legal and connection.state == CONNECTED:
            if connection.in_flight_count != len(self.in_flight):
                raise Finding(f"{connection.in_flight_count} in flight, the device knows {self.in_flight}")
            if not connection.queued_bytes and self.expected[1]:
                raise Finding(f"lost {self.expected[1]}")
            if self.expected[0]:
                raise Finding(f"lost {self.expected[0]}")
            if any(self.wanted.values()):
                raise Finding(f"no answer: {self.wanted}")

    def run(self) -> str:
        steps = [
            self.device_publishes, self.device_acknowledges, self.device_releases, self.device_asks,
            self.owner_delivers, self.owner_acknowledges, self.owner_answers, self.time_passes,
            self.device_misbehaves, self.device_goes, self.owner_hangs_up,
        ]  # fmt: skip
        misbehaves = self.source.choice([0.0, 0.0, 0.5])
        weights = (6, 6, 3, 1, 8, 6, 2, 1, misbehaves, 0.1, 0.05)
        self.device_connects()
        for step in self.source.choices(steps, weights=weights, k=self.source.randrange(120)):
            step()
            self.read()
            self.check()
            if self.connection.state == CLOSED:
                break
        self._after_the_end()
        reason = self.connection.close_reason
        kept = "kept" if self.is_legal else "broken"
        return f"program {self.level}, rules {kept}: {reason.name if reason else 'goes on'}"

    def _after_the_end(self) -> None:
        if self.connection.state != CLOSED:
            return
        known = len(self.sink.published)
        self.connection.receive_data(packets.encode_publish("a", b"late"), self.now_s)
        is_taken = self.connection.deliver_message(b"a", b"late", 1)
        if is_taken or len(self.sink.published) != known or self.connection.data_to_send():
            raise Finding("something goes on behind the end")


def play(seed: int, number: int) -> str:
    """Input `number` of a seed."""
    source = random.Random(f"{seed}/{number}")
    if source.random() < 0.5:
        return play_stream(source)
    try:
        return Program(source).run()
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"raised {error!r}") from error


def fuzz(
    *, seed: int, first: int = 0, inputs_max: int | None = None, seconds: float | None = None
) -> Counter[str]:
    """Play inputs until their number or the time is over; outcomes by kind. Raises Finding."""
    outcomes: Counter[str] = Counter()
    began_s = time.monotonic()
    number = first
    while (inputs_max is None or number - first < inputs_max) and (
        seconds is None or time.monotonic() - began_s < seconds
    ):
        try:
            outcomes[play(seed, number)] += 1
        except Finding as finding:
            finding.add_note(f"input {number} of seed {seed}: --seed {seed} --first {number}")
            raise
        number += 1
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0)
    words = parser.parse_args()
    print(f"seed {words.seed}, {words.seconds:.0f} s", flush=True)
    for outcome, count in sorted(fuzz(seed=words.seed, first=words.first, seconds=words.seconds).items()):
        print(f"{count:8} {outcome}")


if __name__ == "__main__":
    main()
