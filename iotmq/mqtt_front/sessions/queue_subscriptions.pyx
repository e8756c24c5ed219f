"""List the local sessions that subscribe a light queue, in no order. Mostly it is one, without a list."""

from libc.stdint cimport uint32_t

from iotmq.mqtt_front.sessions.kept_session cimport QueueSubscription


cdef class QueueSubscriptions:

    def __init__(self):
        self._queues = {}

    def __len__(self):
        """Light queues that local sessions subscribe."""
        return len(self._queues)

    cdef tuple find(self, uint32_t queue_id):
        """Return the subscriptions of a queue."""
        found = self._queues.get(queue_id)
        if found is None:
            return ()
        return tuple(found) if isinstance(found, list) else (found,)

    cdef int put(self, QueueSubscription subscription) except -1:
        found = self._queues.setdefault(subscription.queue_id, subscription)
        subscription.place = 0
        if isinstance(found, list):
            subscription.place = <uint32_t>len(<list>found)
            (<list>found).append(subscription)
        elif found is not subscription:
            subscription.place = 1
            self._queues[subscription.queue_id] = [found, subscription]
        return 0

    cdef int discard(self, QueueSubscription subscription) except -1:
        cdef QueueSubscription last
        cdef list several
        found = self._queues[subscription.queue_id]
        if not isinstance(found, list):
            del self._queues[subscription.queue_id]
            return 0
        # The last takes its place: a hundred thousand that leave one filter are not looked through for each.
        several = <list>found
        last = several.pop()
        if last is not subscription:
            several[subscription.place] = last
            last.place = subscription.place
        if len(several) == 1:
            self._queues[subscription.queue_id] = last = several[0]
            last.place = 0
        return 0
