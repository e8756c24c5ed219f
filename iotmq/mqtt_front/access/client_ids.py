"""Bind the client ids of devices to who they are, so that nobody takes over the session of another."""

from __future__ import annotations

import secrets
from typing import Final

from iotmq.mqtt.reason_codes import CLIENT_ID_NOT_VALID
from iotmq.mqtt_front.access.verdicts import Accepted, Denied
from iotmq.mqtt_front.settings.authentication import AuthenticationSettings

_RANDOM_BYTES: Final = 8


class ClientIds:
    """The rule of the settings."""

    def __init__(self, settings: AuthenticationSettings) -> None:
        self._rule = settings.client_ids
        self._separator = settings.client_id_separator

    def chosen(self, accepted: Accepted, asked_for: str) -> str | Denied:
        """Return the client id of a device; empty where any new one will do."""
        if accepted.client_id is not None:
            return accepted.client_id
        user = accepted.identity.user
        if self._rule == "any":
            return asked_for
        if user is None:
            # Any that it asks for could be a user's.
            return asked_for and _denied("a device without a user name has no client id (client_ids)")
        if self._rule == "user":
            if asked_for in ("", user):
                return user
            return _denied(f"client id {asked_for[:64]!a} is not the user name (client_ids)")
        if self._separator in user:
            return _denied(f"the user name has client_id_separator in it ({self._separator!a})")
        if not asked_for:
            return f"{user}{self._separator}{secrets.token_hex(_RANDOM_BYTES)}"
        if asked_for == user or asked_for.startswith(user + self._separator):
            return asked_for
        return _denied(
            f"client id {asked_for[:64]!a} does not begin with the user name and {self._separator!a} "
            "(client_ids)"
        )


def _denied(detail: str) -> Denied:
    return Denied(CLIENT_ID_NOT_VALID, "client id", detail)
