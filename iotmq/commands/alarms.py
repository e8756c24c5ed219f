"""The words of `iotmq alarms`: what fires, who looks after it, what is silenced, and whether it arrives."""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from iotmq.addresses import address_text
from iotmq.commands.admin import arguments
from iotmq.commands.admin.output import Done, Result, Table, as_json
from iotmq.errors import ClientError, ConnectionClosedError

if TYPE_CHECKING:
    from iotmq.config.config import Config

_OK: Final = 0
_NOT_DELIVERED: Final = 1
_TIMEOUT_S: Final = 70.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_TOKEN_BYTES_MAX: Final = 64 * 1024
_BASE: Final = "/api/v1"
_ROLES: Final = ("metrics", "viewer", "operator", "administrator")
_PAGE: Final = 100

Load = Callable[[argparse.Namespace], "Config"]


def add_alarms_actions(
    alarms: argparse.ArgumentParser,
    *,
    add_config_options: Callable[[argparse.ArgumentParser], None],
    load: Load,
) -> None:
    """Add the actions of `alarms`."""
    actions = alarms.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, what: str, run: Callable[[Gateway, argparse.Namespace], Result]) -> Any:
        action = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        add_config_options(action)
        action.add_argument("--http", metavar="URL", help="HTTP port of the gateway (that of the settings)")
        action.add_argument(
            "--token-file",
            type=Path,
            metavar="FILE",
            help="file with the token to show (that of http.tokens in the settings that may do most)",
        )
        action.add_argument(
            "--ca-file", type=Path, metavar="FILE", help="PEM file with the roots of its certificate"
        )
        action.add_argument("--json", dest="is_json", action="store_true", help="one JSON document")
        action.set_defaults(command=lambda options: _ask(options, load, run))
        return action

    add("list", "list the alarms that fire, and those that are about to", _list)
    ended = add("history", "list the alarms that have ended, the last one first", _history)
    ended.add_argument("--limit", type=arguments.positive, default=_PAGE, metavar="N", help="at most so many")
    add("conditions", "list the conditions that are on, with their marks", _conditions)
    add("receivers", "list who is told, and how that goes", _receivers)
    acknowledge = add("acknowledge", "say that you look after an alarm: it is not repeated", _acknowledge)
    acknowledge.add_argument("id", metavar="ID", help="see `list`")
    acknowledge.add_argument("--note", default="", metavar="TEXT", help="shown beside it")
    end = add("end", "end an alarm, as for a broker that is gone for good", _end)
    end.add_argument("id", metavar="ID", help="see `list`")
    add("silences", "list the silences", _silences)
    silence = add("silence", "tell nobody of some alarms for a while", _silence)
    silence.add_argument("name", metavar="NAME", help="a name for the silence")
    silence.add_argument(
        "--alarm", default="*", metavar="NAME", help="the alarms; * in it stands for anything (all)"
    )
    silence.add_argument(
        "--label",
        dest="labels",
        action="append",
        default=[],
        type=arguments.pair,
        metavar="NAME=VALUE",
        help="a label they must have; may be repeated",
    )
    silence.add_argument(
        "--for",
        dest="duration_ms",
        type=arguments.duration_ms,
        required=True,
        metavar="TIME",
        help="how long, such as 30m, 12h or 7d",
    )
    silence.add_argument("--reason", required=True, metavar="TEXT", help="why")
    unsilence = add("unsilence", "end a silence", _unsilence)
    unsilence.add_argument("name", metavar="NAME", help="see `silences`")
    test = add("test", "send a marked notification to a receiver, and say whether it was taken", _test)
    test.add_argument("receiver", metavar="RECEIVER", help="see `receivers`")


