"""URLs, keyword arguments and environment of a client: what each says, who wins, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

import iotmq
from iotmq.client import ClientSettings, ConnectOptions
from iotmq.client.connecting import client_settings
from iotmq.errors import ConfigError


def read(url: str = "", environment: dict[str, str] | None = None, **options) -> ClientSettings:
    return client_settings(url, options, environment or {})


@pytest.mark.parametrize(
    ("url", "registries"),
    [
        ("iotmq://10.0.0.5", ("10.0.0.5:9876",)),
        ("iotmq://a:1,b,[::1]:2/", ("a:1", "b:9876", "[::1]:2")),
        ("iotmq://a?", ("a:9876",)),
    ],
)
def test_hosts_are_registries(url: str, registries: tuple[str, ...]) -> None:
    assert read(url) == ClientSettings(registries=registries)


def test_a_url_has_the_account_tls_and_all_other_settings() -> None:
    settings = read(
        "iotmqs://me:s%2F%3F%23%40%25@a?client_id=c%20d&connect_timeout_ms=50&tls_is_verified=false"
    )
    assert settings == ClientSettings(
        registries=("a:9876",),
        access_key="me",
        secret_key="s/?#@%",
        tls_enabled=True,
        client_id="c d",
        connect_timeout_ms=50,
        tls_is_verified=False,
    )


def test_keyword_arguments_win_over_the_url_and_the_url_over_the_environment() -> None:
    environment = {"IOTMQ_URL": "iotmq://z", "IOTMQ_ACCESS_KEY": "env", "IOTMQ_SECRET_KEY": "of-env"}
    assert read(environment=environment).registries == ("z:9876",)
    assert read("iotmq://a", environment).registries == ("a:9876",)
    assert read("iotmq://a", environment, registries=("b:1",)).registries == ("b:1",)
    assert read(environment=environment, registries=("b:1",)).registries == ("b:1",)
    assert read("iotmq://a", environment).secret_key == "of-env"
    assert read("iotmq://u:of-url@a", environment).secret_key == "of-url"
    assert read("iotmq://u:of-url@a", secret_key="of-call").secret_key == "of-call"
    assert read() == ClientSettings()


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://a", "begin with iotmq://"),
        ("a:9876", "begin with iotmq://"),
        ("iotmq://", "invalid address: ''"),
        ("iotmq://a,,b", "invalid address: ''"),
        ("iotmq://a:70000", "'a:70000'"),
        ("iotmq://a/queue", "nothing but a query follows the hosts"),
        ("iotmq://me@a", "not ACCOUNT:SECRET"),
        ("iotmq://me:hush%zz@a", "the secret has a %"),
        ("iotmq://me:hush%ff@a", "the secret is not UTF-8"),
        ("iotmq://me:hush/hush@a", "%2F %3F %23 %40"),
        ("iotmq://me:hush?hush@a", "%2F %3F %23 %40"),
        ("iotmq://me:hush#hush@a", "%2F %3F %23 %40"),
        ("iotmq://me:hush@hush@a", "%2F %3F %23 %40"),
        ("iotmq://a?secret_key=hush", "secret_key has its place in front"),
        ("iotmq://a?registries=b", "registries has its place in front"),
        ("iotmq://a?conect_timeout_ms=50", "did you mean connect_timeout_ms"),
        ("iotmq://a?connect_timeout_ms", "has no value"),
        ("iotmq://a?heartbeat_ms=100&heartbeat_ms=200", "says heartbeat_ms twice"),
        ("iotmqs://a?tls_enabled=false", "says tls_enabled twice"),
        ("iotmq://a?connect_timeout_ms=9", "`int` >= 10 - at `connect_timeout_ms`"),
        ("iotmq://a?connect_timeout_ms=soon", "got `str` - at `connect_timeout_ms`"),
        ("iotmq://" + ",".join("a" * 65), "<= 64 - at `registries`"),
    ],
)
def test_a_wrong_url_is_named_without_its_secret(url: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(environment={"IOTMQ_URL": url})
    assert text in str(caught.value)
    assert str(caught.value).startswith("IOTMQ_URL")
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_as_many_registries_as_are_allowed() -> None:
    assert len(read("iotmq://" + ",".join("a" * 64)).registries) == 64


def test_a_url_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="the URL is int, and has to be a text"):
        read(9876)  # type: ignore[arg-type]


def test_wrong_keyword_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match=r"connect\(\): .* at `heartbeat_ms`"):
        iotmq.connect(heartbeat_ms=1)
    with pytest.raises(ConfigError, match="no secret: secret_key is missing"):
        iotmq.connect("iotmq://a", access_key="me")


def test_no_repr_shows_a_secret() -> None:
    client = iotmq.connect("iotmq://me:hush@a?client_id=c")
    assert repr(client) == "<IotmqClient c of a:9876>"
    assert "hush" not in repr(client.settings)


def test_the_options_are_the_fields_of_the_settings() -> None:
    assert tuple(ConnectOptions.__annotations__) == ClientSettings.__struct_fields__


def test_the_client_is_loaded_when_it_is_used() -> None:
    program = "import sys, iotmq; assert 'iotmq.client' not in sys.modules; iotmq.connect('iotmq://a')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        iotmq.conect  # type: ignore[attr-defined]  # noqa: B018
