"""The client's side of one MQTT connection, version 3.1, 3.1.1 or 5: bytes and time in, bytes and events out.

States, and what moves a connection between them:

    AWAITING_CONNACK --CONNACK-->  CONNECTED
    any              --refusal, error, DISCONNECT, end of the other side--> CLOSED   output may still leave

Verbs: receive_data, receive_eof, tick, events_received, data_to_send, next_deadline; publish, subscribe,
unsubscribe, acknowledge, authenticate, disconnect. A rule that the server breaks never raises out of
receive_data: it closes the connection, `ending` says why. What the server does not take (a quality, a size,
a kind of subscription) is refused where it is asked for, with MessageRefusedError or SubscriptionError.

What has to outlive a connection is in `ClientSession`. `iotmq.mqtt_client` has the shell around this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from iotmq import limits
from iotmq.errors import ConnectionClosedError, MessageRefusedError, SubscriptionError
from iotmq.mqtt.client import server_packets
from iotmq.mqtt.client.events import (
    Acknowledged,
    Challenged,
    ClientEvent,
    Connected,
    ConnectRefused,
    Ending,
    Subscribed,
    Unsubscribed,
)
from iotmq.mqtt.client.input import ClientInput, ReceivedMessage
from iotmq.mqtt.client.output import ClientOutput, Granted
from iotmq.mqtt.client.session import ClientSession, OutgoingMessage
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_3_1, PROTOCOL_LEVEL_5, Connect
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import (
    CONNECT_RETURN_CODES,
    CONTINUE_AUTHENTICATION,
    FIRST_ERROR,
    KEEP_ALIVE_TIMEOUT,
    MALFORMED_PACKET,
    PACKET_ID_NOT_FOUND,
    PROTOCOL_ERROR,
    RECEIVE_MAXIMUM_EXCEEDED,
    UNSPECIFIED_ERROR,
    Reason,
    reason_text,
)
from iotmq.mqtt.topics import topics

AWAITING_CONNACK: Final = 0
CONNECTED: Final = 1
CLOSED: Final = 2

# How long a server may take to answer CONNECT, and PINGREQ.
ANSWER_TIMEOUT_S: Final = 20.0


class ClientConnection:
    """One connection: it begins with the bytes of `connect` in its output.

    `in_flight_max` bounds messages of QoS 1 and 2 without an acknowledgement, where the server's receive
    maximum is not smaller. With `gives_aliases` topics that come again get an alias, as far as the server
    takes them.
    """

    def __init__(
        self,
        session: ClientSession,
        connect: Connect,
        now_s: float,
        *,
        in_flight_max: int = limits.MQTT_CLIENT_IN_FLIGHT_MAX,
        gives_aliases: bool = True,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.session = session
        self.state = AWAITING_CONNACK
        # Set when the state becomes CLOSED.
        self.ending: Ending | None = None
        # What the server grants; what a client may assume until its CONNACK is there.
        self.granted = Granted()
        self._connect = connect
        self._level = connect.protocol_level
        self._input = ClientInput(
            protocol_level=self._level,
            packet_bytes_max=connect.properties.packet_bytes_max or packets.REMAINING_LENGTH_MAX,
            topic_aliases_max=connect.properties.topic_alias_max or 0,
        )
        self._output = ClientOutput(self._level)
        self._events: list[ClientEvent] = []
        self._in_flight_max = in_flight_max
        self._gives_aliases = gives_aliases
        # PUBLISH packets that have to be sent again, and packet ids of this connection that are not done.
        self._again: deque[OutgoingMessage] = deque()
        self._in_flight: set[int] = set()
        # What the owner has not acknowledged yet: how many of QoS 1, and the packet ids of QoS 2.
        self._unanswered_1 = 0
        self._unanswered_2: set[int] = set()
        self._resumed_count = 0
        # What CONNACK said, while the owner has not said that it trusts the server; else None.
        self._is_resumed: bool | None = None
        self._untaken: list[ReceivedMessage | tuple[int, bytes]] = []
        self._answer_timeout_s = answer_timeout_s
        self._keep_alive_s = connect.keep_alive_s
        self._last_sent_s = self._last_received_s = now_s
        # When an answer to CONNECT or PINGREQ is late; None when none is expected.
        self._answer_deadline_s: float | None = now_s + answer_timeout_s
        self._output.write(packets.encode_connect(connect))

    # Bytes and time --------------------------------------------------------------------------------------

    def receive_data(self, data: bytes | bytearray | memoryview, now_s: float) -> None:
        """Take bytes from the server, in pieces of any size."""
        if self.state == CLOSED:
            return
        self._last_received_s = now_s
        found: list[ReceivedMessage | tuple[int, bytes]] = []
        try:
            try:
                self._input.receive(data, found)
            finally:
                self._handle(found)
        except MqttProtocolError as error:
            self._fail(error.reason, str(error))

    def receive_eof(self, error: str = "") -> None:
        """The server closed its side, or the connection broke, with such an error."""
        text = f"the connection broke: {error}" if error else "the server closed the connection"
        self._close(Ending(UNSPECIFIED_ERROR.v5_code, text))

    def tick(self, now_s: float, *, is_reading: bool = True) -> None:
        """Do what is due: a PINGREQ, or the end of a connection whose server does not answer.

        While what it sends is not read, its answer cannot be missed.
        """
        deadline_s = self.next_deadline()
        if deadline_s is None or now_s < deadline_s:
            return
        if self._answer_deadline_s is not None and (is_reading or self.state == AWAITING_CONNACK):
            what = "CONNECT" if self.state == AWAITING_CONNACK else "PINGREQ"
            text = f"the server does not answer {what}"
            self._fail(KEEP_ALIVE_TIMEOUT, text, is_told=False)
            return
        self._output.write(packets.PINGREQ_PACKET)
        self._answer_deadline_s = now_s + min(self._answer_timeout_s, self._keep_alive_s)

    def next_deadline(self) -> float | None:
        """Return when `tick` has something to do.

        A PINGREQ is due when either direction was silent for the keep-alive: [MQTT-3.1.2-20] asks for it
        after nothing was sent, and only an answer shows that the server is there.
        """
        if self.state == CLOSED or self._answer_deadline_s is not None:
            return self._answer_deadline_s
        if not self._keep_alive_s:
            return None
        return min(self._last_sent_s, self._last_received_s) + self._keep_alive_s

    def data_to_send(self, now_s: float) -> bytes:
        """Return the bytes for the server."""
        data = self._output.take()
        if data:
            self._last_sent_s = now_s
        return data

    @property
    def output_bytes(self) -> int:
        """Return how much `data_to_send` would return."""
        return self._output.size

    def events_received(self) -> list[ClientEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    # What a client does ----------------------------------------------------------------------------------

    def publish(self, message: OutgoingMessage) -> None:
        """Send a message, or keep it in the session until the window has room (QoS 1 and 2).

        Raises MessageRefusedError for what this server does not take, ConnectionClosedError for QoS 0 while
        there is no connection.
        """
        if self.state == CONNECTED:
            refusal = self._output.refusal(message, self.granted)
            if refusal is not None:
                raise MessageRefusedError(refusal[1])
        if message.qos:
            self.session.waiting.append(message)
            if self._has_room_for_new and not self._again and len(self.session.waiting) == 1:
                self._send_first()
        elif self.state == CONNECTED:
            self._output.publish(message)
        else:
            raise ConnectionClosedError("a message of QoS 0 needs a connection")

    def subscribe(
        self, subscriptions: Sequence[tuple[str, int]], properties: Properties = NO_PROPERTIES
    ) -> int:
        """Ask for filters with their options (the byte of MQTT 5 section 3.8.3.1); returns the packet id."""
        self._check_connected()
        self._check_subscriptions(subscriptions, properties)
        packet_id = self.session.new_packet_id()
        packet = packets.encode_subscribe(packet_id, subscriptions, self._of_v5(properties))
        return self._ask(packet_id, len(subscriptions), packet)

    def unsubscribe(self, filters: Sequence[str], properties: Properties = NO_PROPERTIES) -> int:
        """Returns the packet id of the UNSUBSCRIBE."""
        self._check_connected()
        packet_id = self.session.new_packet_id()
        packet = packets.encode_unsubscribe(packet_id, filters, self._of_v5(properties))
        return self._ask(packet_id, len(filters), packet)

    def acknowledge(self, message: ReceivedMessage) -> None:
        """The owner has a message of QoS 1 or 2 for good. In the order in which they came [MQTT-4.6.0-2]."""
        if self.state == CLOSED:
            return
        if message.qos == 1:
            self._unanswered_1 -= 1
            self._output.acknowledge(packets.PUBACK, message.packet_id)
        elif message.qos == 2:
            self._unanswered_2.discard(message.packet_id)
            self._output.acknowledge(packets.PUBREC, message.packet_id)

    def authenticate(self, data: bytes | None) -> None:
        """Take the next step of enhanced authentication."""
        method = self._connect.properties.authentication_method
        if method is None:
            raise ConnectionClosedError("CONNECT has named no authentication method")
        told = Properties(authentication_method=method, authentication_data=data)
        self._output.write(packets.encode_auth(CONTINUE_AUTHENTICATION, told))

    def disconnect(self, code: int = 0, *, session_expiry_s: int | None = None) -> None:
        """Say good-bye; with code 4 the server publishes the will."""
        if self.state == CLOSED:
            return
        if self._level == PROTOCOL_LEVEL_5 and (code or session_expiry_s is not None):
            told = Properties(session_expiry_s=session_expiry_s)
            self._output.write(packets.encode_disconnect(code, told))
        else:
            self._output.write(packets.DISCONNECT_PACKET)
        self._close(Ending(code, "we disconnected", is_ours=True))

    # What the server sends -------------------------------------------------------------------------------

    def _handle(self, found: list[ReceivedMessage | tuple[int, bytes]]) -> None:
        append = self._events.append
        if self._is_resumed is not None:
            self._untaken += found
            return
        for one in found:
            if self.state == CLOSED:
                return
            if type(one) is not ReceivedMessage:
                self._handle_packet(*one)  # type: ignore[misc]
                if self._is_resumed is not None:
                    self._untaken = found[found.index(one) + 1 :]
                    return
            elif self.state != CONNECTED:
                raise MqttProtocolError(PROTOCOL_ERROR, "the first packet is not CONNACK")  # [MQTT-3.2.0-1]
            elif one.qos == 0 or self._is_new(one):
                append(one)

    def _is_new(self, message: ReceivedMessage) -> bool:
        """Return whether a message of QoS 1 or 2 is to be handed on."""
        packet_id = message.packet_id
        if message.qos == 2 and packet_id in self.session.received:
            # Again. The owner has it; where it has not acknowledged it to this connection, it will.
            if packet_id not in self._unanswered_2:
                self._output.acknowledge(packets.PUBREC, packet_id)
            return False
        receive_max = self._connect.properties.receive_max
        if receive_max is not None:
            count = self._unanswered_1 + len(self.session.received) + 1
            if count > receive_max + self._resumed_count:  # [MQTT-3.3.4-9]
                # The session does not know the message: nobody has it, and it is new when it comes again.
                raise MqttProtocolError(
                    RECEIVE_MAXIMUM_EXCEEDED, f"{count} messages without an answer, {receive_max} are allowed"
                )
        if message.qos == 1:
            self._unanswered_1 += 1
        else:
            self.session.received.add(packet_id)
            self._unanswered_2.add(packet_id)
        return True

    def _handle_packet(self, first: int, body: bytes) -> None:
        packet_type = first >> 4
        if self.state == AWAITING_CONNACK and packet_type not in (packets.CONNACK, packets.AUTH):
            if packet_type == packets.DISCONNECT and self._level == PROTOCOL_LEVEL_5:
                return self._handle_disconnect(body)
            raise MqttProtocolError(PROTOCOL_ERROR, "the first packet is not CONNACK")
        if first & 0x0F != (2 if packet_type == packets.PUBREL else 0):  # [MQTT-2.1.3-1]
            raise MqttProtocolError(
                MALFORMED_PACKET, f"packet type {packet_type} has flags {first & 0x0F:#x}"
            )
        if packets.PUBACK <= packet_type <= packets.PUBCOMP:
            return self._handle_receipt(packet_type, body)
        if packet_type == packets.PINGRESP and not body:
            self._answer_deadline_s = None
        elif packet_type == packets.CONNACK:
            self._handle_connack(body)
        elif packet_type == packets.SUBACK:
            answers = server_packets.decode_suback(body, self._level)
            self._check_answers(answers.packet_id, len(answers.codes), "SUBACK")
            self._events.append(Subscribed(answers))
        elif packet_type == packets.UNSUBACK:
            answers = server_packets.decode_unsuback(body, self._level)
            has_codes = self._level == PROTOCOL_LEVEL_5
            self._check_answers(answers.packet_id, len(answers.codes) if has_codes else None, "UNSUBACK")
            self._events.append(Unsubscribed(answers))
        elif packet_type == packets.DISCONNECT and self._level == PROTOCOL_LEVEL_5:
            self._handle_disconnect(body)
        elif packet_type == packets.AUTH and self._level == PROTOCOL_LEVEL_5:
            self._handle_auth(body)
        else:
            raise MqttProtocolError(PROTOCOL_ERROR, f"packet type {packet_type} is not for a client")
        return None

    def _handle_connack(self, body: bytes) -> None:
        if self.state != AWAITING_CONNACK:
            raise MqttProtocolError(PROTOCOL_ERROR, "a second CONNACK")
        connack = server_packets.decode_connack(body, self._level)
        told = connack.properties
        if connack.code:
            code = CONNECT_RETURN_CODES.get(connack.code, connack.code)
            self._events.append(ConnectRefused(code, told))
            text = f"the server refused the connection: {reason_text(code)}"
            self._close(Ending(code, _with_reason(text, told), is_by_server=True, properties=told))
            return
        if connack.is_session_present and self._connect.clean_session:
            raise MqttProtocolError(PROTOCOL_ERROR, "CONNACK has a session, but a clean one was asked for")
        if self._level == PROTOCOL_LEVEL_5:
            self._apply_limits(told)
        self.state = CONNECTED
        self._answer_deadline_s = None
        # What was asked in an earlier connection gets no answer in this one.
        self.session.asking.clear()
        self._resumed_count = len(self.session.received)
        client_id = told.assigned_client_id or self._connect.client_id
        is_resumed = connack.is_session_present
        if self._level == PROTOCOL_LEVEL_3_1:
            # Its CONNACK does not say: what was asked for counts.
            is_resumed = not self._connect.clean_session
        self._events.append(Connected(is_resumed, client_id, told))
        if self._connect.properties.authentication_method is None:
            self._go_on(is_resumed=is_resumed)
        else:
            self._is_resumed = is_resumed

    def _apply_limits(self, told: Properties) -> None:
        self.granted = Granted.of(told)
        if told.server_keep_alive_s is not None:  # [MQTT-3.1.2-21]
            self._keep_alive_s = told.server_keep_alive_s
        if told.topic_alias_max and self._gives_aliases:
            count_max = min(told.topic_alias_max, limits.MQTT_TOPIC_ALIASES_MAX)
            self._output.give_aliases(count_max, self.granted.packet_bytes_max)

    def trust(self) -> None:
        """Accept the server, which has proved who it is; to be called at once after `Connected`.

        Until then it gets nothing that waits for it, and what it sent behind its CONNACK counts for nothing.
        """
        is_resumed, self._is_resumed = self._is_resumed, None
        if self.state != CONNECTED or is_resumed is None:
            return
        self._go_on(is_resumed=is_resumed)
        untaken, self._untaken = self._untaken, []
        try:
            self._handle(untaken)
        except MqttProtocolError as error:
            self._fail(error.reason, str(error))

    def _go_on(self, *, is_resumed: bool) -> None:
        """Send again what a former connection left [MQTT-4.4.0-1], or give it to the new session."""
        if is_resumed:
            for packet_id in self.session.releasing:
                self._output.acknowledge(packets.PUBREL, packet_id)
            self._again.extend(self.session.publishing.values())
        else:
            self._resumed_count = 0
            self._events += [Acknowledged(message.token) for message in self.session.forget()]
        self._fill_window()

    def _handle_receipt(self, packet_type: int, body: bytes) -> None:
        if len(body) == 2:
            packet_id, code, told = body[0] << 8 | body[1], 0, NO_PROPERTIES
        elif len(body) == 3 and self._level == PROTOCOL_LEVEL_5:
            packet_id, code, told = body[0] << 8 | body[1], body[2], NO_PROPERTIES
        else:
            packet_id, code, told = server_packets.decode_receipt(packet_type, body, self._level)
        if packet_id == 0:  # [MQTT-2.2.1-3], 3.1.1 [MQTT-2.3.1-1]
            raise MqttProtocolError(PROTOCOL_ERROR, "an acknowledgement has packet id 0")
        if packet_type == packets.PUBREL:
            is_known = packet_id in self.session.received
            self.session.received.discard(packet_id)
            self._resumed_count = min(self._resumed_count, len(self.session.received))
            reason = 0 if is_known or self._level != PROTOCOL_LEVEL_5 else PACKET_ID_NOT_FOUND
            self._output.acknowledge(packets.PUBCOMP, packet_id, reason)
        elif (
            packet_type == packets.PUBREC and code < FIRST_ERROR and packet_id not in self.session.publishing
        ):
            # Said again, or of what is not known any more.
            is_known = packet_id in self.session.releasing
            reason = 0 if is_known or self._level != PROTOCOL_LEVEL_5 else PACKET_ID_NOT_FOUND
            self._output.acknowledge(packets.PUBREL, packet_id, reason)
        else:
            self._handle_awaited(packet_type, packet_id, code, told)

    def _handle_awaited(self, packet_type: int, packet_id: int, code: int, told: Properties) -> None:
        """PUBACK, PUBREC or PUBCOMP: what its message waits for [MQTT-4.13.1-1], or one of no message."""
        message, awaited = self.session.publishing.get(packet_id), packets.PUBCOMP
        if message is not None:
            awaited = packets.PUBREC if message.qos == 2 else packets.PUBACK
        elif packet_id not in self.session.releasing:
            return
        if packet_type != awaited:
            raise MqttProtocolError(
                PROTOCOL_ERROR, f"packet type {packet_type} for a message that waits for type {awaited}"
            )
        if message is None:
            self._end(self.session.releasing.pop(packet_id), code, told)
            return
        del self.session.publishing[packet_id]
        if packet_type == packets.PUBACK or code >= FIRST_ERROR:  # [MQTT-4.3.3-4]
            self._end(message, code, told)
            return
        self.session.releasing[packet_id] = message
        self._output.acknowledge(packets.PUBREL, packet_id, 0)

    def _end(self, message: OutgoingMessage, code: int, told: Properties) -> None:
        """A message is done."""
        self._in_flight.discard(message.packet_id)
        code = code if code >= FIRST_ERROR else 0
        self._events.append(
            Acknowledged(message.token, code, _with_reason(reason_text(code), told) if code else "")
        )
        self._fill_window()

    def _handle_disconnect(self, body: bytes) -> None:
        disconnect = server_packets.decode_server_disconnect(body)
        text = f"the server disconnected: {reason_text(disconnect.code)}"
        told = disconnect.properties
        self._close(Ending(disconnect.code, _with_reason(text, told), is_by_server=True, properties=told))

    def _handle_auth(self, body: bytes) -> None:
        if self._connect.properties.authentication_method is None:
            raise MqttProtocolError(PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
        self._events.append(Challenged(server_packets.decode_server_auth(body)))

    # Inside ----------------------------------------------------------------------------------------------

    def _fill_window(self) -> None:
        """Send what waits, as far as the window goes [MQTT-3.3.4-7]."""
        while self._again and self._room > 0:
            message = self._again.popleft()
            # It may have been acknowledged meanwhile.
            if message.packet_id in self.session.publishing and not self._is_refused(message):
                self._in_flight.add(message.packet_id)
                self._output.publish(message, is_duplicate=True)
        waiting = self.session.waiting
        while waiting and self._has_room_for_new:
            if self._is_refused(waiting[0]):
                waiting.popleft()
            else:
                self._send_first()

    @property
    def _room(self) -> int:
        """Return how many messages the window takes."""
        if self.state != CONNECTED or self._is_resumed is not None:
            return 0
        return min(self._in_flight_max, self.granted.receive_max) - len(self._in_flight)

    @property
    def _has_room_for_new(self) -> bool:
        """Return whether a message that has no packet id yet may go: questions have packet ids, too."""
        return self._room > 0 and self.session.has_free_packet_id

    def _send_first(self) -> None:
        """Send the first waiting message into the window."""
        message = self.session.waiting.popleft()
        self.session.begin_publishing(message)
        self._in_flight.add(message.packet_id)
        self._output.publish(message)

    def _is_refused(self, message: OutgoingMessage) -> bool:
        """Return whether a message from another connection is not for this server: its owner is told."""
        refusal = self._output.refusal(message, self.granted)
        if refusal is None:
            return False
        self.session.publishing.pop(message.packet_id, None)
        self._events.append(Acknowledged(message.token, *refusal))
        return True

    def _check_connected(self) -> None:
        if self.state != CONNECTED:
            raise ConnectionClosedError("there is no connection")

    def _check_subscriptions(self, subscriptions: Sequence[tuple[str, int]], properties: Properties) -> None:
        granted = self.granted
        if properties.subscription_identifiers and not granted.has_subscription_identifiers:
            raise SubscriptionError("the server does not take subscription identifiers")
        for topic_filter, _options in subscriptions:
            if topics.is_shared(topic_filter) and not granted.has_sharing:
                raise SubscriptionError(f"{topic_filter}: the server has no shared subscriptions")
            if not granted.has_wildcards and ("+" in topic_filter or "#" in topic_filter):
                raise SubscriptionError(f"{topic_filter}: the server takes no filters with wildcards")

    def _check_answers(self, packet_id: int, count: int | None, packet: str) -> None:
        asked = self.session.asking.pop(packet_id, None)
        if asked is None:
            raise MqttProtocolError(
                PROTOCOL_ERROR, f"{packet} for packet id {packet_id}, which nobody asked with"
            )
        if count is not None and count != asked:  # [MQTT-3.8.4-6]
            raise MqttProtocolError(PROTOCOL_ERROR, f"{packet} has {count} codes for {asked} filters")
        # Its packet id is free.
        self._fill_window()

    def _ask(self, packet_id: int, count: int, packet: bytes) -> int:
        if len(packet) > self.granted.packet_bytes_max:
            raise SubscriptionError(
                f"a packet of {len(packet)} bytes is larger than the server takes"
                f" ({self.granted.packet_bytes_max}): ask for fewer filters at a time"
            )
        self.session.asking[packet_id] = count
        self._output.write(packet)
        return packet_id

    def _of_v5(self, properties: Properties) -> Properties | None:
        return properties if self._level == PROTOCOL_LEVEL_5 else None

    def _fail(self, reason: Reason, text: str, *, is_told: bool = True) -> None:
        """The server broke a rule: say so, where MQTT has words for it, and end."""
        if is_told and self._level == PROTOCOL_LEVEL_5 and self.state == CONNECTED:
            self._output.write(packets.encode_disconnect(reason.v5_code))
        self._close(
            Ending(reason.v5_code, text if not is_told else f"the server broke a rule of MQTT: {text}")
        )

    def _close(self, ending: Ending) -> None:
        if self.state != CLOSED:
            self.state = CLOSED
            self.ending = ending
            self._answer_deadline_s = None


def _with_reason(text: str, told: Properties) -> str:
    return f"{text}: {told.reason_string}" if told.reason_string else text
