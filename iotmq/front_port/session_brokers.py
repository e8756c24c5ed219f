"""The brokers that have sessions of a front end: a link to each, and which of them is a session's home."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable
from functools import partial

from iotmq.front_port.gateway import FORGET_S, RemoteGateway
from iotmq.front_port.session_link import FrontEnd, LinkListener, SessionLink
from iotmq.front_port.session_parts import BROKERS_MAX
from iotmq.metrics import Metric, samples

_log = logging.getLogger("iotmq.mqtt")


class SessionBrokers:
    """Links to the masters that `gateway` knows, from `follow` on. `forgotten` is told of those that went.

    A link keeps its number for good; that of one which was forgotten is nobody's any more.
    """

    def __init__(
        self,
        gateway: RemoteGateway,
        listener: LinkListener,
        *,
        name: str,
        forgotten: Callable[[SessionLink], None],
    ) -> None:
        """`name` tells this front end from the others."""
        self._gateway = gateway
        self._listener = listener
        self._name = name
        self._token = secrets.token_hex(16)
        self._forgotten = forgotten
        # By number; None for those that were forgotten.
        self._links: list[SessionLink | None] = []
        self._unnamed: dict[SessionLink, asyncio.TimerHandle] = {}
        self._is_draining = False
        self._is_stopped = False

    def report_draining(self, *, is_draining: bool) -> None:
        """Tell all brokers, and those that come, whether the front end drains."""
        self._is_draining = is_draining
        for link in self.links:
            link.report_draining(is_draining=is_draining)

    def follow(self) -> None:
        """Have a link to every broker of the front end's topics, now and whenever they change."""
        self._gateway.on_masters_changed(self._follow_masters)
        self._gateway.on_master_back(self._master_back)
        self._follow_masters()

    async def stop(self) -> None:
        """Close all links; sessions that were not closed are given up."""
        self._is_stopped = True
        for timer in self._unnamed.values():
            timer.cancel()
        await asyncio.gather(*(link.stop() for link in self.links), return_exceptions=True)
        self._links.clear()

    @property
    def links(self) -> list[SessionLink]:
        """Return the links to all known brokers, in the order of their numbers."""
        return [link for link in self._links if link is not None]

    @property
    def count(self) -> int:
        """Return how many numbers were given; the next link gets this one."""
        return len(self._links)

    def link_of(self, number: int) -> SessionLink | None:
        """Return the link of that number; None when it was forgotten."""
        return self._links[number] if number < len(self._links) else None

    def links_of(self, number: int | None) -> list[SessionLink]:
        """Return the link of that number, unless it was forgotten; all links for None."""
        if number is None:
            return self.links
        link = self.link_of(number)
        return [] if link is None else [link]

    def chosen_for(self, name: str) -> SessionLink | None:
        """Return the link to the broker whose name hashes highest together with `name`.

        With a client id that is the session's home, with an exclusive filter the one that decides about it.
        """
        links = self.links
        if len(links) < 2:
            return links[0] if links else None
        return max(links, key=partial(_weight, name))

    @property
    def not_ready_reason(self) -> str | None:
        """Return the brokers that do not answer, as a text; None while all do."""
        links = self.links
        if not links:
            return "no broker for sessions"
        down = [f"{link.broker_name} ({link.problem})" for link in links if not link.is_ready]
        return f"no sessions at {', '.join(down)}" if down else None

    def metrics(self) -> Iterable[Metric]:
        """Report the metrics of the links."""
        for link in self.links:
            labels = (("broker", link.broker_name),)
            yield from samples(
                ("iotmq_mqtt_session_link_up", "1 while the broker answers.", link.is_ready),
                (
                    "iotmq_mqtt_session_link_opened_total",
                    "Times the connection for sessions was made.",
                    link.opened_total,
                ),
                (
                    "iotmq_mqtt_session_link_sessions",
                    "Connected clients the broker knows.",
                    link.session_count,
                ),
                (
                    "iotmq_mqtt_session_link_malformed_total",
                    "Answers and pushes that cannot be read.",
                    link.malformed_total,
                ),
                (
                    "iotmq_mqtt_session_openings_refused_total",
                    "Sessions that were not opened because too many waited for it.",
                    link.refused_openings_total,
                ),
                labels=labels,
            )

    def _follow_masters(self) -> None:
        if self._is_stopped:
            return
        loop = asyncio.get_running_loop()
        masters = self._gateway.masters
        known = {link.broker_name: link for link in self.links}
        for broker_name, address in masters.items():
            link = known.get(broker_name)
            if link is None:
                self._add_link(broker_name, address)
            else:
                link.move(address)
                timer = self._unnamed.pop(link, None)
                if timer is not None:
                    timer.cancel()
        for broker_name, link in known.items():
            if broker_name not in masters and link not in self._unnamed:
                self._unnamed[link] = loop.call_later(FORGET_S, self._forget, link)

    def _master_back(self, broker_name: str, is_renewed: bool) -> None:
        for link in self.links:
            if link.broker_name == broker_name:
                link.retry(is_renewed=is_renewed)

    def _add_link(self, broker_name: str, address: str) -> None:
        settings = self._gateway.settings
        if len(self._links) == BROKERS_MAX:
            _log.error("too many brokers for sessions", extra={"broker": broker_name})
            return
        self._links.append(
            SessionLink(
                broker_name,
                address,
                self._listener,
                number=len(self._links),
                front_end=FrontEnd(
                    name=self._name,
                    token=self._token,
                    credentials=settings.credentials,
                    tls=settings.tls_context(),
                ),
            )
        )
        self.links[-1].report_draining(is_draining=self._is_draining)

    def _forget(self, link: SessionLink) -> None:
        del self._unnamed[link]
        if link.is_ready:
            # Nobody names it, and it still answers.
            return
        self._links[link.number] = None
        self._forgotten(link)


def _weight(name: str, link: SessionLink) -> bytes:
    both = f"{link.broker_name}\0{name}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(both, digest_size=8).digest()
