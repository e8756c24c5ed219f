"""Signing in at a real gateway: from the link of the log of the first start to the end of a session."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from gateway_process import GatewayProcess
from http_api_caller import ROUTE_OF, Reply, exchange, target_of

LINK = re.compile(r"#/sign-in\?link=([A-Za-z0-9_-]{43})")


class Browser:
    """A browser with a page of the gateway in it."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._cookie = ""

    def ask(self, name: str, *path: str, body: object = None) -> Reply:
        """Ask a route by its name."""
        route = ROUTE_OF[name]
        headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
        headers["Cookie"] = self._cookie
        sent = json.dumps(body).encode() if body else b""
        reply = exchange(self._gateway, route.method, target_of(route, *path), sent, headers)
        if (cookie := reply.headers.get("set-cookie")) is not None:
            self._cookie = cookie.partition(";")[0]
        return reply


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("sign-in") / "data") as started:
        yield started


def test_the_first_sign_in_is_by_the_link_of_the_log(gateway: GatewayProcess) -> None:
    found = LINK.search(gateway.log_text())
    assert found is not None
    browser = Browser(gateway)
    ways = browser.ask("show_sign_in_ways").body
    assert (ways["password"], ways["link"], ways["is_safe"]) == (False, True, True)
    assert browser.ask("show_me").status == 401
    assert browser.ask("begin_oidc_sign_in").status == 404, "there is no provider in the settings"
    assert browser.ask("finish_oidc_sign_in").status == 404
    assert browser.ask("sign_in", body={"link": found[1]}).body["role"] == "administrator"
    assert browser.ask("sign_in", body={"link": found[1]}).status == 401
    user = {"role": "administrator", "password": "password of ada"}
    assert browser.ask("put_console_user", "ada", body=user).status == 200

    ada = Browser(gateway)
    assert ada.ask("sign_in", body={"user": "ada", "password": "password of ada"}).status == 200
    assert ada.ask("show_me").body["name"] == "ada"
    viewer = {"role": "viewer", "password": "password of bob"}
    assert ada.ask("put_console_user", "bob", body=viewer).status == 200
    listed = ada.ask("list_console_users").body["items"]
    assert [(each["name"], each["role"], each["sessions"]) for each in listed] == [
        ("ada", "administrator", 1),
        ("bob", "viewer", 0),
    ]
    sessions = ada.ask("list_console_sessions").body["items"]
    assert [(each["name"], each["is_own"]) for each in sessions] == [("ada", True), ("first-sign-in", False)]
    assert ada.ask("end_console_session", sessions[1]["id"]).status == 200
    assert browser.ask("show_me").status == 401

    bob = Browser(gateway)
    assert bob.ask("sign_in", body={"user": "bob", "password": "password of bob"}).status == 200
    assert bob.ask("list_console_users").status == 403
    change = {"former": "password of bob", "password": "another password of bob"}
    assert bob.ask("change_own_password", body=change).status == 200
    assert bob.ask("show_me").status == 401, "a session ends with the password it began with"
    assert bob.ask("sign_in", body={"user": "bob", "password": "password of bob"}).status == 401
    assert bob.ask("sign_in", body={"user": "bob", "password": "another password of bob"}).status == 200
    key = {"name": "robot", "role": "viewer"}
    assert ada.ask("make_api_key", body=key).body["key"].startswith("iotmq-key.robot.")
    assert [each["name"] for each in ada.ask("list_api_keys").body["items"]] == ["robot"]
    assert ada.ask("remove_api_key", "robot").status == 200
    assert ada.ask("remove_console_user", "bob").status == 200
    assert bob.ask("show_me").status == 401
    assert ada.ask("sign_out").status == 200
    assert ada.ask("show_me").status == 401


def test_with_users_there_is_no_link_after_a_restart(gateway: GatewayProcess) -> None:
    ada = Browser(gateway)
    assert ada.ask("sign_in", body={"user": "ada", "password": "password of ada"}).status == 200
    links = len(LINK.findall(gateway.log_text()))
    gateway.terminate()
    gateway.start()
    assert len(LINK.findall(gateway.log_text())) == links
    assert ada.ask("show_me").status == 401, "a restart ends sessions"
    assert ada.ask("sign_in", body={"user": "ada", "password": "password of ada"}).status == 200
