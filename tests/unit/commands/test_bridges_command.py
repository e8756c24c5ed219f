"""`iotmq bridges status`: what /metrics says, as a table."""

from __future__ import annotations

import pytest

from iotmq.commands.bridges import bridge_rows
from iotmq.commands.cli import main

METRICS = """
# HELP iotmq_bridge_connections Connections.
iotmq_bridge_connections{bridge="b"} 1
iotmq_bridge_connections_wanted{bridge="b"} 2
iotmq_bridge_lag_messages{bridge="b"} 12345
iotmq_bridge_connections{bridge="a"} 1
iotmq_bridge_connections_wanted{bridge="a"} 1
iotmq_bridge_sent_total{bridge="a"} 7
iotmq_mqtt_bridge_connected{bridge="site \\"7\\""} 1
iotmq_mqtt_connections 3
"""


def test_a_row_for_each_bridge() -> None:
    rows, is_well = bridge_rows(METRICS)
    assert not is_well
    assert [(row["bridge"], row["is"]) for row in rows] == [
        ("a", "connected"),
        ("b", "away"),
        ('site "7"', "connected here"),
    ]
    assert rows[0]["sent"] == 7
    assert rows[1]["lag"] == 12345


def test_a_bridge_that_may_not_subscribe_is_not_well() -> None:
    refused = METRICS.replace(
        'bridge_connections_wanted{bridge="b"} 2', 'bridge_filters_refused{bridge="b"} 1'
    )
    rows, is_well = bridge_rows(refused)
    assert not is_well
    assert [row["is"] for row in rows[:2]] == ["connected", "may not subscribe"]


def test_none_is_well() -> None:
    assert bridge_rows("") == ([], True)


def test_a_gateway_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bridges", "status", "--http", "http://127.0.0.1:1"]) == 1
    assert "cannot be read" in capsys.readouterr().err
