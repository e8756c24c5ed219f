from collections.abc import Sequence

from iotmq.mqtt_front.settings.routes import ChecksumSettings

class Checksum:
    @property
    def name(self) -> str: ...
    def __init__(
        self,
        settings: ChecksumSettings,
        name: str,
        table: Sequence[int],
        *,
        start: int,
        xor_out: int,
        is_reversed: bool,
    ) -> None: ...
    def compute(self, data: bytes) -> int: ...
    def wrong_in(self, frame: bytes) -> str: ...
    def pace(self, frame: bytes, times: int) -> int: ...
