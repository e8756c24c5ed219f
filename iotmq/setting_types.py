"""Name the types that settings of several roles share, with their bounds.

Their `description` is for settings that have no text of their own below their field.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq import limits

TOPIC_NAME_PATTERN: Final = r"^[%|a-zA-Z0-9_-]+$"

AddressText = Annotated[str, Meta(pattern=r"^(\[[^\]]+\]|[^:\s]+):\d{1,5}$")]
AccountKey = Annotated[str, Meta(max_length=limits.ACL_KEY_BYTES_MAX)]
SecretText = Annotated[str, Meta(extra={"is_secret": True})]
"""A secret: in the settings it may be text, or say where it is (iotmq.secret_text)."""
AccountSecret = Annotated[AccountKey, Meta(extra={"is_secret": True})]
FileName = Annotated[str, Meta(max_length=limits.FILE_NAME_BYTES_MAX)]
ListenHost = Annotated[
    str, Meta(min_length=1, description="Address to listen on; loopback unless told otherwise.")
]
Port = Annotated[int, Meta(ge=0, le=65_535)]
NativePort = Annotated[Port, Meta(description="TCP port of the native protocol; 0 takes a free one.")]
TopicName = Annotated[str, Meta(pattern=TOPIC_NAME_PATTERN, max_length=limits.TOPIC_BYTES_MAX)]


@cache
def texts_below_fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Read from the source of a struct, and of those it extends, what stands as a string below each field."""
    texts: dict[str, str] = {}
    for base in struct.__bases__:
        if base is not msgspec.Struct:
            texts |= texts_below_fields(base)
    try:
        source = inspect.getsource(struct)
    except OSError:
        # Made by a program: its own fields have their texts in their types.
        return texts
    (found,) = ast.parse(source).body
    assert isinstance(found, ast.ClassDef)
    for field, below in pairwise(found.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts
