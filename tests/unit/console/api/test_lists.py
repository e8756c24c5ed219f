"""Lists in answers: fields of items, and the link to the next page."""

from __future__ import annotations

import msgspec
import pytest

from iotmq.console.api.lists import ITEMS_AT_ONCE, chosen_fields, in_pieces, link_to_next, of_list
from iotmq.console.api.problems import ProblemError
from iotmq.console.api.route import NoArguments, Route
from iotmq.console.api.routes.table import ROUTES


class Item(msgspec.Struct, omit_defaults=True):
    name: str
    size: int
    note: str = ""


class Items(msgspec.Struct):
    items: list[Item]
    next: str | None = None


ARGUMENTS = of_list(NoArguments)


async def test_items_have_the_fields_that_are_asked_for() -> None:
    answer = Items([Item("a", 1), Item("b", 2, "n")], "c")
    wanted = chosen_fields(ARGUMENTS(fields="name,note"), Items)
    assert wanted is not None
    shown = msgspec.json.encode(await in_pieces(answer, wanted))
    assert msgspec.json.decode(shown) == {"items": [{"name": "a"}, {"name": "b", "note": "n"}], "next": "c"}
    assert chosen_fields(ARGUMENTS(), Items) is None


@pytest.mark.parametrize("count", [0, ITEMS_AT_ONCE, ITEMS_AT_ONCE + 1])
async def test_long_lists_are_encoded_in_pieces_and_are_the_same(count: int) -> None:
    answer = Items([Item(f"ü{number}", number) for number in range(count)], "c")
    shown = await in_pieces(answer, None)
    assert (shown is answer) == (count <= ITEMS_AT_ONCE)
    assert msgspec.json.encode(shown) == msgspec.json.encode(answer)
    assert await in_pieces(Item("a", 1), None) == Item("a", 1)


@pytest.mark.parametrize("text", ["nam", "name,", ",", "name,,size", "name size"])
def test_a_field_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="there are name, note, size") as raised:
        chosen_fields(ARGUMENTS(fields=text), Items)
    assert [each.parameter for each in raised.value.errors] == ["fields"]


def test_the_link_keeps_what_was_asked() -> None:
    page = Items([], "Y3Vyc29y")
    assert link_to_next(page, "a=1&cursor=old&b=%C3%BC&c=") == (
        ("Link", '<?a=1&b=%C3%BC&c=&cursor=Y3Vyc29y>; rel="next"'),
    )
    assert link_to_next(page, 'curs%6Fr=old&a=">;\n') == (
        ("Link", '<?a=%22%3E;%0A&cursor=Y3Vyc29y>; rel="next"'),
    )
    assert link_to_next(Items([]), "a=1") == ()
    assert link_to_next(Item("a", 1), "") == ()


@pytest.mark.parametrize(
    "route", [each for each in ROUTES if each.method == "GET"], ids=lambda each: each.name
)
def test_every_list_can_be_asked_for_fields(route: Route) -> None:
    has_fields = "fields" in {field.name for field in msgspec.structs.fields(route.arguments)}
    assert has_fields == ("items" in getattr(route.answer, "__struct_fields__", ()))
