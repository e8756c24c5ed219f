from collections.abc import Sequence
from ssl import SSLContext

from typing_extensions import Buffer

from loadtest.swarm.histogram import Histogram
from loadtest.swarm.sink import Sink as Sink

STAMP_MAGIC: int
STAMP_BYTES: int
WINDOW_MAX: int
PAYLOAD_BYTES_MAX: int
RING_BYTES_MAX: int
TRACKED_BYTES_MAX: int
TOPIC_DIGITS: int
TOPICS_PER_PUBLISHER_MAX: int
PORTS_MAX: int
FIELD_SIZES: dict[str, int]

def read_stamp(payload: Buffer) -> tuple[int, int, int] | None: ...

class Engine:
    has_text_stamps: bool
    spin_ns: int
    def __init__(
        self,
        host: str,
        port: int,
        *,
        qos: int = 1,
        window: int = 100,
        payload: bytes = ...,
        keep_alive_s: float = 60.0,
        lead_max: int = 0,
        measures_acks: bool = False,
        number_base: int = 0,
        publishers_tracked: int = 0,
        topics_per_publisher: int = 1,
        fallback_ports: Sequence[int] = (),
        return_after_s: float = 0.0,
        source_addresses: Sequence[str] = (),
        publish_properties: bytes | None = None,
        upgrade: bytes = b"",
        tls: tuple[Sequence[SSLContext], str | None] | None = None,
        sizes: Sequence[int] = (),
        answer_timeout_s: float = 0.0,
        returns: bool = False,
        forgets: bool = False,
        subscriber_base: int | None = None,
    ) -> None: ...
    def add_idle(self, connect: bytes) -> None: ...
    def add_subscriber(
        self, connect: bytes, subscribe: bytes, *, unsubscribe: bytes = b"", group: str = ""
    ) -> None: ...
    def add_publisher(
        self,
        connect: bytes,
        topic: bytes,
        *,
        number_at: int = 0,
        payload: bytes | None = None,
        topic_fields: Sequence[tuple[int, str]] = (),
        payload_fields: Sequence[tuple[int, str]] = (),
    ) -> int: ...
    def connect(
        self,
        *,
        rate_per_s: float = 2_000.0,
        in_progress_max: int = 64,
        timeout_s: float = 30.0,
        goes_on: bool = False,
    ) -> bool: ...
    def change(
        self, *, leave_per_s: float = 0.0, leaves_rudely: bool = False, resubscribe_per_s: float = 0.0
    ) -> None: ...
    def start(
        self, *, messages_max: int, rate_per_s: int = 0, rate_from_per_s: int = 0, ramp_s: float = 0.0
    ) -> None: ...
    def stop(self) -> None: ...
    def run(self, seconds: float) -> bool: ...
    def drain(self, timeout_s: float, *, delivered: int = 0) -> bool: ...
    def measure(self) -> None: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...
    def counters_now(self) -> dict[str, int]: ...
    def faults(self) -> dict[str, dict[int, int]]: ...
    def ends(self) -> dict[str, dict[str, int]]: ...
    def latencies(self) -> dict[str, dict[str, float]]: ...
    def histograms(self) -> dict[str, Histogram]: ...
    def publisher_progress(self) -> list[tuple[int, int, int]]: ...
    @property
    def tracks_sequences(self) -> bool: ...
    @property
    def oldest_repeat_at_ns(self) -> int | None: ...
    @property
    def last_error(self) -> int: ...
    @property
    def last_refusal(self) -> int: ...
    @property
    def last_tls_error(self) -> str: ...
