"""Lists in answers: the fields of their items that are asked for, and where the next page is."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin
from urllib.parse import quote, unquote_plus

import msgspec
from msgspec import Meta

from iotmq.console.api.problems import invalid
from iotmq.event_loop import Pace

ITEMS_AT_ONCE: Final = 20
_FIELDS: Final = "fields"
# Those that stand for themselves, and `%`, by which the others stand there already.
_QUERY_CHARACTERS: Final = "%=&+/?:@!$'()*,;"
_Fields = Annotated[
    str,
    Meta(max_length=1024, description="Only these fields of each item, with commas between; empty: all."),
]


@cache
def of_list(arguments: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the arguments of a list, among them the fields that items are to have."""
    made: type[msgspec.Struct] = msgspec.defstruct(
        f"{arguments.__name__}OfList",
        [(_FIELDS, _Fields, "")],
        bases=(arguments,),
        namespace={"__doc__": arguments.__doc__},
        module=arguments.__module__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return made


def chosen_fields(arguments: msgspec.Struct, answer: type) -> frozenset[str] | None:
    """Return the fields that are asked for; None for all. ProblemError for one that items do not have."""
    text = getattr(arguments, _FIELDS, "")
    if not text:
        return None
    wanted = frozenset(text.split(","))
    there = fields_of_items(answer)
    unknown = sorted(wanted - there)
    if unknown:
        detail = f"there is no field {unknown[0][:100]!r}: there are {', '.join(sorted(there))}"
        raise invalid(detail, parameter=_FIELDS)
    return wanted


async def in_pieces(answer: Any, wanted: frozenset[str] | None) -> Any:
    """Return the answer with its items encoded already, by and by: those of a long list take a while.

    They have the fields that are wanted; None for all.
    """
    items = getattr(answer, "items", ())
    if not isinstance(items, list) or (wanted is None and len(items) <= ITEMS_AT_ONCE):
        return answer
    pace = Pace()
    encoded: list[msgspec.Raw] = []
    for each in items:
        await pace.step()
        if wanted is not None:
            fields = msgspec.to_builtins(each)
            each = {name: fields[name] for name in fields if name in wanted}
        encoded.append(msgspec.Raw(msgspec.json.encode(each)))
    return msgspec.structs.replace(answer, items=encoded)


def link_to_next(answer: object, query: str) -> tuple[tuple[str, str], ...]:
    """Return the header that leads to the next page (RFC 8288), where there is one."""
    cursor = getattr(answer, "next", None)
    if not cursor:
        return ()
    others = [each for each in query.split("&") if each and unquote_plus(each.partition("=")[0]) != "cursor"]
    target = quote("&".join([*others, f"cursor={cursor}"]), safe=_QUERY_CHARACTERS)
    return (("Link", f'<?{target}>; rel="next"'),)


@cache
def fields_of_items(answer: type) -> frozenset[str]:
    """Return the names of the fields of a list's items; none for what is no list."""
    if not issubclass(answer, msgspec.Struct):
        return frozenset()
    lists = [field.type for field in msgspec.structs.fields(answer) if field.encode_name == "items"]
    items = [each for kind in lists if get_origin(kind) is list for each in get_args(kind)]
    structs = [each for each in items if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return frozenset(field.encode_name for struct in structs for field in msgspec.structs.fields(struct))
