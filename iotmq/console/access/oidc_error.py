"""Why a sign-in by an OpenID provider has failed."""

from __future__ import annotations

from typing import Literal, TypeAlias

from iotmq.errors import IotmqError

Word: TypeAlias = Literal["unavailable", "refused", "no-role"]


class OidcError(IotmqError):
    """A sign-in has failed; `word` is for the page, and the text for the operator."""

    def __init__(self, word: Word, text: str) -> None:
        super().__init__(text)
        self.word = word
