"""A connection of the front end: what becomes of input that waits when it breaks."""

from __future__ import annotations

from fake_gateway import Front, receive
from mqtt_core import CollectingSink

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets


def test_what_is_subscribed_behind_a_broken_connection_is_not_decided_on() -> None:
    """It would take the loop's time, and leave subscriptions of nobody; only how it ended counts."""
    front = Front(CollectingSink())
    device, _ = front.connect()
    subscribes = b"".join(packets.encode_subscribe(number + 1, [("t", 1)]) for number in range(2_000))
    unsubscribes = b"".join(packets.encode_unsubscribe(number + 1, ["t"]) for number in range(2_000))
    receive(device, subscribes + unsubscribes + packets.DISCONNECT_PACKET)
    front.loop.run()
    answered = len(front.events)
    assert answered < 20, "the rest waits for an answer"
    device.connection_lost(None)
    front.loop.run()
    assert front.events[answered:] == [packets.Disconnect()]
    assert device.close_reason == reason_codes.NORMAL
    assert front.lost == [device]
