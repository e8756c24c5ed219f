"""Make the consensus store that the settings name."""

from __future__ import annotations

from iotmq.clock import Clock
from iotmq.replication.consensus.etcd import EtcdStore
from iotmq.replication.consensus.kubernetes import KubernetesStore
from iotmq.replication.consensus.port import ConsensusStore
from iotmq.replication.consensus.settings import EtcdSettings, KubernetesSettings


def open_consensus_store(
    settings: EtcdSettings | KubernetesSettings, *, cluster: str, broker: str, clock: Clock
) -> ConsensusStore:
    """Make the store of one broker name; call it while an event loop runs, and close the store.

    ConfigError names the setting that cannot be used. No request is sent yet.
    """
    if isinstance(settings, EtcdSettings):
        return EtcdStore(settings, cluster=cluster, broker=broker, clock=clock)
    return KubernetesStore(settings, cluster=cluster, broker=broker, clock=clock)
