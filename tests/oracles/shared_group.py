"""A group whose members are clients of several kinds, each behind a pipe: they share its queues."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from eventually import eventually
from piped_client import PipedClient

from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.errors import IotmqError

QUEUES = 8
# The name of the one that is not asked.
CPP = "cpp"


class SharedGroup:
    """Sends to each queue of a topic, and compares it with what the members have consumed."""

    def __init__(
        self, client: SyncClient, producer: SyncProducer, group: str, topic: str, *, is_orderly: bool
    ) -> None:
        client.admin.create_topic(topic, queues=QUEUES)
        self._admin = client.admin
        self._producer = producer
        self._group = group
        self._topic = topic
        self._is_orderly = is_orderly
        self._sent = 0
        self._members: dict[str, PipedClient] = {}
        self._said: dict[str, PipedClient] = {}
        """Also of those that have left or were killed."""

    def join(self, name: str, member: PipedClient) -> None:
        """`name` is what its client id ends with; returns when each member has its part of the queues."""
        self.wait_committed()
        words = {"group": self._group, "topic": self._topic, "orderly": self._is_orderly}
        member.call("push", instance=name, **words)
        self._members[name] = self._said[name] = member
        self._settle()

    def leave(self, name: str) -> set[str]:
        """Have it leave; returns what it has consumed and committed with its last breath."""
        self.wait_committed()
        queue_ids = self.parts()[name]
        sent = self.send(5, queue_ids)
        # It says what it consumes before it counts it as consumed: these may come twice, not those before.
        self.send(1, queue_ids)
        self._members.pop(name).call("shutdown", name=name)
        self._settle()
        return sent

    def kill(self, name: str) -> None:
        """kill -9, once all that was consumed is committed."""
        self.wait_committed()
        self._members.pop(name).kill()

    def wait_committed(self) -> None:
        """Wait until all that was consumed is committed: who gets a queue asks for its offset at once.

        Not in order: there the former owner commits before it gives back the lock of a queue.
        """
        if self._is_orderly or not self._members:
            return
        for name, member in self._members.items():
            if name.startswith("java"):
                member.call("commit", name=name)
        eventually(self._is_committed, "all is committed")

    def send(self, rounds: int, queue_ids: Collection[int] = range(QUEUES)) -> set[str]:
        """Send so many messages to each of these queues; returns their bodies when all are consumed."""
        names = set()
        for queue in self._producer.queues(self._topic) * rounds:
            if queue.queue_id in queue_ids:
                name = f"{self._sent:05}"
                self._producer.send(Message(self._topic, name.encode()), queue=queue)
                names.add(name)
                self._sent += 1
        eventually(lambda: names <= self._counts().keys(), "all is consumed", within_s=60)
        return names

    def parts(self) -> dict[str, list[int]]:
        """The queues of each member as it says itself, asked by its broker.

        The C++ client may fall silent for ever when it is asked while it looks at its queues anew: what is
        left by the others counts as its own.
        """
        groups = self._admin.groups
        connections = groups.connections(self._group)
        parts: dict[str, list[int]] = {}
        left = list(range(QUEUES))
        for member in connections.connection_set if connections is not None else ():
            name = member.client_id.rpartition("@")[2]
            if name == CPP:
                parts[name] = left
                continue
            info = groups.running_info(self._group, member.client_id)
            queues = [json.loads(queue) for queue in info.mq_table]
            parts[name] = sorted(queue["queueId"] for queue in queues if queue["topic"] == self._topic)
            left[:] = [queue_id for queue_id in left if queue_id not in parts[name]]
        return parts

    def _settle(self) -> None:
        """Wait until each queue has one owner, and each member its part by the same allocation."""
        try:
            eventually(self._is_shared, "the members share the queues")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.parts()}") from None
        if CPP in self._members:
            part = {*self.parts()[CPP]}
            assert any(self._are_read_by_cpp(part) for _ in range(200)), "it does not read what is left"

    def _are_read_by_cpp(self, part: set[int]) -> bool:
        """Whether messages of these queues, and no other ones, come to the C++ client, and all come once."""
        names = self.send(2)
        # What came to two members has come to both by then.
        self.send(2)
        counts = self._counts()
        return {line["queue_id"] for line in self._lines(CPP) if line["body"] in names} == part and all(
            counts[name] == 1 for name in names
        )

    def _is_shared(self) -> bool:
        try:
            parts = self.parts()
        except IotmqError:
            # A member that has just gone.
            return False
        least, more = divmod(QUEUES, len(self._members))
        in_a_row = sorted(parts.values())
        return (
            parts.keys() == self._members.keys()
            and list(itertools.chain.from_iterable(in_a_row)) == list(range(QUEUES))
            and [len(part) for part in in_a_row] == [least + (at < more) for at in range(len(parts))]
        )

    def check_once(self, names: set[str]) -> None:
        """Each was consumed once, by whom ever."""
        counts = self._counts()
        twice = {
            name: [member for member in self._said for line in self._lines(member) if line["body"] == name]
            for name in sorted(names)
            if counts[name] != 1
        }
        assert twice == {}, twice

    def check_owners(self, names: set[str]) -> None:
        """Who has a queue consumed what was sent to it."""
        for name, queue_ids in self.parts().items():
            consumed = [line for line in self._lines(name) if line["body"] in names]
            assert {line["queue_id"] for line in consumed} == {*queue_ids}
            assert len(consumed) == len(names) * len(queue_ids) // QUEUES

    def check_order(self) -> None:
        """Each queue was consumed in order, by one member after the other."""
        for queue_id in range(QUEUES):
            parts = [
                [line["body"] for line in self._lines(name) if line["queue_id"] == queue_id]
                for name in self._said
            ]
            assert all(bodies == sorted(bodies) for bodies in parts), (queue_id, parts)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return self._said[name].said("message", topic=self._topic, consumer=name)

    def _counts(self) -> Counter[str]:
        return Counter(line["body"] for name in self._said for line in self._lines(name))

    def _is_committed(self) -> bool:
        ends = {queue: offsets.end for queue, offsets in self._admin.offsets(self._topic).items()}
        committed = self._admin.group_offsets(self._group, self._topic)
        return all((committed[queue] or 0) == end for queue, end in ends.items())
