from __future__ import annotations

import sys
import zlib

import lz4.frame
import pytest
import zstandard

from iotmq.message.compression import (
    Compression,
    check_method,
    compress,
    decompress,
    is_compressed,
    methods_here,
)
from iotmq.message.errors import BodyTooLargeError, CompressionMissingError, MessageFormatError
from iotmq.message.records.record import check_batch, encode_batch

METHODS: list[Compression] = ["zlib", "lz4", "zstd"]
TEXT = b'{"device": "pump-7", "celsius": 21.5}' * 200


def test_all_methods_are_here() -> None:
    assert methods_here() == ("zlib", "lz4", "zstd")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("plain", [b"", b"a", TEXT, bytes(300_000)])
def test_what_is_compressed_opens(method: Compression, plain: bytes) -> None:
    compressed = compress(plain, method, 5)
    assert is_compressed(compressed)
    assert decompress(compressed, method, len(plain)) == plain
    if plain:
        with pytest.raises(BodyTooLargeError, match=f"past {len(plain) - 1} bytes"):
            decompress(compressed, method, len(plain) - 1)


@pytest.mark.parametrize("method", METHODS)
def test_no_part_of_it_opens_and_nothing_breaks_the_next(method: Compression) -> None:
    compressed = compress(TEXT, method, 5)
    for size in range(len(compressed)):
        with pytest.raises(MessageFormatError, match=r"damaged|cut off"):
            decompress(compressed[:size], method, len(TEXT))
    with pytest.raises(MessageFormatError, match="damaged"):
        decompress(b"\x00 is no method's", method, 100)
    assert decompress(compressed, method, len(TEXT)) == TEXT


def test_frames_that_do_not_tell_their_size_open() -> None:
    """Java's stream writers do not know it when they begin."""
    writer = zstandard.ZstdCompressor(level=5, write_content_size=False)
    assert decompress(writer.compress(TEXT), "zstd", len(TEXT)) == TEXT
    with pytest.raises(BodyTooLargeError):
        decompress(writer.compress(TEXT), "zstd", len(TEXT) - 1)
    with pytest.raises(MessageFormatError, match="cut off"):
        decompress(writer.compress(TEXT)[:-1], "zstd", len(TEXT))
    told = lz4.frame.compress(TEXT, store_size=True, content_checksum=True, block_linked=True)
    assert decompress(told, "lz4", len(TEXT)) == TEXT


def test_a_frame_that_says_it_has_very_much_is_not_believed() -> None:
    """Without looking at it the library would make room for 2 TB."""
    header = b"\x28\xb5\x2f\xfd\xc0\x58" + (2 << 40).to_bytes(8, "little")
    with pytest.raises(MessageFormatError):
        decompress(header + bytes(20), "zstd", 1_000)
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 27))
    assert len(bomb) < 20_000
    with pytest.raises(BodyTooLargeError):
        decompress(bomb, "zstd", 1_000)


def test_blocks_of_lz4_do_not_depend_on_each_other() -> None:
    """RocketMQ's Java clients open no others."""
    assert lz4.frame.get_frame_info(compress(bytes(1 << 20), "lz4", 5))["block_linked"] is False


@pytest.mark.parametrize("method", METHODS)
def test_no_batch_looks_compressed(method: Compression) -> None:
    beginning = compress(TEXT, method, 5)[:4]
    with pytest.raises(MessageFormatError):
        check_batch(beginning + bytes(100))
    assert not is_compressed(encode_batch([(TEXT, b"", 0)]))


@pytest.mark.parametrize(("method", "package"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_a_missing_library_is_named(
    method: Compression, package: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compressed = compress(TEXT, method, 5)
    monkeypatch.setitem(sys.modules, package, None)
    for _ in range(2):
        with pytest.raises(
            CompressionMissingError, match=rf"^{method} needs the package .*iotmq\[compression\]"
        ):
            decompress(compressed, method, len(TEXT))
    assert len(caplog.records) <= 1
    with pytest.raises(CompressionMissingError):
        compress(TEXT, method, 5)
    with pytest.raises(CompressionMissingError):
        check_method(method)
    methods_here.cache_clear()
    try:
        assert method not in methods_here()
    finally:
        methods_here.cache_clear()
    assert decompress(zlib.compress(TEXT), "zlib", len(TEXT)) == TEXT
