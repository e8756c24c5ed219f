from typing import Final

from typing_extensions import Buffer

from iotmq.mqtt.topics.filters import FilterIndex

END: Final[int]
FULL: Final[int]
CUT: Final[int]
BLANK: Final[int]
BROKEN: Final[int]

def scan_queue(
    filters: FilterIndex,
    filter_id: int,
    view: Buffer,
    *,
    records_max: int,
    bytes_max: int,
    scanned_max: int,
) -> tuple[list[tuple[int, int]], int, int, int, int]: ...
