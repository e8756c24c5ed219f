"""Commands: replies, typed fields and bodies."""

from __future__ import annotations

import pytest

from iotmq.errors import RequestError
from iotmq.remoting.codes import Flag, LanguageCode, RequestCode, ResponseCode, request_name
from iotmq.remoting.command import Command


def test_a_request_is_ours() -> None:
    request = Command.request(RequestCode.PULL_MESSAGE, {"a": "b"}, b"body")
    assert (request.language, request.version, request.flag) == (LanguageCode.PYTHON, 409, 0)
    assert not request.is_response
    assert not request.is_oneway
    assert Command.request(1, oneway=True).is_oneway


def test_a_request_does_not_share_its_fields_with_the_caller() -> None:
    fields = {"a": "1"}
    request = Command.request(1, fields)
    fields["a"] = "2"
    assert request.ext == {"a": "1"}


def test_a_reply_answers_its_request() -> None:
    request = Command.request(1)
    request.opaque = 9
    reply = request.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
    assert (reply.opaque, reply.flag, reply.code) == (9, Flag.RESPONSE, 17)
    assert reply.is_response
    assert reply.ext == {}


def test_a_reply_to_a_oneway_request_can_be_told_apart() -> None:
    assert Command.request(1, oneway=True).reply(0).is_oneway
    assert not Command.request(1).reply(0).is_oneway


def test_an_unknown_code_is_answered_with_code_3() -> None:
    reply = Command.request(4242).not_supported()
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "4242" in (reply.remark or "")


def test_text_names_the_missing_field() -> None:
    request = Command.request(1, {"topic": "T", "empty": ""})
    assert request.text("topic") == "T"
    assert request.text("empty") == ""
    assert request.text("group", "none") == "none"
    with pytest.raises(RequestError, match="group") as caught:
        request.text("group")
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(("value", "number"), [("0", 0), ("-1", -1), (str(2**63 - 1), 2**63 - 1), ("", 7)])
def test_integer_reads_numbers(value: str, number: int) -> None:
    assert Command.request(1, {"n": value}).integer("n", 7) == number


@pytest.mark.parametrize("value", ["x", "1.5", str(2**63), str(-(2**63) - 1), "9" * 5_000, "0x10"])
def test_integer_refuses_what_is_no_number_or_out_of_range(value: str) -> None:
    with pytest.raises(RequestError, match="field n"):
        Command.request(1, {"n": value}).integer("n")


def test_integer_holds_its_limits() -> None:
    request = Command.request(1, {"n": "5", "empty": ""})
    assert request.integer("n", minimum=5, maximum=5) == 5
    with pytest.raises(RequestError, match=r"6\.\.9"):
        request.integer("n", minimum=6, maximum=9)
    with pytest.raises(RequestError, match=r"1\.\.4"):
        request.integer("n", minimum=1, maximum=4)
    with pytest.raises(RequestError, match="empty is missing"):
        request.integer("empty")


def test_boolean_reads_every_clients_way() -> None:
    request = Command.request(1, {"a": "true", "b": "1", "c": "false", "d": "0", "e": "", "f": "maybe"})
    assert [request.boolean(name) for name in "abcde"] == [True, True, False, False, False]
    assert request.boolean("absent", default=True)
    with pytest.raises(RequestError, match="field f"):
        request.boolean("f")


def test_body_bytes_joins_every_kind_of_body() -> None:
    assert Command.request(1, body=b"ab").body_bytes() == b"ab"
    assert Command.request(1, body=memoryview(b"xaby")[1:3]).body_bytes() == b"ab"
    assert Command.request(1, body=[b"a", memoryview(b"b")]).body_bytes() == b"ab"


def test_names_are_for_people_and_bounded() -> None:
    assert request_name(310) == "SEND_MESSAGE_V2"
    assert request_name(123_456) == "UNKNOWN"
