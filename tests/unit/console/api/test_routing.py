"""Routes by method and path."""

from __future__ import annotations

import pytest

from iotmq.console.api.problems import MALFORMED, METHOD, NOT_FOUND, ProblemError
from iotmq.console.api.route import Call, NoArguments, Route, route
from iotmq.console.api.routing import RouteTree
from iotmq.console.server.messages import Answer


async def answer_nothing(_services: None, _call: Call[NoArguments, None]) -> Answer:
    """Answer nothing."""
    return Answer()


def made(method: str, path: str) -> Route:
    return route(method, path, answer_nothing, tag="test")


TREE = RouteTree(
    [
        made("GET", "/topics"),
        made("GET", "/topics/{topic}"),
        made("PUT", "/topics/{topic}"),
        made("GET", "/topics/{topic}/messages"),
        made("GET", "/topics/system"),
        made("POST", "/mqtt-topics/{mqtt_topic...}"),
        made("PUT", "/bans/{kind}/{value...}"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found", "values"),
    [
        ("GET", "/topics", "/topics", {}),
        ("HEAD", "/topics", "/topics", {}),
        ("GET", "/topics/a", "/topics/{topic}", {"topic": "a"}),
        ("PUT", "/topics/a%2Fb%20%C3%A4", "/topics/{topic}", {"topic": "a/b ä"}),
        ("GET", "/topics/system", "/topics/system", {}),
        ("GET", "/topics/system/messages", "/topics/{topic}/messages", {"topic": "system"}),
        ("POST", "/mqtt-topics/a", "/mqtt-topics/{mqtt_topic...}", {"mqtt_topic": "a"}),
        ("POST", "/mqtt-topics//a//b/", "/mqtt-topics/{mqtt_topic...}", {"mqtt_topic": "/a//b/"}),
        (
            "POST",
            "/mqtt-topics/" + "a/" * 60 + "a",
            "/mqtt-topics/{mqtt_topic...}",
            {"mqtt_topic": "a/" * 60 + "a"},
        ),
        (
            "PUT",
            "/bans/network/10.0.0.0/8",
            "/bans/{kind}/{value...}",
            {"kind": "network", "value": "10.0.0.0/8"},
        ),
    ],
)
def test_a_path_finds_its_route_and_its_parameters(
    method: str, path: str, found: str, values: dict[str, str]
) -> None:
    route, parameters = TREE.find(method, path)
    assert route.path == found
    assert parameters == values


@pytest.mark.parametrize(
    ("method", "path", "kind", "detail"),
    [
        ("GET", "/nothing", NOT_FOUND, "no path /nothing$"),
        ("GET", "", NOT_FOUND, "no path $"),
        ("GET", "/topics/", NOT_FOUND, "no path /topics/$"),
        ("GET", "/topics/a/b/c/d", NOT_FOUND, "no path /topics/a/b/c/d$"),
        ("POST", "/mqtt-topics/", NOT_FOUND, "no path /mqtt-topics/$"),
        ("DELETE", "/topics/a", METHOD, "GET, PUT"),
        ("GET", "/topics/%FF", MALFORMED, "UTF-8"),
    ],
)
def test_a_path_that_finds_none_says_why(method: str, path: str, kind: object, detail: str) -> None:
    with pytest.raises(ProblemError, match=detail) as raised:
        TREE.find(method, path)
    assert raised.value.kind is kind


def test_two_routes_of_one_path_are_a_fault_of_the_table() -> None:
    with pytest.raises(AssertionError, match="two routes GET /topics"):
        RouteTree([made("GET", "/topics"), made("GET", "/topics")])
