"""Which local sessions subscribe a light queue. Mostly it is one, and then there is no list for it."""

from libc.stdint cimport uint32_t

from iotmq.mqtt_front.kept_session cimport QueueSubscription


cdef class QueueSubscriptions:

    def __init__(self):
        self._queues = {}

    def __len__(self):
        """Light queues that local sessions subscribe."""
        return len(self._queues)

    cdef tuple find(self, uint32_t queue_id):
        """The subscriptions of a queue."""
        found = self._queues.get(queue_id)
        if found is None:
            return ()
        return tuple(found) if isinstance(found, list) else (found,)

    cdef int put(self, QueueSubscription subscription) except -1:
        found = self._queues.setdefault(subscription.queue_id, subscription)
        if isinstance(found, list):
            (<list>found).append(subscription)
        elif found is not subscription:
            self._queues[subscription.queue_id] = [found, subscription]
        return 0

    cdef int discard(self, QueueSubscription subscription) except -1:
        found = self._queues[subscription.queue_id]
        if isinstance(found, list):
            (<list>found).remove(subscription)
            if len(<list>found) > 1:
                return 0
            self._queues[subscription.queue_id] = (<list>found)[0]
        else:
            del self._queues[subscription.queue_id]
        return 0
