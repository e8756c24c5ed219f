from iotmq.store.log.queue import Queue

class QueueTable:
    @property
    def queues(self) -> list[Queue]: ...
