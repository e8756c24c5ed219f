"""The NATS server, which is a peer in its own protocol and in MQTT."""

from typing import Final

from benchmarks.peers.peer import Place
from benchmarks.peers.sources import GoProgram

NATS_SOURCE: Final = GoProgram("github.com/nats-io/nats-server/v2", "v2.15.2", "nats-server")


def nats_configuration(place: Place, *, client_port: int) -> str:
    """JetStream in files, with its own port; MQTT wants a server name."""
    sync = "\n  sync_interval: always" if place.is_durable else ""
    return (
        f'server_name: "peer"\nlisten: "127.0.0.1:{client_port}"\n'
        f'jetstream {{\n  store_dir: "{place.directory}"\n  max_file_store: 100GB{sync}\n'
        # A subscription of QoS 1 is a consumer.
        "  limits {\n    default_max_consumers: 1000000\n  }\n}\n"
        + "".join(f"{line}\n" for line in place.more)
    )
