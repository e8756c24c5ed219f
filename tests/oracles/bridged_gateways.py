"""Gateways with bridges between them, as processes; and what each has in its log."""

from __future__ import annotations

from pathlib import Path

import msgspec
from gateway_process import GatewayProcess
from log_reader import StoredMessage, read_topic


def gateway(directory: Path, name: str, *assignments: str, config: str = "") -> GatewayProcess:
    """A gateway with this name, and the bridges of a TOML text."""
    file = directory / f"{name}.toml"
    file.write_text(config)
    return GatewayProcess(
        directory / name, f"mqtt.gateway_name={name}", *assignments, config=file, has_clean_log=True
    )


def bridge(name: str, port: int, *rules: str, **settings: object) -> str:
    """`[[bridges]]` to a port of this machine that looks after its connection often; rules are TOML text."""
    fields = {
        "name": name,
        "address": f"mqtt://127.0.0.1:{port}",
        "reconnect_min_s": 0.1,
        "reconnect_max_s": 0.5,
        **settings,
    }
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in fields.items()]
    return "\n".join(["[[bridges]]", *lines, *rules, ""])


def send(topic_filter: str = "#", **settings: object) -> str:
    """A rule of what goes."""
    return _rule("send", topic_filter, settings)


def receive(topic_filter: str, **settings: object) -> str:
    """A rule of what comes."""
    return _rule("receive", topic_filter, settings)


def _rule(kind: str, topic_filter: str, settings: dict[str, object]) -> str:
    fields = {"filter": topic_filter, **settings}
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in fields.items()]
    return "\n".join([f"[[bridges.{kind}]]", *lines])


def messages(running: GatewayProcess, topic: str = "mqtt") -> list[StoredMessage]:
    """What is in a broker topic, queue after queue."""
    return [message for queue in read_topic(running.registry, topic).values() for message in queue]


def bodies(running: GatewayProcess, topic: str = "mqtt") -> list[str]:
    """The payloads of these, sorted."""
    return sorted(message.body.decode() for message in messages(running, topic))
