"""Builds the compiled modules; everything else about the package is in pyproject.toml.

``IOTMQ_BUILD_ONLY`` (module names separated by commas) limits a build to those modules.
"""

import importlib.util
import multiprocessing
import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# The one list of compiled modules: dotted name, source suffix, libraries.
COMPILED_MODULES: list[tuple[str, str, list[str]]] = [
    ("iotmq.message.records.record", ".pyx", ["z"]),
    ("iotmq.message.records.column_fill", ".pyx", ["z"]),
    ("iotmq.message.records.columns", ".pyx", []),
    ("iotmq.message.records.row_elements", ".pyx", ["z"]),
    ("iotmq.message.records.record_filter", ".pyx", []),
    ("iotmq.message.records.record_walk", ".pyx", []),
    ("iotmq.store.log.segment", ".pyx", []),
    ("iotmq.store.log.resync", ".pyx", ["z"]),
    ("iotmq.store.log.marker", ".pyx", ["z"]),
    ("iotmq.store.log.log_segments", ".pyx", []),
    ("iotmq.store.log.commit_log", ".pyx", ["z"]),
    ("iotmq.store.log.queue", ".pyx", []),
    ("iotmq.store.log.queue_table", ".pyx", []),
    ("iotmq.store.queues.consume_queue", ".pyx", []),
    ("iotmq.store.projections.log_scan", ".pyx", ["z"]),
    ("iotmq.store.recovery.log_cover", ".pyx", ["z"]),
    ("iotmq.store.queues.entry_search", ".pyx", ["z"]),
    ("iotmq.store.queues.reads", ".pyx", []),
    ("iotmq.store.projections.key_index.index_file", ".pyx", []),
    ("iotmq.store.projections.key_index.index_lookup", ".pyx", []),
    ("iotmq.store.projections.key_index.key_index", ".pyx", []),
    ("iotmq.store.projections.dispatch", ".pyx", []),
    ("iotmq.store.log.timer_record", ".pyx", []),
    ("iotmq.store.kv.timer_collector", ".pyx", []),
    ("iotmq.store.queues.residency", ".pyx", []),
    ("iotmq.store.replication.raw", ".pyx", ["z"]),
    ("iotmq.store.replication.tail", ".pyx", []),
    ("iotmq.store.log.group_commit", ".pyx", []),
    ("iotmq.console.api.batch_elements", ".pyx", []),
    ("iotmq.mqtt.topics.topic_cache", ".pyx", []),
    ("iotmq.mqtt.server.publish_sink", ".pyx", []),
    ("iotmq.mqtt.server.connection_settings", ".pyx", []),
    ("iotmq.mqtt.codec.publish_properties", ".pyx", []),
    ("iotmq.mqtt.topics.topic_aliases", ".pyx", []),
    ("iotmq.mqtt.codec.framing", ".pyx", []),
    ("iotmq.mqtt.server.acknowledgements", ".pyx", []),
    ("iotmq.mqtt.server.outbound_in_flight", ".pyx", []),
    ("iotmq.mqtt.server.outbound", ".pyx", []),
    ("iotmq.mqtt.server.connection", ".pyx", []),
    ("iotmq.mqtt.client.input", ".pyx", []),
    ("iotmq.broker.pop.blocks", ".pyx", []),
    ("iotmq.broker.pop.key_tails", ".pyx", []),
    ("iotmq.broker.pop.key_chains", ".pyx", []),
    ("iotmq.broker.pop.popped_records", ".pyx", []),
    ("iotmq.broker.pop.pop_queue", ".pyx", []),
    ("iotmq.broker.pop.pop_changes", ".pyx", []),
    ("iotmq.broker.delivery.push_channel", ".pyx", []),
    ("iotmq.broker.delivery.filter_marks", ".pyx", []),
    ("iotmq.broker.delivery.delivery", ".pyx", []),
    ("iotmq.broker.delivery.stored_traces", ".pyx", []),
    ("iotmq.broker.light_queues.wide_filters", ".pyx", []),
    ("iotmq.broker.light_queues.light_queues", ".pyx", []),
    ("iotmq.broker.light_queues.queue_scan", ".pyx", []),
    ("iotmq.broker.light_queues.queued_push", ".pyx", []),
    ("iotmq.broker.delivery.retained_collector", ".pyx", []),
    ("iotmq.broker.exactly_once.batch_marks", ".pyx", []),
    ("iotmq.broker.exactly_once.received_marks", ".pyx", ["z"]),
    ("iotmq.remoting.frames.frame_header", ".pyx", []),
    ("iotmq.remoting.frames.send_frames", ".pyx", []),
    ("iotmq.remoting.frames.signed_frames", ".pyx", []),
    ("iotmq.broker.writing.send_properties", ".pyx", []),
    ("iotmq.broker.handlers.native.send_fast_path", ".pyx", ["z"]),
    ("iotmq.remoting.frames.pull_frames", ".pyx", []),
    ("iotmq.bridge.segments.record_picker", ".pyx", ["z"]),
    ("iotmq.broker.handlers.native.pull_fast_path", ".pyx", []),
    ("iotmq.broker.filters.property_filter", ".pyx", []),
    ("iotmq.broker.statistics.counters", ".pyx", []),
    ("iotmq.history.block_sums", ".pyx", []),
    ("iotmq.telemetry.latencies", ".pyx", []),
    ("iotmq.telemetry.trace_context", ".pyx", []),
    ("iotmq.mqtt.topics.filters", ".pyx", []),
    ("iotmq.mqtt_front.limiting.buckets", ".pyx", []),
    ("iotmq.mqtt_front.connection.bridge_role", ".pyx", []),
    ("iotmq.mqtt_front.connection.device_calls", ".pyx", []),
    ("iotmq.mqtt_front.connection.client_traffic", ".pyx", []),
    ("iotmq.mqtt_front.connection.traced", ".pyx", []),
    ("iotmq.mqtt_front.connection.limited", ".pyx", []),
    ("iotmq.mqtt_front.connection.device", ".pyx", []),
    ("iotmq.mqtt_front.hooks.hooked_sink", ".pyx", []),
    ("iotmq.mqtt_front.listen.sockets", ".pyx", []),
    ("iotmq.mqtt_front.listen.tls_link", ".pyx", ["dl"]),
    ("iotmq.mqtt_front.listen.websocket", ".pyx", []),
    ("iotmq.mqtt_front.publish.batch", ".pyx", []),
    ("iotmq.mqtt_front.permissions.clauses", ".pyx", []),
    ("iotmq.mqtt_front.permissions.rights", ".pyx", []),
    ("iotmq.mqtt_front.routing.checksum", ".pyx", []),
    ("iotmq.mqtt_front.routing.route_rules", ".pyx", []),
    ("iotmq.mqtt_front.publish.targets", ".pyx", []),
    ("iotmq.mqtt_front.publish.guard", ".pyx", []),
    ("iotmq.mqtt_front.publish.releases", ".pyx", []),
    ("iotmq.mqtt_front.publish.sampler", ".pyx", []),
    ("iotmq.mqtt_front.publish.ingress", ".pyx", []),
    ("iotmq.mqtt_front.connection.message_properties", ".pyx", []),
    ("iotmq.mqtt_front.connection.outgoing", ".pyx", []),
    ("iotmq.mqtt_front.connection.held_message", ".pyx", []),
    ("iotmq.mqtt_bridge.connection", ".pyx", []),
    ("iotmq.mqtt_front.deliver.egress", ".pyx", []),
    ("iotmq.mqtt_front.sessions.kept_session", ".pyx", []),
    ("iotmq.mqtt_front.sessions.flight_ring", ".pyx", []),
    ("iotmq.mqtt_front.sessions.queue_subscriptions", ".pyx", []),
    ("iotmq.mqtt_front.sessions.reports", ".pyx", []),
    ("iotmq.mqtt_front.sessions.durable_egress", ".pyx", []),
    ("iotmq.mqtt_front.sessions.durable", ".pyx", []),
    ("iotmq.mqtt_front.sessions.shared", ".pyx", []),
    ("iotmq.mqtt_front.views.connection_walk", ".pyx", []),
    ("iotmq.client.sending.message_elements", ".pyx", []),
    ("iotmq.client.sending.send_room", ".pyx", []),
    ("iotmq.client.sending.waiting_sends", ".pyx", ["z"]),
    ("loadtest.swarm.histogram", ".pyx", []),
    ("loadtest.swarm.sink", ".pyx", []),
    ("loadtest.swarm.secure", ".pyx", []),
    ("loadtest.swarm.connections", ".pyx", []),
    ("loadtest.swarm.publishing", ".pyx", []),
    ("loadtest.swarm.receiving", ".pyx", []),
    ("loadtest.swarm.engine", ".pyx", []),
]

# Modules that are built against the classes of a library, which may not be installed yet.
BUILT_AGAINST: dict[str, str] = {"iotmq.mqtt_front.listen.websocket": "picows"}


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
            # Without what debuggers read, which takes a third of the time.
            extra_compile_args=["-O3", "-g0", "-fno-strict-aliasing", "-Wno-unused-function"],
        )
        for name, source, libraries in sources
        if Path(source).exists() and can_be_built(name)
    ]


# The others would begin with this file once more.
multiprocessing.set_start_method("fork", force=True)

setup(
    ext_modules=cythonize(
        extensions(),
        nthreads=os.cpu_count() or 1,
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": True,
            "cdivision": True,
            "embedsignature": False,
        },
    )
)
