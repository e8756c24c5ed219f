"""Checksums by their name or polynomial, with tables that crcmod computes."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from iotmq.errors import ConfigError
from iotmq.mqtt_front.routing.checksum import Checksum
from iotmq.mqtt_front.settings.routes import ChecksumSettings
from iotmq.spelling import did_you_mean

# Names that people use for those that crcmod has under others.
_ALIASES: Final = {
    "ccitt": "crc-ccitt-false",
    "ethernet": "crc-32",
    "hdlc": "x-25",
    "m-bus": "crc-16-en-13757",
    "dnp3": "crc-16-dnp",
}


def checksum_of(settings: ChecksumSettings, where: str) -> Checksum:
    """Make the checksum that the settings describe; ConfigError, which begins with `where`, for none."""
    # Loaded by processes with checksums only.
    import crcmod  # type: ignore[import-untyped]
    from crcmod.predefined import PredefinedCrc  # type: ignore[import-untyped]

    if settings.algorithm:
        name = settings.algorithm.lower()
        try:
            crc = PredefinedCrc(_ALIASES.get(name, name))
        except KeyError:
            raise ConfigError(
                f"{where}.algorithm = {settings.algorithm!r} is unknown{_hint(name)}; any other CRC is "
                "described by width, polynomial, initial, reversed and xor_out"
            ) from None
        settings = replace(settings, width=8 * crc.digest_size)
    else:
        name = f"of {settings.width} bits {settings.polynomial}"
        xor_out, initial = int(settings.xor_out, 16), int(settings.initial, 16)
        polynomial = int(settings.polynomial, 16)
        for key, value in (("polynomial", polynomial), ("initial", initial), ("xor_out", xor_out)):
            if value >> settings.width:
                raise ConfigError(
                    f"{where}.{key} = {value:#x} has more than the {settings.width} bits of the checksum"
                )
        # Catalogues write what the register begins with as if nothing was reversed.
        start = _reversed_bits(initial, settings.width) if settings.reversed else initial
        crc = crcmod.Crc(
            1 << settings.width | polynomial, initCrc=start ^ xor_out, rev=settings.reversed, xorOut=xor_out
        )
    return Checksum(
        settings,
        name,
        crc.table,
        start=crc.initCrc ^ crc.xorOut,
        xor_out=crc.xorOut,
        is_reversed=crc.reverse,
    )


def _reversed_bits(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


def _hint(name: str) -> str:
    from crcmod.predefined import _crc_definitions_table

    return did_you_mean(
        name, {known[0].lower(): known[0].lower() for known in _crc_definitions_table} | _ALIASES
    )
