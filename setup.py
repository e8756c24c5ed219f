"""Builds the compiled modules; everything else about the package is in pyproject.toml.

``IOTMQ_BUILD_ONLY`` (module names separated by commas) limits a build to those modules.
"""

import importlib.util
import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# The one list of compiled modules: dotted name, source suffix, libraries.
COMPILED_MODULES: list[tuple[str, str, list[str]]] = [
    ("iotmq.message.record", ".pyx", ["z"]),
    ("iotmq.message.column_fill", ".pyx", ["z"]),
    ("iotmq.message.columns", ".pyx", []),
    ("iotmq.message.record_filter", ".pyx", []),
    ("iotmq.message.record_walk", ".pyx", []),
    ("iotmq.store.segment", ".pyx", []),
    ("iotmq.store.resync", ".pyx", ["z"]),
    ("iotmq.store.marker", ".pyx", ["z"]),
    ("iotmq.store.log_segments", ".pyx", []),
    ("iotmq.store.commit_log", ".pyx", ["z"]),
    ("iotmq.store.queue", ".pyx", []),
    ("iotmq.store.queue_table", ".pyx", []),
    ("iotmq.store.consume_queue", ".pyx", []),
    ("iotmq.store.log_scan", ".pyx", ["z"]),
    ("iotmq.store.log_cover", ".pyx", ["z"]),
    ("iotmq.store.entry_search", ".pyx", ["z"]),
    ("iotmq.store.reads", ".pyx", []),
    ("iotmq.store.index_file", ".pyx", []),
    ("iotmq.store.index_lookup", ".pyx", []),
    ("iotmq.store.key_index", ".pyx", []),
    ("iotmq.store.dispatch", ".pyx", []),
    ("iotmq.store.latest_collector", ".pyx", []),
    ("iotmq.store.timer_record", ".pyx", []),
    ("iotmq.store.timer_collector", ".pyx", []),
    ("iotmq.store.residency", ".pyx", []),
    ("iotmq.store.raw", ".pyx", ["z"]),
    ("iotmq.store.group_commit", ".pyx", []),
    ("iotmq.mqtt.topic_table", ".pyx", []),
    ("iotmq.mqtt.publish_sink", ".pyx", []),
    ("iotmq.mqtt.connection_settings", ".pyx", []),
    ("iotmq.mqtt.publish_properties", ".pyx", []),
    ("iotmq.mqtt.topic_aliases", ".pyx", []),
    ("iotmq.mqtt.framing", ".pyx", []),
    ("iotmq.mqtt.acknowledgements", ".pyx", []),
    ("iotmq.mqtt.in_flight", ".pyx", []),
    ("iotmq.mqtt.outbound", ".pyx", []),
    ("iotmq.mqtt.connection", ".pyx", []),
    ("iotmq.mqtt.client_input", ".pyx", []),
    ("iotmq.broker.push_channel", ".pyx", []),
    ("iotmq.broker.delivery", ".pyx", []),
    ("iotmq.broker.wide_filters", ".pyx", []),
    ("iotmq.broker.light_queues", ".pyx", []),
    ("iotmq.broker.queue_scan", ".pyx", []),
    ("iotmq.broker.queued_push", ".pyx", []),
    ("iotmq.broker.retained_collector", ".pyx", []),
    ("iotmq.broker.received_marks", ".pyx", ["z"]),
    ("iotmq.remoting.frame_header", ".pyx", []),
    ("iotmq.remoting.send_frames", ".pyx", []),
    ("iotmq.remoting.signed_frames", ".pyx", []),
    ("iotmq.broker.send_properties", ".pyx", []),
    ("iotmq.broker.send_path", ".pyx", ["z"]),
    ("iotmq.remoting.pull_frames", ".pyx", []),
    ("iotmq.broker.pull_path", ".pyx", []),
    ("iotmq.broker.property_filter", ".pyx", []),
    ("iotmq.broker.counters", ".pyx", []),
    ("iotmq.broker.latencies", ".pyx", []),
    ("iotmq.mqtt.filters", ".pyx", []),
    ("iotmq.mqtt_front.device", ".pyx", []),
    ("iotmq.mqtt_front.websocket", ".pyx", []),
    ("iotmq.mqtt_front.ingress", ".pyx", []),
    ("iotmq.mqtt_front.message_properties", ".pyx", []),
    ("iotmq.mqtt_front.outgoing", ".pyx", []),
    ("iotmq.mqtt_front.held_message", ".pyx", []),
    ("iotmq.mqtt_front.egress", ".pyx", []),
    ("iotmq.mqtt_front.kept_session", ".pyx", []),
    ("iotmq.mqtt_front.flight_ring", ".pyx", []),
    ("iotmq.mqtt_front.queue_subscriptions", ".pyx", []),
    ("iotmq.mqtt_front.session_reports", ".pyx", []),
    ("iotmq.mqtt_front.durable", ".pyx", []),
    ("iotmq.mqtt_front.shared", ".pyx", []),
    ("loadtest.swarm.engine", ".pyx", []),
]

# Modules that are built against the classes of a library, which may not be installed yet.
BUILT_AGAINST: dict[str, str] = {"iotmq.mqtt_front.websocket": "picows"}


def can_be_built(name: str) -> bool:
    """False, and a word about it, when the library is missing that a module is built against."""
    library = BUILT_AGAINST.get(name)
    if library is None or importlib.util.find_spec(library) is not None:
        return True
    print(f"{name} is left out, because {library} is not installed", file=sys.stderr)
    return False


def extensions() -> list[Extension]:
    """One Extension per compiled module whose source exists, optimised for the host's baseline."""
    only = {name for name in os.environ.get("IOTMQ_BUILD_ONLY", "").split(",") if name}
    sources = [
        (name, name.replace(".", "/") + suffix, libraries)
        for name, suffix, libraries in COMPILED_MODULES
        if not only or name in only
    ]
    return [
        Extension(
            name,
            [source],
            libraries=libraries,
            extra_compile_args=["-O3", "-fno-strict-aliasing", "-Wno-unused-function"],
        )
        for name, source, libraries in sources
        if Path(source).exists() and can_be_built(name)
    ]


setup(
    ext_modules=cythonize(
        extensions(),
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": True,
            "cdivision": True,
            "embedsignature": False,
        },
    )
)
