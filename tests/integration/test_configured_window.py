"""mqtt.in_flight_max is the window of devices that have no receive maximum of their own, kept or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqtt_site import SessionDevice, open_site

pytestmark = pytest.mark.uvloop

WINDOW = 3


@pytest.mark.parametrize(
    ("is_remote", "is_kept", "qos"), [(False, False, 1), (True, True, 1), (False, True, 2), (True, False, 2)]
)
async def test_a_device_of_3_1_1_holds_no_more_than_the_window(
    tmp_path: Path, is_remote: bool, is_kept: bool, qos: int
) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=is_remote, in_flight_max=WINDOW)
    device, other = SessionDevice("device"), SessionDevice("other")
    device.is_acknowledging = False
    await device.connect(site.fronts["one"], clean_session=not is_kept)
    await device.subscribe(("t", qos))
    await other.connect(site.fronts["two"], clean_session=True)
    await other.subscribe(("t", qos))
    bodies = [b"%d" % number for number in range(10)]
    for body in bodies:
        await other.publish("t", body, qos)
    await other.receives(len(bodies))
    assert [body for _, body in await device.receives(WINDOW)] == bodies[:WINDOW]
    assert len(device.unanswered) == WINDOW
    device.is_acknowledging = True
    device.acknowledge()
    assert [body for _, body in await device.receives(len(bodies))] == bodies
    await device.disconnect()
    await other.disconnect()
    await site.close()
