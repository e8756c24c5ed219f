import pytest

from iotmq.addresses import address_text, is_loopback, parse_address, reachable_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:9876", "localhost", 9876),
        ("a:65535", "a", 65_535),
        ("[::1]:1", "::1", 1),
        # As some brokers tell theirs.
        ("::1:9876", "::1", 9876),
    ],
)
def test_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert parse_address(address_text(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:-1", "two words:1", "a:1\n", "http://a:1",
     "[::1]", "[::1:1", "::1]:1", "[]:1", "a:\u0661"],
)  # fmt: skip
def test_what_is_not_an_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="invalid address: ") as refused:
        parse_address(text)
    assert repr(text) in str(refused.value)


def test_the_port_may_be_left_out_where_there_is_a_usual_one() -> None:
    assert parse_address("a", default_port=9876) == ("a", 9876)
    assert parse_address("a:1", default_port=9876) == ("a", 1)
    assert parse_address("[::1]", default_port=9876) == ("::1", 9876)
    # The last part of an address of IPv6 must not be taken for a port.
    with pytest.raises(ValueError, match="expected HOST:PORT"):
        parse_address("2001:db8::1", default_port=9876)


def test_a_port_that_is_not_known_yet_is_0() -> None:
    assert parse_address("a:0", port_min=0) == ("a", 0)
    with pytest.raises(ValueError, match="a port between 0 and 65535"):
        parse_address("a:65536", port_min=0)


def test_a_host_of_ipv6_has_brackets() -> None:
    assert address_text("10.0.0.1", 1) == "10.0.0.1:1"
    assert address_text("2001:db8::1", 1) == "[2001:db8::1]:1"


@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        ("0.0.0.0:1883", "127.0.0.1:1883"),
        ("[::]:1883", "[::1]:1883"),
        ("192.0.2.1:1883", "192.0.2.1:1883"),
    ],
)
def test_a_listener_on_every_address_is_met_on_loopback(listens: str, reached: str) -> None:
    assert reachable_address(listens) == reached


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
