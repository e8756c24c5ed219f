"""Checksums in payloads: every CRC that crcmod knows or computes, where it stands, and what it covers."""

from __future__ import annotations

from typing import Any

import crcmod
import pytest
from crcmod.predefined import _crc_definitions, mkPredefinedCrcFun

from iotmq.errors import ConfigError
from iotmq.mqtt_front.routing.checksum_names import checksum_of
from iotmq.mqtt_front.settings.routes import ChecksumSettings

DATA = b"123456789"
# A read of two registers as a Modbus master sends it, with the CRC its low byte first.
MODBUS = bytes.fromhex("010300000002c40b")


def checksum(**settings: Any) -> Any:
    return checksum_of(ChecksumSettings(**settings), "mqtt.routes[0].checksum")


@pytest.mark.parametrize("definition", _crc_definitions, ids=lambda found: str(found["name"]))
def test_a_predefined_checksum_is_the_one_of_crcmod(definition: dict[str, Any]) -> None:
    one = checksum(algorithm=definition["name"])
    assert one.compute(DATA) == definition["check"]
    for size in (0, 1, 7, 64, 1_000):
        frame = bytes(range(256)) * 4
        assert one.compute(frame[:size]) == mkPredefinedCrcFun(definition["name"])(frame[:size])


def test_a_frame_of_modbus() -> None:
    modbus = checksum(algorithm="modbus")
    assert modbus.wrong_in(MODBUS) == ""
    damaged = b"\x02" + MODBUS[1:]
    assert "modbus" in modbus.wrong_in(damaged)
    assert "0x0BC4" in modbus.wrong_in(damaged)
    assert modbus.pace(MODBUS, 3) == 3
    assert modbus.pace(damaged, 3) == 0


@pytest.mark.parametrize(
    ("alias", "name"), [("ccitt", "crc-ccitt-false"), ("hdlc", "x-25"), ("m-bus", "crc-16-en-13757")]
)
def test_other_names_that_people_use(alias: str, name: str) -> None:
    assert checksum(algorithm=alias).compute(DATA) == mkPredefinedCrcFun(name)(DATA)


@pytest.mark.parametrize(
    ("declared", "check"),
    [
        # As the catalogue of parametrised CRC algorithms has them.
        ({"width": 16, "polynomial": "0x1021", "initial": "0xb2aa", "reversed": True}, 0x63D0),
        ({"width": 16, "polynomial": "0x8005", "initial": "0xffff", "reversed": True}, 0x4B37),
        ({"width": 16, "polynomial": "0x1021", "initial": "0xffff"}, 0x29B1),
        ({"width": 16, "polynomial": "0x1021", "initial": "0xffff", "xor_out": "0xffff"}, 0xD64E),
        ({"width": 8, "polynomial": "0x07", "xor_out": "0x55"}, 0xA1),
        ({"width": 24, "polynomial": "0x864cfb", "initial": "0xb704ce"}, 0x21CF02),
        (
            {"width": 32, "polynomial": "0x04c11db7", "initial": "0xffffffff", "xor_out": "0xffffffff",
             "reversed": True},
            0xCBF43926,
        ),
        ({"width": 64, "polynomial": "0x42f0e1eba9ea3693"}, 0x6C40DF5F0B497347),
    ],
)  # fmt: skip
def test_a_declared_checksum(declared: dict[str, Any], check: int) -> None:
    assert checksum(**declared).compute(DATA) == check


def test_a_declared_checksum_is_the_one_of_crcmod() -> None:
    of_crcmod = crcmod.mkCrcFun(0x1A097, initCrc=0x1234, rev=False, xorOut=0x00FF)
    declared = checksum(width=16, polynomial="0xa097", initial=hex(0x1234 ^ 0xFF), xor_out="0xff")
    assert declared.compute(DATA) == of_crcmod(DATA)


def framed(data: bytes, *, order: str, algorithm: str = "crc-ccitt-false") -> bytes:
    return mkPredefinedCrcFun(algorithm)(data).to_bytes(2, order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "frame"),
    [
        ({}, b"body" + framed(b"body", order="big")),
        ({"byte_order": "little"}, b"body" + framed(b"body", order="little")),
        ({"position": "start"}, framed(b"body", order="big") + b"body"),
        ({"distance": 1}, b"body" + framed(b"body", order="big") + b"\n"),
        ({"position": "start", "distance": 2}, b"~~" + framed(b"body", order="big") + b"body"),
        ({"skip_first": 1}, b"~body" + framed(b"body", order="big")),
        ({"skip_last": 2}, b"body--" + framed(b"body", order="big")),
        ({"position": "start", "skip_first": 1, "skip_last": 1}, framed(b"body", order="big") + b"-body-"),
        ({"skip_first": 4}, b"body" + framed(b"", order="big")),
    ],
)
def test_where_a_checksum_stands_and_what_it_covers(settings: dict[str, Any], frame: bytes) -> None:
    one = checksum(algorithm="ccitt", **settings)
    assert one.wrong_in(frame) == ""
    place = frame.find(b"body")
    if settings.get("skip_first") != 4:
        assert one.wrong_in(frame[:place] + b"Body" + frame[place + 4 :])


def test_a_frame_that_has_no_room_for_a_checksum_is_wrong() -> None:
    one = checksum(algorithm="modbus", skip_first=1)
    assert "too short" in one.wrong_in(b"")
    assert "too short" in one.wrong_in(b"\1\2")
    assert "too short" not in one.wrong_in(b"\1\2\3")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "modbuss"}, r"mqtt\.routes\[0\]\.checksum\.algorithm.*did you mean modbus"),
        ({"width": 8, "polynomial": "0x1021"}, r"checksum\.polynomial = 0x1021 has more than the 8 bits"),
        ({"polynomial": "0x1021", "initial": "0x10000"}, r"checksum\.initial"),
        ({"polynomial": "0x1021", "xor_out": "0x10000"}, r"checksum\.xor_out"),
    ],
)
def test_what_is_no_checksum_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checksum(**settings)
