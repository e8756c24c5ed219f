"""The corpora by MQTT version: the CONNECT that comes first, the cases, and what a server says at the end."""

from __future__ import annotations

from typing import NamedTuple

from fake_gateway import split_output
from mqtt5_corpus import CONNECT5
from mqtt5_corpus import CORPUS as CORPUS5
from mqtt_corpus import CONNECT, CORPUS, Case
from mqtt_malformed import MALFORMED_5, MALFORMED_31, MALFORMED_311

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect


class Version(NamedTuple):
    """The cases of one MQTT version: `named` are one of a kind, `made` come from its tables."""

    name: str
    connect: bytes
    named: list[Case]
    made: dict[str, list[Case]]

    def stream(self, case: Case) -> bytes:
        """Put the CONNECT in front of a case that needs one."""
        return case.stream if case.is_first else self.connect + case.stream

    @property
    def good(self) -> list[Case]:
        """The named cases after which the connection goes on."""
        return [case for case in self.named if case.reason is None]


CONNECT_3_1 = packets.encode_connect(Connect("device-1", True, 60, None, None, None, 3))
VERSIONS = [
    Version("3.1", CONNECT_3_1, [], MALFORMED_31),
    Version("3.1.1", CONNECT, CORPUS, MALFORMED_311),
    Version("5", CONNECT5, CORPUS5, MALFORMED_5),
]


def check_told(case: Case, stream: bytes, output: bytes) -> None:
    """What a server says at the end of a connection is the code of the case's reason, where there is one.

    MQTT 5 has DISCONNECT; before, a refusing CONNACK is all there is.
    """
    told = split_output(output)
    assert all(first >> 4 != packets.PUBLISH for first, _ in told), case.name
    codes = [body[0] for first, body in told if first >> 4 == packets.DISCONNECT]
    refusals = [body[1] for first, body in told if first >> 4 == packets.CONNACK and body[1]]
    is_v5 = packets.answer_level(_connect_body(stream)) == packets.PROTOCOL_LEVEL_5
    wanted_codes: list[int] = []
    wanted_refusals: list[int] = []
    if case.reason is None or case.reason == reason_codes.NORMAL:
        pass
    elif is_v5:
        (wanted_refusals if case.is_first else wanted_codes).append(case.reason.v5_code)
    elif case.is_first and case.reason.connack_code is not None:
        wanted_refusals.append(case.reason.connack_code)
    assert (codes, refusals) == (wanted_codes, wanted_refusals), case.name
    if codes or refusals:
        assert told[-1][0] >> 4 == (packets.DISCONNECT if codes else packets.CONNACK), case.name
        assert len(told) == (1 if case.is_first else 2), case.name


def _connect_body(stream: bytes) -> bytes:
    """The body of a CONNECT, as far as it is there, behind one to four bytes of length."""
    at = 1
    while at < min(5, len(stream)) and stream[at] & 0x80:
        at += 1
    return stream[at + 1 :] if stream[0] >> 4 == packets.CONNECT else b""
