"""The conditions of the cluster: they look at what a watch has found (`watch.py`)."""

from __future__ import annotations

from typing import Final

from iotmq.alarms.condition import GATEWAY, SERVICES, Condition

GROUP_BEHIND: Final = "group_behind_messages"
GROUP_AGE: Final = "group_oldest_seconds"
GROUP_STUCK: Final = "group_stuck_seconds"
GROUP_ALONE: Final = "group_without_client_messages"
DEAD_LETTERS: Final = "dead_letters"
BROKER_GONE: Final = "broker_gone"
REGISTRY_GONE: Final = "registry_gone"
FRONT_END_GONE: Final = "front_end_gone"
DEVICES_SILENT: Final = "devices_silent_share"

CLUSTER_CONDITIONS: Final = (
    Condition(
        name="group-behind",
        sources=(GROUP_BEHIND,),
        fires_at=100_000,
        clears_at=10_000,
        for_s=300,
        owner=SERVICES,
        says="the group {group} has {value} messages to consume",
        what_to_do="Start more of its consumers, or make them faster; `iotmq admin group show {group}`.",
        is_of_cluster=True,
    ),
    Condition(
        name="group-late",
        sources=(GROUP_AGE,),
        fires_at=600,
        clears_at=60,
        for_s=60,
        owner=SERVICES,
        says="the oldest message that the group {group} has not consumed has waited for {value} s",
        what_to_do="Start more of its consumers, or make them faster; `iotmq admin group show {group}`.",
        is_of_cluster=True,
    ),
    Condition(
        name="group-stuck",
        sources=(GROUP_STUCK,),
        fires_at=300,
        clears_at=0,
        owner=SERVICES,
        says="the group {group} has consumers, and has consumed nothing of what waits for {value} s",
        what_to_do="Look at its consumers: one hangs, or fails the same message again and again.",
        is_of_cluster=True,
    ),
    Condition(
        name="group-without-client",
        sources=(GROUP_ALONE,),
        fires_at=1,
        clears_at=0,
        for_s=300,
        owner=SERVICES,
        says="the group {group} has {value} messages to consume and no consumer",
        what_to_do="Start its consumers, or delete the group if nobody needs it any more.",
        is_of_cluster=True,
    ),
    Condition(
        name="dead-letters",
        sources=(DEAD_LETTERS,),
        reads="increase",
        window_s=600,
        fires_at=1,
        clears_at=0,
        owner=SERVICES,
        says="{value} messages more are dead letters of the group {group}",
        what_to_do="`iotmq admin dlq list {group}` shows them; mend the consumer, then resend them.",
        is_of_cluster=True,
    ),
    Condition(
        name="broker-gone",
        sources=(BROKER_GONE,),
        fires_at=1,
        clears_at=0,
        for_s=30,
        clear_for_s=30,
        level="critical",
        owner=GATEWAY,
        says="the broker {broker} is not registered any more",
        what_to_do="Look whether it runs. If it is gone for good, end this alarm by hand.",
        is_of_cluster=True,
    ),
    Condition(
        name="registry-gone",
        sources=(REGISTRY_GONE,),
        fires_at=1,
        clears_at=0,
        for_s=30,
        clear_for_s=30,
        level="critical",
        owner=GATEWAY,
        says="the registry {registry} does not answer",
        what_to_do="Look whether it runs; while another one answers, clients do not notice.",
        is_of_cluster=True,
    ),
    Condition(
        name="front-end-gone",
        sources=(FRONT_END_GONE,),
        fires_at=1,
        clears_at=0,
        for_s=60,
        clear_for_s=30,
        level="critical",
        owner=GATEWAY,
        says="the front end {front_end} is not connected to any broker any more",
        what_to_do="Look whether it runs. If it is gone for good, end this alarm by hand.",
        is_of_cluster=True,
    ),
)
