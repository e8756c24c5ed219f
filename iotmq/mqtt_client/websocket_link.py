"""MQTT over WebSocket (MQTT 5 section 6): binary frames, whose borders mean nothing."""

from __future__ import annotations

import asyncio
import ssl

import picows

from iotmq import limits
from iotmq.mqtt_client.address import Address

_SUBPROTOCOL = "mqtt"  # [MQTT-6.0.0-3]


async def open_websocket(
    address: Address, receiver: asyncio.Protocol, context: ssl.SSLContext | None
) -> WebSocketLink:
    """Open a WebSocket; ConnectionError when the server has none there, or none for MQTT."""
    try:
        transport, _ = await picows.ws_connect(
            lambda: _Listener(receiver),
            str(address),
            ssl_context=context,
            extra_headers={"Sec-WebSocket-Protocol": _SUBPROTOCOL},
            max_frame_size=limits.MQTT_CLIENT_PACKET_BYTES_MAX,
            max_redirects=0,
            use_aiofastnet=False,
        )
    except picows.WSError as error:
        raise ConnectionError(f"{address}: no WebSocket: {error}") from None
    link = WebSocketLink(transport)
    chosen = transport.response.headers.get("Sec-WebSocket-Protocol")
    if chosen != _SUBPROTOCOL:
        link.abort()
        raise ConnectionError(
            f"{address}: the server chose the WebSocket protocol {chosen}, not {_SUBPROTOCOL}"
        )
    return link


class WebSocketLink:
    """A WebSocket as a byte stream."""

    def __init__(self, transport: picows.WSTransport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.send(picows.WSMsgType.BINARY, data)

    def get_write_buffer_size(self) -> int:
        return self._transport.underlying_transport.get_write_buffer_size()

    def close(self) -> None:
        self._transport.send_close(picows.WSCloseCode.OK)
        self._transport.disconnect()

    def abort(self) -> None:
        self._transport.disconnect(graceful=False)

    def pause_reading(self) -> None:
        self._transport.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.underlying_transport.resume_reading()


class _Listener(picows.WSListener):
    def __init__(self, receiver: asyncio.Protocol) -> None:
        super().__init__()
        self._receiver = receiver

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type in (picows.WSMsgType.BINARY, picows.WSMsgType.CONTINUATION):
            self._receiver.data_received(frame.get_payload_as_bytes())
        elif frame.msg_type == picows.WSMsgType.CLOSE:
            transport.disconnect()
        elif frame.msg_type == picows.WSMsgType.TEXT:  # [MQTT-6.0.0-1]
            transport.disconnect(graceful=False)

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self._receiver.connection_lost(None)

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()
