"""A gateway for the unit tests of programs that use iotmq: `with iotmq.testing.gateway() as gateway`."""

from __future__ import annotations

from iotmq.testing.running import Gateway, gateway

__all__ = ["Gateway", "gateway"]
