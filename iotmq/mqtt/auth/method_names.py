"""Names of authentication methods of MQTT 5, apart from what the methods need."""

from __future__ import annotations

from typing import Final

SCRAM_METHOD: Final = "SCRAM-SHA-256"
TOKEN_METHOD: Final = "iotmq-jwt"
"""The method by which devices show a token."""
