"""Messages from jobs: commands to devices out of a batch of a stream, and settings of native clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame

from iotmq.client.transport.settings import ClientSettings

COMMAND_COLUMNS: Final = ("value", "mqtt_topic", "qos")

# Options of a reader that a writer takes, too.
_OF_BOTH: Final = ("accessKey", "secretKey", "tls", "tlsCaFile", "requestTimeoutMs", "retryTimeoutMs")


def send_commands(
    commands: DataFrame, *, bootstrap: str, topic: str, source: Mapping[str, str], batch: str
) -> None:
    """Store rows of COMMAND_COLUMNS for devices, through a broker topic, which has to be there.

    `batch` is QUERY-NUMBER: what is sent again, by a batch that is done again, is stored once.
    """
    query, _, number = batch.rpartition("-")
    # One task and one order, so that each try sends the same.
    ordered = commands.coalesce(1).sortWithinPartitions(*COMMAND_COLUMNS)
    (
        ordered.write.format("iotmq")
        .mode("append")
        .options(**{name: value for name, value in source.items() if name in _OF_BOTH})
        .options(**{"iotmq.bootstrap.servers": bootstrap, "topic": topic})
        .options(producerId=query, batchId=number)
        .save()
    )


def client_settings(bootstrap: str, source: Mapping[str, str]) -> ClientSettings:
    """Return settings of a native client with the account and the encryption of options of format iotmq."""
    return ClientSettings(
        registries=tuple(bootstrap.split(",")),
        access_key=source.get("accessKey", ""),
        secret_key=source.get("secretKey", ""),
        tls_enabled=source.get("tls", "").lower() == "true",
        tls_ca_file=source.get("tlsCaFile", ""),
    )
