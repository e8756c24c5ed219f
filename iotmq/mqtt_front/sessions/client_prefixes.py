"""Count devices' messages by the beginning of their client ids, for the statistics of brokers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from iotmq import limits
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.connection.client_traffic import UNNAMED, ClientTraffic
from iotmq.ports.sessions import ClientCounts, Refused

_TOLD_EVERY_S: Final = 10.0
_PREFIX_CHARACTERS_MAX: Final = 64

TellCounts = Callable[[list[ClientCounts], Callable[[Refused | None], None]], None]


class ClientPrefixes:
    """The prefixes of the devices that are connected, and of those that have just gone.

    A prefix goes up to the first of the characters of `ends`. Client ids without one of them, and those for
    which there is no room, count together, under the empty prefix.
    """

    def __init__(self, ends: str, tell: TellCounts | None) -> None:
        ends = re.escape(ends)
        self._pattern = re.compile(f"[^{ends}]{{1,{_PREFIX_CHARACTERS_MAX}}}(?=[{ends}])") if ends else None
        self._tell = tell
        self._traffic = {"": ClientTraffic("")}
        self._told = {"": (0, 0, 0, 0, 0)}
        self._told_s = 0.0
        self._is_telling = False
        self._failed_count = 0

    def opened(self, client_id: str) -> ClientTraffic:
        """Return where a device counts that connects."""
        found = None if self._pattern is None else self._pattern.match(client_id)
        prefix = "" if found is None else found[0]
        traffic = self._traffic.get(prefix)
        if traffic is None:
            if len(self._traffic) > limits.CLIENT_PREFIXES_MAX:
                traffic = self._traffic[""]
            else:
                traffic = self._traffic[prefix] = ClientTraffic(prefix)
                self._told[prefix] = (0, 0, 0, 0, 0)
        traffic.connected += 1
        traffic.connections += 1
        return traffic

    def closed(self, traffic: ClientTraffic) -> None:
        """Count a connection no more that counted there, if it came so far."""
        if traffic is not UNNAMED:
            traffic.connected -= 1

    def tick(self, now_s: float) -> None:
        """Tell what was counted, when it is time."""
        if now_s - self._told_s >= _TOLD_EVERY_S and not self._is_telling:
            self._told_s = now_s
            self.tell()

    def tell(self) -> None:
        """Tell what was counted since it was told last."""
        grown: list[ClientCounts] = []
        before = self._told.copy()
        for prefix, traffic in list(self._traffic.items()):
            totals, told = traffic.totals(), self._told[prefix]
            if totals != told:
                self._told[prefix] = totals
                grown.append(
                    ClientCounts(prefix, *(new - old for new, old in zip(totals, told, strict=True)))
                )
            elif prefix and not traffic.connected:
                del self._traffic[prefix], self._told[prefix]
        if grown and self._tell is not None:
            self._is_telling = True
            self._tell(grown, partial(self._was_told, before))

    def _was_told(self, before: dict[str, tuple[int, int, int, int, int]], refused: Refused | None) -> None:
        self._is_telling = False
        if refused is not None:
            # It is told with what comes.
            self._failed_count += 1
            self._told.update((prefix, told) for prefix, told in before.items() if prefix in self._told)

    def metrics(self) -> Iterable[Metric]:
        """Report how many prefixes there are, and what could not be told."""
        return samples(
            (
                "iotmq_mqtt_client_prefixes",
                "Prefixes of client ids that are counted.",
                len(self._traffic) - 1,
            ),
            (
                "iotmq_mqtt_client_counts_untold_total",
                "Times no broker took the counts of prefixes; they are told again.",
                self._failed_count,
            ),
        )
