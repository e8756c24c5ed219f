"""The charts and pages of load tests."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.reports.charts import Line, chart, short_number
from loadtest.reports.page import report_page

VALUES = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(0, 1e15)), min_size=1, max_size=50
).map(sorted)  # fmt: skip


def svg_of(figure: str) -> ElementTree.Element:
    found = re.search(r"<svg.*?</svg>", figure)
    assert found is not None
    return ElementTree.fromstring(found[0])


@given(VALUES, st.booleans())
def test_every_point_is_inside_the_chart(points: list[tuple[float, float]], is_logarithmic: bool) -> None:
    svg = svg_of(chart("a", "b", [Line("l", points)], is_logarithmic=is_logarithmic))
    line = svg.find("polyline")
    assert line is not None
    places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
    assert len(places) == len(points)
    assert all(64 <= x <= 544 and 30 <= y <= 210 for x, y in places)


def test_values_that_rise_are_drawn_upward() -> None:
    svg = svg_of(chart("a", "b", [Line("l", [(0.0, 1.0), (1.0, 2.0), (2.0, 4.0)])]))
    line = svg.find("polyline")
    assert line is not None
    heights = [float(place.split(",")[1]) for place in line.attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)


def test_a_chart_without_a_point_is_none() -> None:
    assert chart("a", "b", []) == chart("a", "b", [Line("l", [])]) == ""


def test_names_cannot_break_out_of_a_chart() -> None:
    text = chart("<b>", '"u"', [Line("<script>", [(0.0, 1.0)])])
    assert "<script>" not in text
    assert svg_of(text).attrib["aria-label"] == "<b>"


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.25, "0.25"), (999, "999"), (1_500, "1.5k"), (2e6, "2M"), (3e9, "3G")]
)
def test_numbers_beside_an_axis_are_short(value: float, shown: str) -> None:
    assert short_number(value) == shown


def result_of(name: str, rate: int, verdict: list[str] | None = None) -> dict[str, Any]:
    times = dict.fromkeys(
        ("mean_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "p9999_ns", "max_ns"), 1000000.0
    )
    ticks = [
        {
            "at_s": float(i),
            "phase": "measure",
            "counters": {"published": rate * i, "ready": 5, "opened": 5},
            "latencies": {"delivery": times | {"count": 10}},
            "load_cpu_s": 0.5 * i,
            "server_cpu_s": 0.9 * i,
            "server_memory_bytes": 50 * 2**20,
        }
        for i in range(1, 6)
    ]
    return {
        "format": "iotmq-loadtest-1", "name": name, "began_at": "2026-01-01",
        "plan": {"host": "h", "port": 1},
        "connect": {"ready": 5, "wanted": 6, "per_s": 100.0}, "rates": {"published_per_s": float(rate)},
        "counters": {"published": 5 * rate}, "latencies": {"delivery": times | {"count": 50}},
        "ticks": ticks,
        "ends": {"failed": {"ECONNREFUSED": 1}, "lost": {}, "refused": {}}, "verdict": verdict or [],
    }  # fmt: skip


class Balanced(HTMLParser):
    """Fails for tags that are not closed in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("count", [1, 2])
def test_a_page_has_everything_in_it(count: int) -> None:
    page = report_page(
        [result_of("first", 100), result_of("<second>", 150, ["5 deliveries are missing"])][:count]
    )
    balanced = Balanced()
    balanced.feed(page)
    assert balanced.open == []
    assert balanced.addresses == []
    assert "http" not in page.replace("https", "http").replace("html", "")
    assert page.count("<svg") == 6
    assert "ECONNREFUSED" in page
    assert "5 of 6" in page
    assert "nothing was lost" in page
    if count == 2:
        assert "<second>" not in page
        assert "5 deliveries are missing" in page
        assert "+50.0 %" in page
        assert "stroke-dasharray" in page


def test_rates_are_what_counters_rise_by() -> None:
    page = report_page([result_of("first", 100)])
    svg = svg_of(page[page.index("<figure>") :])
    line = svg.find("polyline")
    assert line is not None
    heights = {place.split(",")[1] for place in line.attrib["points"].split()}
    # 100 a second all the time is the top of the scale.
    assert heights == {"30.0"}


def test_a_last_tick_that_came_at_once_makes_no_peak() -> None:
    result = result_of("first", 100)
    last = result["ticks"][-1]
    counters = last["counters"] | {"published": 550}
    result["ticks"].append(last | {"at_s": last["at_s"] + 0.001, "counters": counters})
    page = report_page([result])
    line = svg_of(page[page.index("<figure>") :]).find("polyline")
    assert line is not None
    assert {place.split(",")[1] for place in line.attrib["points"].split()} == {"30.0"}


def test_what_is_not_known_and_notes_are_shown() -> None:
    page = report_page([result_of("first", 100) | {"missing": None, "notes": ["<gaps> were not looked for"]}])
    assert "<td>missing</td><td>not known</td>" in page
    assert "&lt;gaps&gt; were not looked for" in page
