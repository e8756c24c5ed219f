from iotmq.store.queue import Queue

class QueueTable:
    @property
    def queues(self) -> list[Queue]: ...
