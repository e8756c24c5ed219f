"""Client certificates: identities by rule, and certificates that do not count, over real TLS."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificate, make_certificate, make_revocation_list, make_root
from chain_site import ChainSite, chained
from fake_gateway import connect_packet

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt_front.access.links.certificate import CertificateLink
from iotmq.mqtt_front.access.verdicts import NEVER_MINE, Accepted, Credentials, Denied
from iotmq.mqtt_front.settings.links import CertificateLinkSettings

SHOWN: dict[str, Any] = {
    "subject": (
        (("countryName", "DE"),),
        (("organizationName", "Pumps, Inc."),),
        (("organizationalUnitName", "north"),),
        (("organizationalUnitName", "meters"),),
        (("commonName", "meter-7"),),
    ),
    "subjectAltName": (
        ("DNS", "meter-7.example.com"),
        ("DNS", "m7"),
        ("URI", "urn:meter:7"),
        ("email", "m@e"),
    ),
    "serialNumber": "0A",
    "notAfter": "Jan  1 00:00:00 2099 GMT",
}


async def decide(shown: dict[str, Any] | None = SHOWN, **settings: Any) -> Any:
    link = CertificateLink(CertificateLinkSettings(name="certificates", **settings))
    return await link.decide(Credentials("d", None, None, None, "tls", None, shown))


@pytest.mark.parametrize(
    ("template", "user"),
    [
        ("{cn}", "meter-7"),
        ("{ou}/{cn}", "north/meter-7"),
        ("{san-dns}", "meter-7.example.com"),
        ("{san-uri}", "urn:meter:7"),
        ("{san-email}", "m@e"),
        ("{c}-{o}", "DE-Pumps, Inc."),
        ("{dn}", r"CN=meter-7,OU=meters,OU=north,O=Pumps\, Inc.,C=DE"),
        ("device", "device"),
    ],
)
async def test_users_by_template(template: str, user: str) -> None:
    decided = await decide(user=template)
    assert isinstance(decided, Accepted)
    assert decided.identity.user == user
    assert decided.client_id is None


async def test_roles_groups_attributes_and_client_id() -> None:
    decided = await decide(
        client_id="{ou}:{cn}",
        roles=("{ou}", "{ou}", "all"),
        groups=("{san-dns}", "{l}"),
        attributes={"site": "{ou}", "place": "{l}"},
    )
    assert isinstance(decided, Accepted)
    identity = decided.identity
    assert (identity.roles, identity.groups) == (("north", "meters", "all"), ("meter-7.example.com", "m7"))
    assert identity.attributes == {"site": "north"}
    assert decided.client_id == "north:meter-7"


async def test_without_a_certificate_it_is_for_the_next_link() -> None:
    assert await decide(None) is NEVER_MINE
    link = CertificateLink(CertificateLinkSettings(name="certificates", user="{identity}"))
    behind_proxy = await link.decide(Credentials("d", None, None, None, "tls", "meter-7"))
    assert isinstance(behind_proxy, Accepted)
    assert behind_proxy.identity.user == "meter-7"


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "n" * (limits.MQTT_USER_NAME_BYTES_MAX + 1)])
async def test_names_that_are_none_for_a_user(name: str) -> None:
    shown = {"subject": ((("commonName", name),),)}
    assert isinstance(await decide(shown), Denied)
    assert isinstance(await decide(shown, user="device", client_id="{cn}"), Denied)
    assert isinstance(await decide({"subject": ()}), Denied)
    longest = {"subject": ((("commonName", "n" * limits.MQTT_USER_NAME_BYTES_MAX),),)}
    assert isinstance(await decide(longest), Accepted)


async def test_names_of_an_identity_are_bounded() -> None:
    """Two fields that a certificate has many times make every combination."""
    many = tuple((("organizationalUnitName", f"u{number}"),) for number in range(40))
    shown = {"subject": (*many, *SHOWN["subject"])}
    decided = await decide(shown, roles=("{ou}-{ou}-{ou}",))
    assert isinstance(decided, Accepted)
    assert len(decided.identity.roles) == limits.MQTT_IDENTITY_NAMES_MAX


def test_a_field_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"there is no field \{nc\}"):
        CertificateLink(CertificateLinkSettings(name="certificates", user="{nc}"))


def test_only_the_certificate_is_part_of_the_question() -> None:
    link = CertificateLink(CertificateLinkSettings(name="certificates"))
    told = link.told(Credentials("d", "pump", b"x", "192.0.2.1", "tls", None, SHOWN))
    assert told == link.told(Credentials("e", None, None, None, "wss", None, SHOWN))
    assert told != link.told(
        Credentials("d", "pump", b"x", "192.0.2.1", "tls", None, {**SHOWN, "serialNumber": "0B"})
    )


# Over TLS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A root, the server's certificate, and those of devices."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not there")
    directory = tmp_path_factory.mktemp("certificates")
    root, other = make_root(directory), make_root(directory, "other")
    revoked = make_certificate(directory, root, "revoked")
    return {
        "root": root,
        "server": make_certificate(directory, root),
        "good": make_certificate(directory, root, "meter-7", alternatives="URI:urn:meter:7"),
        "expired": make_certificate(directory, root, "expired", days=-1),
        "revoked": revoked,
        "of another root": make_certificate(directory, other, "stranger"),
        "self-signed": make_root(directory, "meter-7-itself"),
        "list": make_revocation_list(directory, root, revoked),
    }


def listener(made: dict[str, Any], **settings: Any) -> dict[str, Any]:
    server: Certificate = made["server"]
    return {
        "name": "safe",
        "transport": "tls",
        "certificates": [{"certificate_file": server.certificate, "key_file": server.key}],
        "client_ca_file": made["root"].certificate,
        "client_certificates": "optional",
        "client_crl_files": [made["list"]],
        **settings,
    }


async def tls_code(site: ChainSite, made: dict[str, Any], which: str | None, **fields: Any) -> int | None:
    """The code of the CONNACK; None when the connection ends before that."""
    context = ssl.create_default_context(cafile=made["root"].certificate)
    if which is not None:
        context.load_cert_chain(made[which].certificate, made[which].key)
    port = int(site.front.addresses["safe"].rpartition(":")[2])
    packet = connect_packet(fields.pop("client_id", "d"), **fields)
    try:
        return (await site.connect(packet, port, ssl=context, server_hostname="localhost"))[1]
    except (OSError, EOFError):
        return None


CERTIFICATES = {"kind": "certificate", "name": "certificates", "roles": ["{san-uri}"]}


async def test_a_certificate_or_a_password(made: dict[str, Any], tmp_path: Path) -> None:
    from users_site import file_of_all

    users = {"kind": "users", "name": "users"}
    mqtt = {"listeners": [listener(made)]}
    file = str(file_of_all(tmp_path))
    async with chained(CERTIFICATES, users, mqtt=mqtt, users_file=file) as site:
        assert await tls_code(site, made, "good") == 0
        device = site.device()
        assert (device.user, device.identity.roles) == ("meter-7", ("urn:meter:7",))
        assert device.peer.certificate is None, "it is not kept"
        assert device.identity.decided_by == "certificates"
        assert await tls_code(site, made, None, client_id="e", user_name="pump", password=b"pmup") == 0
        assert site.device("e").user == "pump"
        assert await tls_code(site, made, None, user_name="pump", password=b"wrong") == 4
        assert await tls_code(site, made, None) == 5
        # A certificate counts before a password.
        assert await tls_code(site, made, "good", user_name="pump", password=b"wrong", client_id="f") == 0
        assert site.device("f").user == "meter-7"


@pytest.mark.parametrize("which", ["expired", "revoked", "of another root", "self-signed"])
async def test_certificates_that_do_not_count(made: dict[str, Any], which: str) -> None:
    async with chained(CERTIFICATES, mqtt={"listeners": [listener(made)]}) as site:
        assert await tls_code(site, made, which) is None
        assert await tls_code(site, made, "good") == 0


async def test_a_certificate_is_a_condition(made: dict[str, Any], tmp_path: Path) -> None:
    """A password at the listener with certificates only together with one."""
    from users_site import file_of_all

    users = {"kind": "users", "name": "users", "when_certificate": True}
    mqtt = {"listeners": [listener(made)]}
    async with chained(users, mqtt=mqtt, users_file=str(file_of_all(tmp_path))) as site:
        assert await tls_code(site, made, "good", user_name="pump", password=b"pmup") == 0
        assert await tls_code(site, made, None, user_name="pump", password=b"pmup") == 4
        assert await site.code("pump", b"pmup") == 4


async def test_a_certificate_without_authentication_is_not_kept(made: dict[str, Any]) -> None:
    from listener_site import running

    async with running(listener(made)) as front:
        context = ssl.create_default_context(cafile=made["root"].certificate)
        context.load_cert_chain(made["good"].certificate, made["good"].key)
        from fake_gateway import RawClient

        port = int(front.addresses["safe"].rpartition(":")[2])
        client = await RawClient.dial(port, ssl=context, server_hostname="localhost")
        client.send(connect_packet("d"))
        assert (await client.packet())[1] == b"\0\0"
        (device,) = front.parts.sessions.devices()
        assert device.peer.certificate is None
        assert device.identity is None
        client.abort()