class Gateway(NamedTuple):
    """The HTTP API of a gateway."""

    url: str
    token: str
    ca_file: Path | None

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the body of the answer. ClientError with what a refusal says."""
        parts = urlsplit(self.url)
        try:
            connection = self._connection(parts.scheme, parts.hostname or "", parts.port)
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            sent = None if body is None else json.dumps(body)
            try:
                connection.request(method, f"{parts.path.rstrip('/')}{_BASE}{path}", sent, headers)
                answer = connection.getresponse()
                data = answer.read(_ANSWER_BYTES_MAX)
            finally:
                connection.close()
            said = json.loads(data)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ConnectionClosedError(f"{self.url} cannot be asked: {error}") from None
        if answer.status != http.client.OK:
            raise ClientError(said.get("detail") or said.get("title") or f"{self.url}: {answer.status}")
        return said

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "https":
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)


def _ask(
    options: argparse.Namespace, load: Load, run: Callable[[Gateway, argparse.Namespace], Result]
) -> int:
    result = run(_gateway(options, load), options)
    print(as_json(result) if options.is_json else result.text(), end="")
    return _NOT_DELIVERED if isinstance(result, _NotDelivered) else _OK


def _gateway(options: argparse.Namespace, load: Load) -> Gateway:
    settings = load(options).http
    url = options.http
    if url is None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.listen_host, settings.listen_host)
        scheme = "https" if settings.tls_certificate_file else "http"
        url = f"{scheme}://{address_text(host, settings.listen_port)}"
    if options.token_file is not None:
        return Gateway(url, _token_of(options.token_file), options.ca_file)
    if not settings.tokens:
        raise ClientError(
            "the settings have no http.tokens: name them with --config, or a file with a token with "
            "--token-file"
        )
    best = max(settings.tokens, key=lambda token: _ROLES.index(token.role))
    return Gateway(url, best.token, options.ca_file)


def _token_of(file: Path) -> str:
    try:
        with file.open() as stream:
            return stream.read(_TOKEN_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"{file} cannot be read: {error}") from None


def _list(gateway: Gateway, _options: argparse.Namespace) -> Result:
    rows: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = gateway.ask("GET", f"/alarms?limit={_PAGE}&cursor={quote(cursor)}")
        rows += [_row(alarm) for alarm in page["items"]]
        cursor = page["next"]
    return Table(rows, nothing="no alarm fires")


def _history(gateway: Gateway, options: argparse.Namespace) -> Result:
    found = gateway.ask("GET", f"/alarms/history?limit={options.limit}")
    columns = ("alarm", "level", "says", "labels", "fired_ms", "ended_ms", "ended_by")
    rows = [
        {**_row(alarm), "fired_ms": alarm["fired_ms"], "ended_ms": alarm["ended_ms"],
         "ended_by": alarm["ended_by"]}
        for alarm in found["items"]
    ]  # fmt: skip
    return Table(rows, columns=columns, nothing="no alarm has ended")


def _row(alarm: dict[str, Any]) -> dict[str, Any]:
    state = "flapping" if alarm["is_flapping"] else alarm["state"]
    acknowledged = alarm["acknowledged"]
    return {
        "id": alarm["id"],
        "alarm": alarm["name"],
        "level": alarm["level"],
        "state": "silenced" if alarm["is_silenced"] else state,
        "since_ms": alarm["fired_ms"] or alarm["since_ms"],
        "says": alarm["says"],
        "labels": alarm["labels"],
        "looked_after_by": None if acknowledged is None else acknowledged["by"],
    }


def _conditions(gateway: Gateway, _options: argparse.Namespace) -> Result:
    from iotmq.alarms.condition import number_text

    columns = ("name", "level", "fires_at", "clears_at", "for_s", "owner", "what_to_do")
    found = gateway.ask("GET", "/alarms/conditions")["items"]
    marks = ("fires_at", "clears_at", "for_s")
    rows = [{**each, **{mark: number_text(each[mark]) for mark in marks}} for each in found]
    return _ForPeople(rows, found, columns=columns, nothing="no condition is on")


def _receivers(gateway: Gateway, _options: argparse.Namespace) -> Result:
    columns = ("name", "kind", "level", "delivered", "last_delivered_ms", "failing_s", "failed_reason")
    found = gateway.ask("GET", "/alarms/receivers")
    rows = [{**each, "last_delivered_ms": each["delivered_ms"]} for each in found["items"]]
    return _ForPeople(rows, found, columns=columns, nothing="no receivers: see alarms.receivers")


class _ForPeople(Table):
    """Rows for people; programs get what the gateway has said."""

    def __init__(
        self, rows: list[dict[str, Any]], found: object, *, columns: Sequence[str], nothing: str
    ) -> None:
        super().__init__(rows, columns=columns, nothing=nothing)
        self._found = found

    def data(self) -> object:
        return self._found


def _acknowledge(gateway: Gateway, options: argparse.Namespace) -> Result:
    alarm = gateway.ask("POST", f"/alarms/{_segment(options.id)}/acknowledge", {"note": options.note})
    return Done(f"{alarm['name']} is looked after by {alarm['acknowledged']['by']}", alarm)


def _end(gateway: Gateway, options: argparse.Namespace) -> Result:
    alarm = gateway.ask("DELETE", f"/alarms/{_segment(options.id)}")
    return Done(f"{alarm['name']} has ended", alarm)


def _silences(gateway: Gateway, _options: argparse.Namespace) -> Result:
    columns = ("name", "alarm", "labels", "until_ms", "reason", "by")
    return Table(gateway.ask("GET", "/silences")["items"], columns=columns, nothing="nothing is silenced")


def _silence(gateway: Gateway, options: argparse.Namespace) -> Result:
    body = {
        "alarm": options.alarm,
        "labels": dict(options.labels),
        "until_ms": time.time_ns() // 1_000_000 + options.duration_ms,
        "reason": options.reason,
    }
    silence = gateway.ask("PUT", f"/silences/{_segment(options.name)}", body)
    return Done(f"{silence['name']} silences {silence['alarm']}", silence)


def _unsilence(gateway: Gateway, options: argparse.Namespace) -> Result:
    silence = gateway.ask("DELETE", f"/silences/{_segment(options.name)}")
    return Done(f"{silence['name']} has ended", silence)


class _NotDelivered(Done):
    """The receiver has not taken it."""


def _test(gateway: Gateway, options: argparse.Namespace) -> Result:
    outcome = gateway.ask("POST", "/alarms:test", {"receiver": options.receiver})
    if outcome["is_delivered"]:
        return Done(f"{options.receiver} has taken it", outcome)
    return _NotDelivered(f"{options.receiver} has not taken it: {outcome['reason']}", outcome)


def _segment(text: str) -> str:
    """Return a segment of a path."""
    return quote(text, safe="")
