"""Settings of the consensus stores: forms that are refused, and secrets that are not shown."""

from __future__ import annotations

import msgspec
import pytest

from iotmq.config.setting_text import settings_of
from iotmq.replication.consensus.settings import EtcdSettings, KubernetesSettings


@pytest.mark.parametrize(
    "endpoint", ["https://etcd-1.example:2379", "http://[::1]:2379", "http://10.0.0.1:2379"]
)
def test_endpoints_are_urls_with_a_port(endpoint: str) -> None:
    assert msgspec.convert({"endpoints": [endpoint]}, EtcdSettings).endpoints == (endpoint,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoints": []},
        {"endpoints": ["http://h:1"] * 17},
        {"endpoints": ["etcd:2379"]},
        {"endpoints": ["http://etcd"]},
        {"endpoints": ["http://user@etcd:2379"]},
        {"endpoints": ["http://etcd:2379/v3"]},
        {"prefix": ""},
        {"prefix": "iotmq"},
        {"prefix": "/iotmq/"},
        {"timeout_ms": 99},
        {"unknown": 1},
    ],
)
def test_wrong_settings_of_etcd_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, EtcdSettings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": "A"},
        {"namespace": "a/b"},
        {"namespace": "-a"},
        {"api_server": "kubernetes"},
        {"api_server": "https://kubernetes:443/x"},
        {"pod_name": "../pods/other"},
        {"pod_name": "a?b"},
        {"token_file": ""},
    ],
)
def test_wrong_settings_of_kubernetes_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, KubernetesSettings)


@pytest.mark.parametrize("struct", [EtcdSettings, KubernetesSettings])
def test_every_setting_is_described_and_passwords_are_secrets(struct: type[msgspec.Struct]) -> None:
    settings = list(settings_of(struct))
    assert all(setting.description.endswith(".") for setting in settings)
    assert [each.key for each in settings if each.is_secret] == (
        ["password"] if struct is EtcdSettings else []
    )
