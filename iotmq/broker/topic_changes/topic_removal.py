"""Deleting topics so that they stay deleted, whenever the process dies.

A deletion is in deletedTopics.json, on the disk, before it is answered. The topic's queues begin behind the
position it names; their files go when the log has none of their records any more, and until then offsets go
on: an offset never means two records of one log, so filling the queues from the log again stays possible.
"""

from __future__ import annotations

import logging

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.tables.deleted_topics import DeletedTopic
from iotmq.errors import StoreError

logger = logging.getLogger(__name__)

# A pass of `clean` is a pause of the loop.
_CLEANED_MAX = 64


class TopicRemoval:
    """Everything a topic is, taken away: configuration, committed offsets, queues."""

    def __init__(self, parts: BrokerParts) -> None:
        self._store = parts.store
        self._topics = parts.topics
        self._offsets = parts.offsets

    def resume(self) -> None:
        """Carry out what is remembered; before anybody reads. May raise OSError."""
        end_position = self._store.appended_position
        # Before topics are deleted: that counts the version up.
        counter = self._topics.version.counter
        for name, deleted in self._topics.deleted.items():
            if deleted.position > end_position:
                # The end of the log was lost: what is appended there next is not the deleted topic's.
                deleted = DeletedTopic(position=end_position, version=deleted.version)
                self._topics.deleted.add(name, deleted)
            if self._topics.find(name) is not None and counter < deleted.version:
                self._topics.delete(name)
            self._topics.count_up_to(deleted.version)
        self._store.hide_topics({name: deleted.position for name, deleted in self._topics.deleted.items()})
        self._offsets.forget_topics(
            {name for name, _ in self._topics.deleted.items() if self._topics.find(name) is None}
        )
        # One whose end was moved, and what was copied from a former master.
        data = self._topics.deleted.take_unsaved()
        if data is not None:
            self._topics.deleted.write(data)

    def delete(self, name: str) -> None:
        """Delete a topic, whether it is configured or only has queues.

        The caller has `topics.deleted` saved before it says that it is done. RequestError (1) when too many
        deletions are remembered.
        """
        queues = (self._store.find_queue(name, queue_id) for queue_id in range(limits.QUEUES_PER_TOPIC_MAX))
        has_queues = any(queue is not None and queue.next_offset > 0 for queue in queues)
        if has_queues:
            self._topics.deleted.check_room(name)
        position = self._store.appended_position
        self._topics.delete(name)
        self._offsets.forget_topics({name})
        if has_queues:
            self._topics.deleted.add(
                name, DeletedTopic(position=position, version=self._topics.version.counter)
            )
            self._store.hide_topics({name: position})

    def unused(self) -> list[str]:
        """Topics that have messages in queues and are not configured."""
        names = {queue.topic for queue in self._store.queues() if queue.min_offset < queue.max_offset}
        return sorted(name for name in names if self._topics.find(name) is None)

    def clean(self) -> None:
        """Forget the deletions the log has passed, with the queues' files; call every ten seconds or so."""
        gone_position = self._store.gone_position
        passed = [name for name, deleted in self._topics.deleted.items() if deleted.position <= gone_position]
        made_again = {name for name in passed if self._topics.find(name) is not None}
        gone = [name for name in passed if name not in made_again][:_CLEANED_MAX]
        removed = set(gone)
        # Members cannot forget a queue all at the same place of the log, and a topic that is made again would
        # begin at offset 0 for some of them: empty queues stay.
        if gone and not self._store.is_replicated:
            try:
                removed = self._store.remove_queues(gone)
            except StoreError as error:
                logger.warning("%s", error)
                removed = set()
        for name in made_again | removed:
            self._topics.deleted.forget(name)
