"""Topics, client ids and payloads that are alike but for a few places."""

import random
import re
from typing import Final, NamedTuple

from loadtest.swarm.engine import FIELD_SIZES, PAYLOAD_BYTES_MAX
from loadtest.swarm.errors import SwarmError

# As many different sizes follow each other; then they come again.
SIZES_DRAWN: Final = 1_024
_VARIABLE: Final = re.compile(r"%(.?)")


class Device(NamedTuple):
    """Describe whom a template is filled in for."""

    number: str
    client_id: str = ""
    username: str = ""
    kind: str = ""


class Filled(NamedTuple):
    """A text with places that the engine fills in for each message."""

    text: bytes
    fields: list[tuple[int, str]]
    """Where in the text, and which of the engine's fields."""


def fill(template: str, device: Device) -> str:
    """Fill in what is the same for all messages of a device.

    `%i` or `{n}` is its number, `%c` its client id, `%u` its user name, `{kind}` pub, sub or idle.
    """
    return _fill(template, device, {}).text.decode()


def fill_topic(template: str, device: Device) -> Filled:
    """Fill in a topic, in which `%s` is the number of the message, ten digits."""
    return _fill(template, device, {"s": "sequence"})


def fill_payload(template: str, device: Device) -> Filled:
    """Fill in a payload: `%s` is the number of the message, ten columns with spaces in front as JSON allows.

    `%t` is the time in milliseconds of the Unix epoch, `%x` the stamp by which subscribers measure and check.
    """
    return _fill(template, device, {"s": "counter", "t": "milliseconds", "x": "stamp"})


def _fill(template: str, device: Device, fields: dict[str, str]) -> Filled:
    fixed = {"i": device.number, "c": device.client_id, "u": device.username, "%": "%"}
    text = bytearray()
    places: list[tuple[int, str]] = []
    at = 0
    for variable in _VARIABLE.finditer(template):
        text += _named(template[at : variable.start()], device)
        at = variable.end()
        name = variable[1]
        if name in fields:
            places.append((len(text), fields[name]))
            text += b"0" * FIELD_SIZES[fields[name]]
        elif name in fixed:
            text += fixed[name].encode()
        else:
            known = ", ".join(f"%{each}" for each in (*fixed, *fields))
            raise SwarmError(f"the template {template!r} has %{name}; there are {known}")
    text += _named(template[at:], device)
    return Filled(bytes(text), places)


def _named(text: str, device: Device) -> bytes:
    return text.replace("{n}", device.number).replace("{kind}", device.kind).encode()


def draw_sizes(distribution: str) -> list[int]:
    """The sizes of payloads that follow each other: `100-1000` even, `100:7,1000:2,10000:1` by weight.

    The same for every run, so that runs compare.
    """
    chance = random.Random(0)
    whole = re.fullmatch(r"(\d+)-(\d+)", distribution)
    if whole:
        low, high = int(whole[1]), int(whole[2])
        if low > high or high > PAYLOAD_BYTES_MAX:
            raise SwarmError(f"payload sizes {distribution!r} are not LOW-HIGH up to {PAYLOAD_BYTES_MAX}")
        return [chance.randint(low, high) for _ in range(SIZES_DRAWN)]
    weighted = re.findall(r"(\d+):(\d+)(?:,|$)", distribution)
    if not weighted or not re.fullmatch(r"\d+:\d+(,\d+:\d+)*", distribution):
        raise SwarmError(f"payload sizes {distribution!r} are neither LOW-HIGH nor SIZE:WEIGHT,SIZE:WEIGHT")
    sizes, weights = [int(size) for size, _ in weighted], [int(weight) for _, weight in weighted]
    if max(sizes) > PAYLOAD_BYTES_MAX or not sum(weights):
        raise SwarmError(
            f"payload sizes {distribution!r}: at most {PAYLOAD_BYTES_MAX} bytes, and some weight"
        )
    return chance.choices(sizes, weights, k=SIZES_DRAWN)
