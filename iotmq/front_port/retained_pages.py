"""Make one page of the retained messages of several brokers, each of which may have one for a topic.

A topic's messages go to another broker when queues come and go. The last one counts, by the clock of the
front end that sent it to its broker: a broker may store one late, when nobody waits for its answer any more.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import MQTT_TOPIC
from iotmq.message.records.record import decode_record, property_value
from iotmq.ports.sessions import Refused, RetainedRecords
from iotmq.remoting.codes import ResponseCode

_TOPIC = MQTT_TOPIC.encode()


def merged_page(answers: Sequence[RetainedRecords | Refused]) -> RetainedRecords | Refused:
    """Return the next page of all, up to the topic that each of them has come to.

    All answers begin at the same topic. A broker that is away has none. Another refusal is one of the whole.
    """
    pages = []
    for answer in answers:
        if not isinstance(answer, Refused):
            pages.append(answer)
        elif answer.code != ResponseCode.SERVICE_NOT_AVAILABLE or len(answers) == 1:
            return answer
    if not pages:
        return answers[-1] if answers else RetainedRecords([], None)
    if len(answers) == 1:
        return pages[0]
    try:
        return _merged(pages)
    except (binascii.Error, MessageFormatError) as error:
        return Refused(ResponseCode.SYSTEM_ERROR, f"retained messages of a broker cannot be read: {error}")


def _merged(pages: Sequence[RetainedRecords]) -> RetainedRecords:
    # (topic, as the brokers write it) up to which each has told everything.
    ends = [
        (base64.b64decode(page.after, validate=True), page.after) for page in pages if page.after is not None
    ]
    end, after = min(ends) if ends else (None, None)
    last: dict[bytes, tuple[tuple[int, int], memoryview]] = {}
    for page in pages:
        for view in page.records:
            record = decode_record(view)
            topic = property_value(record.properties, _TOPIC) or b""
            found = ((record.born_timestamp_ms, record.store_timestamp_ms), memoryview(view))
            if (end is None or topic <= end) and (topic not in last or last[topic][0] < found[0]):
                last[topic] = found
    return RetainedRecords([last[topic][1] for topic in sorted(last)], after)
