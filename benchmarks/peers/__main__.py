"""Fetches the peers of the benchmarks into build/peers: `python -m benchmarks.peers [NAME...]`.

What is there already takes no time. What cannot be had is said, with the reason.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.peers import native
from benchmarks.peers.mqtt import PEERS as MQTT_PEERS
from benchmarks.peers.server import PeerError
from benchmarks.peers.spark_kafka import SPARK_KAFKA


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all that were asked for are there."""
    # A server with two protocols is fetched once: both descriptions have the same source.
    known = native.PEERS | MQTT_PEERS | {SPARK_KAFKA.name: SPARK_KAFKA}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in known:
            parser.error(f"unknown peer {name}: one of {', '.join(known)}")
    missing = 0
    for name in options.names or known:
        try:
            known[name].fetch()
        except PeerError as error:
            missing += 1
            print(f"{known[name].title}: CANNOT BE HAD: {error}", file=sys.stderr)
        else:
            print(f"{known[name].title}: there", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
