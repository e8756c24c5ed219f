"""Commands to devices, out of a batch of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from pyspark.sql import DataFrame

from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings
from iotmq.message.properties import MQTT_QOS, MQTT_TOPIC

COMMAND_COLUMNS: Final = ("value", "mqtt_topic", "qos")

_AT_ONCE: Final = 500


def send_commands(commands: DataFrame, bootstrap: str, topic: str, source: Mapping[str, str]) -> int:
    """Send rows of COMMAND_COLUMNS to devices, through a broker topic; returns how many when all are stored.

    Account and encryption are those of `source`, options of format iotmq. A batch done again is sent again.
    """
    rows = iter(commands.toLocalIterator())
    sent = 0
    with SyncClient(client_settings(bootstrap, source)) as client, SyncProducer(client) as producer:
        while messages := [
            Message(topic, bytes(row.value), properties={MQTT_TOPIC: row.mqtt_topic, MQTT_QOS: str(row.qos)})
            for row in islice(rows, _AT_ONCE)
        ]:
            producer.send_batch(messages)
            sent += len(messages)
    return sent


def client_settings(bootstrap: str, source: Mapping[str, str]) -> ClientSettings:
    """Return settings of a native client with the account and the encryption of options of format iotmq."""
    return ClientSettings(
        registries=tuple(bootstrap.split(",")),
        access_key=source.get("accessKey", ""),
        secret_key=source.get("secretKey", ""),
        tls_enabled=source.get("tls", "").lower() == "true",
        tls_ca_file=source.get("tlsCaFile", ""),
    )
