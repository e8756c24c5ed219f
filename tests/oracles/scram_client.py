"""The client's side of SCRAM-SHA-256, by RFC 5802 section 3, and of its packets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Any

from fake_gateway import RawClient, connect_packet
from mqtt5_oracle import read_properties

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import Properties

METHOD = "SCRAM-SHA-256"
CONTINUE, AGAIN = 0x18, 0x19


class ScramClient:
    """`first`, then `final` with the server's answer, then `is_server` with its last word."""

    def __init__(self, user: str, password: str, *, nonce: str | None = None, flag: str = "n,,") -> None:
        self.user = user.replace("=", "=3D").replace(",", "=2C")
        self.password = password.encode()
        self.nonce = secrets.token_hex(12) if nonce is None else nonce
        self.flag = flag
        self.signature = b""

    def first(self) -> bytes:
        return f"{self.flag}n={self.user},r={self.nonce}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Raises AssertionError for an answer that is none."""
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) > len(self.nonce)
        salted = hashlib.pbkdf2_hmac("sha256", self.password, base64.b64decode(fields["s"]), int(fields["i"]))
        client_key = hmac.new(salted, b"Client Key", "sha256").digest()
        stored_key = hashlib.sha256(client_key).digest()
        without_proof = f"c={base64.b64encode(self.flag.encode()).decode()},r={fields['r']}"
        message = ",".join((f"n={self.user},r={self.nonce}", server_first.decode(), without_proof)).encode()
        signed = hmac.new(stored_key, message, "sha256").digest()
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signed, strict=True))).decode()
        server_key = hmac.new(salted, b"Server Key", "sha256").digest()
        self.signature = base64.b64encode(hmac.new(server_key, message, "sha256").digest())
        return f"{without_proof},p={proof}".encode()

    def is_server(self, server_final: bytes) -> bool:
        """Whether the server knows what is kept of the password."""
        return server_final == b"v=" + self.signature


def scram_connect(client: ScramClient | None, client_id: str = "d", **fields: Any) -> bytes:
    """A CONNECT of MQTT 5 that begins an exchange, with the client's first message if there is one."""
    properties = Properties(
        authentication_method=METHOD,
        authentication_data=None if client is None else client.first(),
        session_expiry_s=fields.pop("session_expiry_s", None),
    )
    return connect_packet(client_id, protocol_level=5, properties=properties, **fields)


def auth(data: bytes | None, code: int = CONTINUE, method: str | None = METHOD) -> bytes:
    """An AUTH."""
    return packets.encode_auth(code, Properties(authentication_method=method, authentication_data=data))


async def answer(client: RawClient) -> tuple[int, int, dict[str, Any]]:
    """(packet type, reason code, properties) of the next packet: AUTH, CONNACK or DISCONNECT."""
    first, body = await client.packet()
    kind = first >> 4
    at = 2 if kind == packets.CONNACK else 1
    return kind, body[at - 1], read_properties(body[at:], kind)[1]


async def prove(client: RawClient, scram: ScramClient) -> tuple[int, int, dict[str, Any]]:
    """Answer the server's question; what it says to that."""
    kind, code, properties = await answer(client)
    assert (kind, code) == (packets.AUTH, CONTINUE)
    assert properties["authentication_method"] == METHOD
    client.send(auth(scram.final(properties["authentication_data"])))
    return await answer(client)
