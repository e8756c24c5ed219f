"""One command of the native protocol: a request or a response, whole and decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from iotmq.errors import RequestError
from iotmq.remoting.codes import Flag, LanguageCode, ResponseCode, Serialize, Version

Body: TypeAlias = bytes | memoryview | list[bytes | memoryview]

_TRUE = frozenset({"true", "1", "True", "TRUE"})
_FALSE = frozenset({"false", "0", "False", "FALSE", ""})


class Command(msgspec.Struct, eq=False):
    """A request or a response.

    `body` of a received command is `bytes`, or a read-only `memoryview` over the `bytes` object that was
    received. It stays valid for as long as somebody holds it and never changes, but it keeps the whole
    received chunk (up to 256 KiB under uvloop) alive: copy it (`bytes(body)`) before storing it for long.
    `body` of a command to be sent may also be a list of buffers, which are written one after the other
    without being joined; they must not change until they have been written.
    """

    code: int
    opaque: int
    flag: int
    language: int
    version: int
    remark: str | None
    ext: dict[str, str]
    body: Body
    serialize: int

    @classmethod
    def request(
        cls,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: Body = b"",
        oneway: bool = False,
        *,
        serialize: int = Serialize.JSON,
    ) -> Command:
        """Make a request; the connection that sends it gives it its `opaque`."""
        return cls(
            code,
            0,
            Flag.ONEWAY if oneway else 0,
            LanguageCode.PYTHON,
            Version.OURS,
            None,
            dict(ext) if ext else {},
            body,
            serialize,
        )

    def reply(
        self,
        code: int,
        *,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: Body = b"",
    ) -> Command:
        """Make the response to this request: same `opaque`, same kind of header.

        The response to a oneway request keeps that flag, by which connections know not to send it.
        """
        return Command(
            code,
            self.opaque,
            Flag.RESPONSE | (self.flag & Flag.ONEWAY),
            LanguageCode.PYTHON,
            Version.OURS,
            remark,
            {} if ext is None else ext,
            body,
            self.serialize,
        )

    def not_supported(self) -> Command:
        """Make the response to an unknown request code."""
        return self.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"request code {self.code} is not supported"
        )

    @property
    def is_response(self) -> bool:
        return self.flag & Flag.RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Return whether no answer may be sent."""
        return self.flag & Flag.ONEWAY != 0

    def text(self, name: str, default: str | None = None) -> str:
        """Return the field `name`; RequestError when it is absent and has no default."""
        value = self.ext.get(name, default)
        if value is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the required field {name} is missing")
        return value

    def integer(
        self, name: str, default: int | None = None, *, minimum: int = -(2**63), maximum: int = 2**63 - 1
    ) -> int:
        """Return the field `name` as a number in `minimum..maximum`; an empty field counts as absent."""
        value = self.ext.get(name)
        if not value:
            if default is None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"the required field {name} is missing")
            return default
        # More digits than 64 bits can hold are refused before int() spends time on them.
        try:
            number = int(value) if len(value) <= 20 else maximum + 1
        except ValueError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the field {name} is not a number: {value[:40]!r}"
            ) from None
        if not minimum <= number <= maximum:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the field {name} must be in {minimum}..{maximum}: {value[:40]}"
            )
        return number

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return the field `name` as true or false; `0`, `1` and the empty text are understood."""
        value = self.ext.get(name)
        if value is None:
            return default
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the field {name} is not true or false: {value[:40]!r}"
        )

    def body_bytes(self) -> bytes:
        """Return the body as one `bytes` object; copies unless it already is one."""
        body = self.body
        if isinstance(body, bytes):
            return body
        if isinstance(body, memoryview):
            return body.tobytes()
        return b"".join(body)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return f"<{kind} code={self.code} opaque={self.opaque} ext={self.ext!r} remark={self.remark!r}>"
