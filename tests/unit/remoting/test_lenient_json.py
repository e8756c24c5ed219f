"""JSON with fastjson's map keys becomes standard JSON; everything else stays right or becomes code 1."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_turns import turn_s_max

from iotmq.errors import RequestError
from iotmq.limits import LENIENT_JSON_BYTES_MAX, LENIENT_REQUEST_BYTES_MAX
from iotmq.remoting.lenient_json import (
    decode,
    decode_request,
    encode,
    encode_ascii,
    encode_object_map,
    standard_json,
)

QUEUE = '{"brokerName":"b","queueId":0,"topic":"T"}'

CASES: dict[str, tuple[str, object]] = {
    "standard": ('{"a":[1,{"b":null}]}', {"a": [1, {"b": None}]}),
    "trailing newline": ('{"a":1}\n', {"a": 1}),
    "integer keys": ('{"offsetTable":{"t@g":{0:5,1:6}}}', {"offsetTable": {"t@g": {"0": 5, "1": 6}}}),
    "negative key and spaces": ("{ -1 : true , 2\n: [ ] }", {"-1": True, "2": []}),
    "quoted integer keys": ('{"0":5}', {"0": 5}),
    "object keys": ("{" + QUEUE + ":{" + QUEUE + ":1}}", {QUEUE: {QUEUE: 1}}),
    "quoted object keys": (json.dumps({QUEUE: 7}), {QUEUE: 7}),
    "object keys with brackets in their text": ('{{"a":"}{\\"]"}:1}', {'{"a":"}{\\"]"}': 1}),
    "list keys": ("{[1,{}]:2}", {"[1,{}]": 2}),
    "name keys": ('{$ref:"$.a",b_c:1}', {"$ref": "$.a", "b_c": 1}),
    "text that looks like keys": ('{"a":"{0:1}",1:",2:"}', {"a": "{0:1}", "1": ",2:"}),
    "objects in lists": ("[{1:2},{3:4}]", [{"1": 2}, {"3": 4}]),
    "not ASCII": ('{"é":"告",1:"😀"}', {"é": "告", "1": "😀"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_body_is_read(name: str) -> None:
    text, value = CASES[name]
    assert decode(text.encode(), object) == value
    assert json.loads(standard_json(text.encode())) == value


def test_a_typed_body_is_read() -> None:
    class Table(msgspec.Struct):
        offsets: dict[int, int]
        flag: bool = False

    assert decode(b'{offsets:{0:"5",1:6},"flag":"true","other":{}}', Table) == Table({0: 5, 1: 6}, True)
    assert decode([b'{"offsets"', memoryview(b":{}}")], Table) == Table({})
    assert decode(memoryview(b'{"offsets":{3:4}}'), Table) == Table({3: 4})


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{{", b'{"', b'{"a":', b"\xff", b'{"\xff":1}', b"{\xff:1}", b"nonsense", b"[" * 100_000,
     b"{a:" * 100_000, b"{{}:" * 100_000, b"{]}", b"{1:2}}", b"[]"],
)  # fmt: skip
def test_what_is_no_such_json_is_code_1(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        decode(body, dict[str, int])
    assert caught.value.code == 1


def test_only_so_much_is_put_right() -> None:
    padding = b" " * (LENIENT_JSON_BYTES_MAX - 5)
    assert decode(b"{1:2}" + padding, object) == {"1": 2}
    with pytest.raises(RequestError, match="past the maximum"):
        decode(b"{1:2} " + padding, object)
    assert decode(b'{"1":2} ' + padding, object) == {"1": 2}


def test_of_a_request_less_is_put_right() -> None:
    padding = b" " * (LENIENT_REQUEST_BYTES_MAX - 5)
    assert decode_request(b"{1:2}" + padding, object) == {"1": 2}
    with pytest.raises(RequestError, match="past the maximum"):
        decode_request(b"{1:2} " + padding, object)
    assert decode_request(b'{"1":2} ' + padding, object) == {"1": 2}


@pytest.mark.parametrize("piece", [b"{", b",", b"{}:0,", b"{a:", b'"",'])
def test_no_request_takes_long_to_be_put_right(piece: bytes) -> None:
    body = b"{" + piece * ((LENIENT_REQUEST_BYTES_MAX - 1) // len(piece))
    began_s = time.thread_time()
    with pytest.raises(RequestError):
        decode_request(body, dict[str, int])
    assert time.thread_time() - began_s < turn_s_max()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=15,
    )
)
def test_standard_json_is_left_as_it_is(value: object) -> None:
    text = json.dumps(value)
    assert json.loads(standard_json(text.encode())) == value


@given(st.binary(max_size=40) | st.text('{}[]":,\\01a ', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        decode(body, dict[str, object])
    except RequestError:
        pass


def test_integer_keys_are_written_quoted() -> None:
    assert encode({"brokerAddrs": {0: "10.0.0.1:10911"}}) == b'{"brokerAddrs":{"0":"10.0.0.1:10911"}}'


def test_ascii_output_escapes_and_sorts() -> None:
    text = encode_ascii({"b": "é告😀", "a": {2: 1}})
    assert text == b'{"a":{"2":1},"b":"\\u00e9\\u544a\\ud83d\\ude00"}'
    assert json.loads(text) == {"a": {"2": 1}, "b": "é告😀"}


def test_maps_keyed_by_objects_are_written_raw_and_read_back() -> None:
    text = encode_object_map([(QUEUE.encode(), b"5"), (b'{"a":1}', b"{}")])
    assert text == b"{" + QUEUE.encode() + b':5,{"a":1}:{}}'
    assert decode(text, dict[str, object]) == {QUEUE: 5, '{"a":1}': {}}
