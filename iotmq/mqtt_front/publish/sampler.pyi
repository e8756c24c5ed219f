from iotmq.telemetry.tracing import Tracing

class Sampler:
    def __init__(self, tracing: Tracing) -> None: ...
