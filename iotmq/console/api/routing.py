"""Find the route of a method and a path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from iotmq.console.api.problems import MALFORMED, METHOD, NOT_FOUND, ProblemError
from iotmq.console.api.route import Route, segment_parameter

# No route has as many; the rest of a path belongs to its last parameter.
_SEGMENTS_MAX: Final = 16
_NO_VALUES: Final[Mapping[str, str]] = {}


class _Node:
    """The routes that begin with some segments."""

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.rest: _Node | None = None
        self.route_of: dict[str, tuple[Route, tuple[str, ...]]] = {}


class RouteTree:
    """The routes by their segments: a literal one wins over a parameter, and that over the rest of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        # Path -> its node, of the routes without parameters: these win over all others.
        self._literal: dict[str, _Node] = {}
        for route in routes:
            self._add(route)

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route and the parameters of the path, decoded.

        ProblemError when there is none, when it has other methods, or when a parameter is no UTF-8.
        """
        literal = self._literal.get(path)
        if literal is not None and method in literal.route_of:
            return literal.route_of[method][0], _NO_VALUES
        segments = path.split("/", _SEGMENTS_MAX)[1:]
        found = _walk(self._root, segments, 0)
        if found is None:
            raise ProblemError(NOT_FOUND, f"there is no path {path[:200]}")
        node, values = found
        chosen = node.route_of.get("GET" if method == "HEAD" else method)
        if chosen is None:
            allowed = ", ".join(sorted(node.route_of))
            raise ProblemError(METHOD, allowed)
        route, names = chosen
        return route, dict(zip(names, map(_decoded, values), strict=True))

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            parameter = segment_parameter(segment)
            if parameter is None:
                node = node.literals.setdefault(segment, _Node())
            elif parameter[1]:
                node.rest = node.rest or _Node()
                node = node.rest
            else:
                node.parameter = node.parameter or _Node()
                node = node.parameter
        assert route.method not in node.route_of, f"two routes {route.method} {route.path}"
        node.route_of[route.method] = (route, route.path_parameters)
        if not route.path_parameters:
            self._literal[route.path] = node


def _walk(node: _Node, segments: list[str], at: int) -> tuple[_Node, tuple[str, ...]] | None:
    if at == len(segments):
        return (node, ()) if node.route_of else None
    literal = node.literals.get(segments[at])
    if literal is not None and (found := _walk(literal, segments, at + 1)):
        return found
    if node.parameter is not None and segments[at] and (found := _walk(node.parameter, segments, at + 1)):
        return found[0], (segments[at], *found[1])
    if node.rest is not None and (left := "/".join(segments[at:])):
        return node.rest, (left,)
    return None


def _decoded(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise ProblemError(MALFORMED, f"the path has bytes that are no UTF-8: {segment[:200]!r}") from None
