"""RocketMQ 4.9's broker: its configuration and its command, for benchmarks and tests alike."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

# What it reaches into of the runtime it was not written for.
_OPENED: Final = tuple(
    f"--add-{how}=java.base/{what}=ALL-UNNAMED"
    for how, what in (
        ("exports", "jdk.internal.ref"), ("exports", "sun.nio.ch"), ("opens", "jdk.internal.ref"),
        ("opens", "java.nio"), ("opens", "sun.nio.ch"), ("opens", "java.lang"),
    )
)  # fmt: skip
# It refuses what waited for 200 ms, and everything while its log was locked for a second: of no use in a
# benchmark, nor where one core does everything.
PATIENT: Final = ("waitTimeMillsInSendQueue=30000", "osPageCacheBusyTimeOutMills=30000")


def broker_files(*, port: int, ha_port: int, data: Path, settings: Iterable[str]) -> Mapping[str, str]:
    """The files below its home. The last setting of a name wins."""
    lines = [
        # Names as those of iotmq, so that one can go on where the other has stopped.
        *("brokerClusterName=DefaultCluster", "brokerName=broker-a", "brokerId=0", "brokerIP1=127.0.0.1"),
        *(f"listenPort={port}", f"haListenPort={ha_port}"),
        *(f"storePathRootDir={data}", f"storePathCommitLog={data}/commitlog", "diskMaxUsedSpaceRatio=95"),
        *settings,
    ]
    return {
        "conf/logback_broker.xml": '<configuration><root level="OFF"/></configuration>',
        "conf/broker.conf": "\n".join(lines) + "\n",
    }


def broker_command(*, home: Path, libraries: Path, heap: str, heap_at_start: str = "64m") -> list[str]:
    """What runs it; ROCKETMQ_HOME and HOME must be its home, too."""
    return [
        *("java", f"-Xms{heap_at_start}", f"-Xmx{heap}", *_OPENED),
        *(f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-cp", f"{libraries}/*"),
        *("org.apache.rocketmq.broker.BrokerStartup", "-c", str(home / "conf" / "broker.conf")),
    ]


def broker_environment(home: Path) -> Mapping[str, str]:
    """It writes beside these."""
    return {"HOME": str(home), "ROCKETMQ_HOME": str(home)}
