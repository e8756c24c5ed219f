"""Read the options that say how commands connect to registries and brokers."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iotmq.client.transport.settings import ClientSettings


def add_connection_options(command: argparse.ArgumentParser) -> None:
    """Return how long to wait, and how to connect: the same for every command that speaks to brokers."""
    command.add_argument(
        "--timeout",
        dest="request_timeout_s",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="timeout of one request (5)",
    )
    command.add_argument(
        "--access-key",
        default=os.environ.get("IOTMQ_ACCESS_KEY", ""),
        metavar="KEY",
        help="account (IOTMQ_ACCESS_KEY); its secret is in IOTMQ_SECRET_KEY",
    )
    command.add_argument("--tls", dest="has_tls", action="store_true", help="connect by TLS")
    command.add_argument(
        "--tls-ca",
        dest="tls_ca_file",
        default="",
        metavar="FILE.pem",
        help="roots of the servers (the machine's)",
    )
    command.add_argument(
        "--tls-cert",
        dest="tls_certificate_file",
        default="",
        metavar="FILE.pem",
        help="certificate of this client, where servers ask for one",
    )
    command.add_argument(
        "--tls-key",
        dest="tls_key_file",
        default="",
        metavar="FILE.pem",
        help="its key, unless that file has it",
    )
    command.add_argument(
        "--tls-unverified", dest="is_unverified", action="store_true", help="accept any server certificate"
    )


def client_settings(options: argparse.Namespace, registries: tuple[str, ...]) -> ClientSettings:
    """Return the settings of a client that connects as the options say."""
    # Loading it costs a command line that only asks for help a tenth of a second.
    from iotmq.client.transport.settings import ClientSettings

    return ClientSettings(
        registries=registries,
        request_timeout_ms=max(10, int(options.request_timeout_s * 1000)),
        access_key=options.access_key,
        secret_key=os.environ.get("IOTMQ_SECRET_KEY", ""),
        tls_enabled=options.has_tls,
        tls_ca_file=options.tls_ca_file,
        tls_certificate_file=options.tls_certificate_file,
        tls_key_file=options.tls_key_file,
        tls_is_verified=not options.is_unverified,
    )
