"""Topics that topics.json lost in a crash, or a new master was not told of: the log has their queues.

Apart from system_topics.py, which knows its topics without a store: these only the log can name.
"""

from __future__ import annotations

import logging

from iotmq.broker.tables.topics import DLQ_PREFIX, RETRY_PREFIX, TopicTable, is_legal_name
from iotmq.replicated.member_log import EPOCH_TOPIC
from iotmq.store.store import Store

logger = logging.getLogger(__name__)


def recall_topics(store: Store, topics: TopicTable, *, default_topic_queues: int) -> None:
    """Have a topic for every queue of the log that holds records."""
    counts: dict[str, int] = {}
    for queue in store.queues():
        has_records = queue.max_offset > queue.first_offset
        if queue.topic == EPOCH_TOPIC:
            # Nobody's to read.
            continue
        if has_records and topics.find(queue.topic) is None and is_legal_name(queue.topic):
            counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
    for name, count in counts.items():
        # How many it had is not known; one too many is an empty queue, one too few hides messages.
        if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            count = max(count, default_topic_queues)
        topics.ensure(name, queues=count)
        logger.warning("topic %s was not in topics.json and is made again for its messages", name)
