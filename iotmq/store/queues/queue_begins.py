"""Remember the first offset of every queue of a trimmed log, for when queue files are lost too.

A queue whose records were all deleted by retention has its next offset nowhere but in its own files. So
before a file of the log goes, `consumequeue.begins` is written, big-endian:

  iotmqQB1 8 | position where the log begins 8 | queues: topic size 1, topic, queue id 4, offset 8 | CRC-32 4

A queue that ends before its offset, after everything was taken from the log, goes on there. Queues that begin
at 0 are left out. The file is replaced whole; without it, or with a damaged one, such queues begin at 0.
"""

from __future__ import annotations

import logging
import struct
import threading
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from iotmq.files import replace_file
from iotmq.store import fail_points
from iotmq.store.files.state_record import sealed, unsealed

BEGINS_NAME: Final = "consumequeue.begins"

_MAGIC: Final = b"iotmqQB1"
_HEAD: Final = struct.Struct(">8sq")
_TAIL: Final = struct.Struct(">iq")

logger = logging.getLogger("iotmq.store")


class QueueBegins(NamedTuple):
    """The first offsets of a log that begins at `position`: (topic, queue id, offset), none of them 0."""

    position: int
    offsets: list[tuple[str, int, int]]


class BeginsFile:
    """The file beside the queues. What it cannot do is logged; while they last, queue files say the same."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def read(self, end_position: int) -> QueueBegins | None:
        """Return what the file says, for a log that ends at `end_position`; None when it says nothing usable.

        A file that is damaged, or belongs to a longer log and so to another one, is deleted.
        """
        try:
            begins = decode_begins(self._path.read_bytes())
            if begins is not None and begins.position <= end_position:
                return begins
            logger.warning("%s is damaged, or of another log: it is made again", self._path)
            self._path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("cannot read %s: %s", self._path, error)
        return None

    def write(self, begins: QueueBegins) -> None:
        """Replace it, and wait for the disk. Any thread."""
        try:
            with self._lock:
                reached = partial(fail_points.reach, "begins-written")
                replace_file(self._path, encode_begins(begins), written=reached)
        except OSError as error:
            # No reason to keep the log: a full disk has to be given room.
            logger.warning("cannot write %s: %s", self._path, error)

    def forget(self, topics: set[str]) -> None:
        """Topics of these names start over from 0."""
        try:
            begins = decode_begins(self._path.read_bytes())
        except OSError:
            return
        if begins is not None and any(topic in topics for topic, _, _ in begins.offsets):
            kept = [entry for entry in begins.offsets if entry[0] not in topics]
            self.write(begins._replace(offsets=kept))

    def clear(self) -> None:
        """Nothing is known of the log any more; raises OSError."""
        self._path.unlink(missing_ok=True)


def encode_begins(begins: QueueBegins) -> bytes:
    """Encode the contents of the file."""
    parts = [_HEAD.pack(_MAGIC, begins.position)]
    for topic, queue_id, offset in begins.offsets:
        name = topic.encode("utf-8", "surrogateescape")
        parts += (bytes((len(name),)), name, _TAIL.pack(queue_id, offset))
    return sealed(b"".join(parts))


def decode_begins(data: bytes) -> QueueBegins | None:
    """Decode a file's bytes; None when their checksum is wrong."""
    content = unsealed(data)
    if content is None or len(content) < _HEAD.size or not content.startswith(_MAGIC):
        return None
    position = _HEAD.unpack_from(content)[1]
    offsets = []
    at = _HEAD.size
    while at < len(content):
        name_end = at + 1 + content[at]
        if name_end + _TAIL.size > len(content):
            return None
        queue_id, offset = _TAIL.unpack_from(content, name_end)
        offsets.append((content[at + 1 : name_end].decode("utf-8", "surrogateescape"), queue_id, offset))
        at = name_end + _TAIL.size
    return QueueBegins(position, offsets)
