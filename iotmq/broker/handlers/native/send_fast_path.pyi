from collections.abc import Callable

from iotmq.broker.parts import BrokerParts
from iotmq.remoting.frames.send_frames import SendRun
from iotmq.remoting.server import ServerConnection
from iotmq.store.log.queue import Queue

class SendPath:
    def __init__(
        self,
        parts: BrokerParts,
        open_topic: Callable[[str], list[Queue | None] | None],
        *,
        batch_properties: bytes,
        general_properties: tuple[bytes, ...],
    ) -> None: ...
    def forget(self, topic: str) -> None: ...
    def forget_all(self) -> None: ...
    def change_trace_on(self, trace_on: str) -> None: ...
    def serve(self, connection: ServerConnection, born_host: bytes, run: SendRun, at: int) -> int: ...
