"""`iotmq access`: what devices may do, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from permissions_site import rule_text

from iotmq.commands.cli import EXIT_USAGE, main

RULES = (
    rule_text("deny", "subscribe", "d/%u/secret/#", name='"secret"')
    + rule_text("allow", "all", "d/%u/#", who="{ role = 'pump' }", qos_max="1", retain="false")
    + rule_text("allow", "publish", "g/%g/%{tenant}", who="{ address = '10.0.0.0/8', listener = 'tls' }")
    + rule_text("allow", "publish", "late/#", delayed="true")
    + rule_text("allow", "subscribe", "jobs/#", shared="true")
    + rule_text("allow", "publish", "small", payload_bytes_max="10", who="{ certificate = 'cn' }")
)

TLS = "--set mqtt.listeners=[{name='tls',transport='tcp'}]"
BALANCED = (
    "--set mqtt.listeners=[{name='b',transport='tcp',proxy_protocol=true,proxy_identity_trusted=true,"
    "client_identity_is_user=true}] --set mqtt.tcp_enabled=false"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "permissions.toml"
    path.write_text("[roles]\npump = ['pump-7']\n" + RULES)
    return path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--user pump-7 --action publish --topic d/pump-7/x --qos 1", 0, "allowed by rules[1]"),
        ("--user pump-7 --action publish --topic d/pump-7/x --qos 2", 1, "refused by rules[1]"),
        ("--user pump-7 --action publish --topic d/pump-7/x --qos 2", 1, "it is for QoS 0, 1"),
        ("--user pump-7 --action publish --topic d/pump-7/x --retain", 1, "refused by rules[1]"),
        ("--user pump-7 --action publish --topic d/pump-7/x --retain", 1, "it has retain = false"),
        ("--user pump-8 --action publish --topic d/pump-8/x", 1, "refused by no rule"),
        ("--user pump-8 --role pump --action publish --topic d/pump-8/x", 0, "rules[1]"),
        ("--user pump-7 --action subscribe --topic d/pump-7/+ --qos 2", 1, "refused by secret"),
        ("--user pump-7 --action subscribe --topic d/pump-7/+ --qos 2", 1, "it matches d/pump-7/secret"),
        ("--user pump-7 --action subscribe --topic d/pump-7/x --qos 2", 0, "with QoS 1 at most"),
        ("--user pump-7 --action subscribe --topic $exclusive/d/pump-7/x", 0, "subscribe d/pump-7/x"),
        ("--action subscribe --topic $share/g/jobs/+", 0, "subscribe jobs/+"),
        ("--action subscribe --topic jobs/+", 1, "refused by rules[4]"),
        ("--action subscribe --topic jobs/+", 1, "it has shared = true"),
        ("--action publish --topic $delayed/5/late/x", 0, "publish late/x"),
        ("--action publish --topic late/x", 1, "refused by rules[3]"),
        ("--action publish --topic late/x", 1, "it has delayed = true"),
        (
            "--action publish --topic g/a/t --group a --attribute tenant=t --address 10.1.1.1 --listener tls "
            + TLS,
            0,
            "2",
        ),
        (
            "--action publish --topic g/a/t --group a --attribute tenant=t --address 11.1.1.1 --listener tls "
            + TLS,
            1,
            "no",
        ),
        ("--action publish --topic small --certificate cn --payload-bytes 10", 0, "rules[5]"),
        ("--action publish --topic small --certificate cn --payload-bytes 11", 1, "refused by rules[5]"),
        ("--action publish --topic small --certificate cn --payload-bytes 11", 1, "payload_bytes_max is 10"),
        ("--action publish --topic small --payload-bytes 1", 1, "refused by no rule"),
        (f"--certificate pump-7 --action publish --topic d/pump-7/x {BALANCED}", 0, "rules[1]"),
        (f"--action publish --topic jobs/x {BALANCED}", 1, "it cannot connect without a user name"),
    ],
)
def test_the_decision_and_the_rule_are_told(
    file: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, said: str
) -> None:
    assert main(["access", "test", "--file", str(file), "--client", "c", *words.split()]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        "--action publish --topic a/+",
        "--action publish --topic $delayed/x/y",
        "--action subscribe --topic a/#/b",
        "--action subscribe --topic $share/g",
        "--action publish --topic x --attribute x",
        "--action publish --topic x --listener tls",
    ],
)
def test_what_cannot_be_asked_is_a_wrong_usage(file: Path, words: str) -> None:
    assert main(["access", "test", "--file", str(file), "--client", "c", *words.split()]) == EXIT_USAGE


def test_rewrites_and_what_holds_without_rules_are_those_of_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["access", "test", "--client", "c", "--action", "publish", "--topic", "old/x"]
    rewrite = "mqtt.rewrites=[{filter = 'old/#', pattern = '^old/(.+)$', template = 'd/%u/$1'}]"
    assert main([*words, "--user", "u", "--set", rewrite]) == 0
    assert "allowed by own topics: publish d/u/x" in capsys.readouterr().out
    assert main([*words, "--user", "u"]) == 1
    assert main([*words, "--user", "u", "--set", "mqtt.permissions.without_rules=everything"]) == 0
    assert 'without_rules = "everything"' in capsys.readouterr().out
    assert main([*words]) == 0
    assert "nobody is asked who it is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ("", 1, "refused by mqtt.authentication: publish c\nit cannot connect without a user name\n"),
        (
            "allow_anonymous = true\n",
            1,
            'refused by own topics: publish c\nmqtt.permissions.without_rules = "own"',
        ),
        (
            "[[mqtt.listeners]]\nname = 'room'\ntransport = 'tcp'\nlisten_port = 1\nchain = ['anonymous']",
            0,
            "allowed by no rule: publish c\nnobody is asked who it is",
        ),
    ],
)
def test_a_device_without_a_name_is_one_where_somebody_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, code: int, said: str
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f"[mqtt.authentication]\nusers_file = 'users'\n{settings}")
    words = ["--config", str(config), "--client", "c", "--action", "publish", "--topic", "c"]
    assert main(["access", "test", *words, "--listener", "room" if "room" in settings else "tcp"]) == code
    assert capsys.readouterr().out.startswith(said)


def test_rules_of_an_identity_stand_in_front_of_those_of_the_file(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brought = tmp_path / "permissions.json"
    brought.write_text(
        '[{"permission": "deny", "action": "all", "topic": "d/%u/x"},'
        ' {"permission": "allow", "action": "publish", "topic": "own/${clientid}", "qos": [0]}]'
    )
    words = ["access", "test", "--client", "c", "--action", "publish", "--permissions", str(brought)]
    with_file = [*words, "--file", str(file), "--user", "pump-7"]
    for topic, code, said in (
        ("d/pump-7/x", 1, "refused by identity[0]"),
        ("own/c", 0, "allowed by identity[1]"),
        ("d/pump-7/y", 0, "allowed by rules[1]"),
    ):
        assert main([*with_file, "--topic", topic]) == code
        assert capsys.readouterr().out == f"{said}: publish {topic}\n"
    assert main([*words, "--topic", "own/c", "--qos", "1"]) == 1
    assert capsys.readouterr().out == "refused by identity[1]: publish own/c\nit is for QoS 0\n"
    assert main([*words, "--topic", "d/pump-7/y"]) == 1
    assert "refused by no rule" in capsys.readouterr().out
    for text in ('[{"permission": "maybe"}]', "{}", "["):
        brought.write_text(text)
        assert main([*words, "--topic", "own/c"]) == EXIT_USAGE
        assert "--permissions" in capsys.readouterr().err
    brought.unlink()
    assert main([*words, "--topic", "own/c"]) == EXIT_USAGE


def test_a_file_is_checked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["access", "check", "--file", str(file)]) == 0
    assert capsys.readouterr().out == "6 rules are good\n"
    file.write_text(RULES + rule_text("allow", "publish", "a/#/b"))
    assert main(["access", "check", "--file", str(file)]) == 1
    assert capsys.readouterr().out.startswith("rules[6]: topic 'a/#/b'")
    assert (
        main(["access", "test", "--file", str(file), "--client", "c", "--action", "publish", "--topic", "x"])
        == 2
    )
    assert main(["access", "check", "--file", str(file.parent / "none")]) == EXIT_USAGE
    assert main(["access", "check"]) == EXIT_USAGE
