"""Choose the broker to ask for each exclusive subscription of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from iotmq.front_port.session_answers import gather
from iotmq.front_port.session_link import SessionLink
from iotmq.ports.sessions import ExclusiveClaim, Refused
from iotmq.remoting.codes import ResponseCode


def claim_exclusive(
    request: ExclusiveClaim,
    parts: Mapping[SessionLink, int],
    chosen_for: Callable[[str], SessionLink | None],
    done: Callable[[list[Refused | None]], None],
) -> None:
    """Ask each filter's broker; `parts` are the session's epochs at the brokers that have it."""
    outcomes: list[Refused | None] = [_AWAY] * len(request.filters)
    places: dict[SessionLink, list[int]] = {}
    for place, topic_filter in enumerate(request.filters):
        link = chosen_for(topic_filter)
        if link is not None and link in parts:
            places.setdefault(link, []).append(place)

    def answered(answers: list[list[Refused | None] | Refused]) -> None:
        for asked, answer in zip(places.values(), answers, strict=True):
            for number, place in enumerate(asked):
                outcomes[place] = answer if isinstance(answer, Refused) else answer[number]
        done(outcomes)

    gather(
        [
            partial(
                link.claim_exclusive,
                replace(request, epoch=parts[link], filters=[request.filters[place] for place in asked]),
            )
            for link, asked in places.items()
        ],
        answered,
    )


_AWAY: Final = Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker that decides about the filter is away")
