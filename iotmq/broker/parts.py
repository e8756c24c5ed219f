"""The parts of a broker that nearly all others are built on, made once and handed down together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from iotmq.broker.broker_role import BrokerRole
from iotmq.broker.exactly_once.batch_numbers import BatchNumbers
from iotmq.broker.exactly_once.received_ids import ReceivedIds
from iotmq.broker.exactly_once.stored_once import StoredOnce
from iotmq.broker.members.groups import Groups
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.changed_settings import ChangedSettings
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.generations import Generations, LogGenerations
from iotmq.broker.tables.subscription_groups import SubscriptionGroups
from iotmq.broker.tables.system_topics import system_topic_names
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.writing.message_ids import OffsetMessageIds
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.broker.writing.slave_waits import SlaveWaits
from iotmq.clock import Clock, SystemClock
from iotmq.ports.inspections import Inspections
from iotmq.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """Tables, writer and counters of one broker over one store. The event loop's thread uses all of them.

    `config` is the folder of its files, `host` the address that records carry as the host they were stored
    at (8 or 20 bytes).
    """

    clock: Clock
    store: Store
    config: Path
    host: bytes
    role: BrokerRole
    changed_settings: ChangedSettings
    topics: TopicTable
    # None where the log is copied from a master.
    log_generations: LogGenerations | None
    generations: Generations
    subscription_groups: SubscriptionGroups
    offsets: ConsumerOffsets
    groups: Groups
    statistics: Statistics
    writer: MessageWriter
    stored_once: StoredOnce
    cold_reads: ColdReads
    message_ids: OffsetMessageIds
    # What operators ask this process; parts add what they have to show.
    inspections: Inspections

    @property
    def settings(self) -> BrokerSettings:
        """Return the settings in effect; some change while the broker runs (`ChangedSettings`)."""
        return self.changed_settings.broker

    @property
    def system_topics(self) -> frozenset[str]:
        """Topics the broker makes and needs: not a client's to change or delete."""
        return system_topic_names(self.settings)


def make_parts(
    settings: BrokerSettings,
    store: Store,
    *,
    directory: Path,
    host: bytes,
    clock: Clock | None = None,
    role: BrokerRole | None = None,
) -> BrokerParts:
    """Read the files of `directory`/config and make the parts. StoreError when a file is broken."""
    clock = clock or SystemClock()
    role = role or BrokerRole()
    config = directory / "config"
    changed_settings = ChangedSettings(
        config / "brokerSettings.json", settings, store.settings, role_facts=role.facts()
    )
    settings = changed_settings.broker
    topics = TopicTable(config / "topics.json", clock, end_position=lambda: store.appended_position)
    log_generations = None
    if role.epochs is None and not role.is_slave:
        log_generations = LogGenerations(config / "logGenerations.json", clock)
    statistics = Statistics(clock)
    slave_waits = (
        None if role.slaves is None else SlaveWaits(role.slaves, clock, timeout_s=role.slave_timeout_s)
    )
    writer = MessageWriter(store, topics, changed_settings, clock, statistics, slave_waits=slave_waits)
    received = ReceivedIds(store.key_values())
    store.add_projection(received)
    numbers = BatchNumbers(store.key_values(), made_at=topics.made_at)
    store.add_projection(numbers)
    return BrokerParts(
        clock=clock,
        store=store,
        config=config,
        host=host,
        role=role,
        changed_settings=changed_settings,
        topics=topics,
        log_generations=log_generations,
        generations=Generations(
            log_generations or role.epochs or tuple, is_replicated=role.epochs is not None
        ),
        subscription_groups=SubscriptionGroups(
            config / "subscriptionGroup.json", clock, may_create=settings.auto_create_groups
        ),
        offsets=ConsumerOffsets(config / "consumerOffset.json"),
        groups=Groups(clock, expiry_s=settings.client_expiry_s),
        statistics=statistics,
        writer=writer,
        stored_once=StoredOnce(writer, received, numbers, host=host),
        cold_reads=ColdReads(
            store, threads_max=settings.cold_read_threads, waiting_max=settings.cold_reads_max
        ),
        message_ids=OffsetMessageIds(host),
        inspections=Inspections(),
    )
