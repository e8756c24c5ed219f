"""Checks for load balancers and watchers: 200 where all is well, 503 with the reasons where it is not.

All are about the process that is asked, and its workers.
"""

from __future__ import annotations

import time
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.addresses import parse_address
from iotmq.console.api.problems import UNHEALTHY, ProblemError
from iotmq.console.api.route import Call, NoArguments, route
from iotmq.console.api.services import OwnProcess, Services

OPEN_PATH: Final = "/api/v1/health"
_EXPIRES: Final = "_certificate_expires_seconds"
_DAY_S: Final = 86_400

# Metrics that are 0 while all is well, and what another value means.
_ALARMS: Final = {
    "iotmq_store_refusing": "a disk is too full: the broker takes no messages",
    "iotmq_store_read_only": "the disk has refused for good: start the broker again for it to take messages",
    "iotmq_store_failed_projections": "data that is made of the log stays behind it",
    "iotmq_store_failed_deletions": "the operating system refuses to delete files of the log",
    "iotmq_store_damaged_ranges": "the start has found damage in the log",
}


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """All is well."""

    checked: list[str]
    """The parts that were looked at."""


class CertificatesArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time that certificates have to be valid for."""

    within_days: Annotated[int, Meta(ge=0, le=36_500)] = 14
    """Days; a certificate that expires within them is not well."""


class PortArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One port."""

    port: Annotated[int, Meta(ge=1, le=65_535)]
    """The number of the port."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate of a listener; the one of several that expires first."""

    listener: str
    """The listeners that have it: `http`, `remoting`, `mqtt listener` with their labels."""
    expires_ms: int
    """When it expires, in milliseconds since 1970."""


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """The certificates of a process."""

    items: list[Certificate]


async def check_ready(services: Services, _call: Call[NoArguments, None]) -> Health:
    """Check whether every part serves: the answer for a load balancer."""
    states = await services.own.states()
    return _health(list(states), [f"{part}: {reason}" for part, reason in states.items() if reason])


async def check_alarms(services: Services, _call: Call[NoArguments, None]) -> Health:
    """Check whether the store works: room on the disks, writes, deletions, damage."""
    await services.own.states()
    found = {each.name: each.value for each in services.own.metrics() if each.name in _ALARMS}
    return _health(sorted(found), [_ALARMS[name] for name, value in found.items() if value])


async def check_certificates(services: Services, call: Call[CertificatesArguments, None]) -> Health:
    """Check whether the certificates of all listeners stay valid for so many days."""
    items = await _certificates(services.own)
    end_ms = (time.time() + call.arguments.within_days * _DAY_S) * 1000
    reasons = [
        f"{each.listener}: {'has expired' if each.expires_ms <= time.time() * 1000 else 'expires'} "
        f"{time.strftime('%Y-%m-%d', time.gmtime(each.expires_ms / 1000))}"
        for each in items
        if each.expires_ms <= end_ms
    ]
    return _health([each.listener for each in items], reasons)


async def check_port(services: Services, call: Call[PortArguments, None]) -> Health:
    """Check whether a role listens on a port."""
    port = call.arguments.port
    roles = sorted(name for name, address in services.own.addresses.items() if _port(address) == port)
    return _health(roles, [] if roles else [f"nothing listens on port {port}"])


async def list_certificates(services: Services, _call: Call[NoArguments, None]) -> Certificates:
    """List the certificates of the listeners of this process, by the time they expire."""
    items = await _certificates(services.own)
    return Certificates(items=sorted(items, key=lambda each: (each.expires_ms, each.listener)))


async def _certificates(own: OwnProcess) -> list[Certificate]:
    await own.states()
    found: list[Certificate] = []
    for each in own.metrics():
        if each.name.endswith(_EXPIRES):
            part = (
                each.name.removeprefix("iotmq_").removesuffix(_EXPIRES).removesuffix("_tls").replace("_", " ")
            )
            labels = ", ".join(f"{name} {value}" for name, value in each.labels)
            listener = f"{part} ({labels})" if labels else part
            found.append(Certificate(listener=listener, expires_ms=int(each.value * 1000)))
    return found


def _port(address: str) -> int | None:
    """Return the port of HOST:PORT; None for the path of a Unix socket."""
    try:
        return parse_address(address)[1]
    except ValueError:
        return None


def _health(checked: list[str], reasons: list[str]) -> Health:
    if reasons:
        raise ProblemError(UNHEALTHY, "; ".join(reasons))
    return Health(checked=checked)


_AREA: Final = "health"

ROUTES: Final = (
    *(
        route("GET", path, handler, tag=_AREA, open_path=OPEN_PATH, problems=(UNHEALTHY,))
        for path, handler in (
            ("/health/ready", check_ready),
            ("/health/alarms", check_alarms),
            ("/health/certificates", check_certificates),
            ("/health/ports/{port}", check_port),
        )
    ),
    route("GET", "/certificates", list_certificates, tag=_AREA),
)
