"""Parse the words of a command; wrong ones are answered with the usage of the command they were given to."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from iotmq.spelling import did_you_mean

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class CommandParser(argparse.ArgumentParser):
    """Parse one command, or one action of it; `add_subparsers` makes its parts parsers of this kind."""

    def __init__(
        self, *names: Any, fill: Callable[[argparse.ArgumentParser], None] | None = None, **options: Any
    ) -> None:
        """`fill` adds the options and actions, once they are needed: one command needs those of no other."""
        super().__init__(*names, **options)
        self._fill = fill

    def parse_known_args(  # type: ignore[override]  # its overloads are for other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is left over; argparse hands it up, and the usage printed would be that of `iotmq`."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options, rest

    def error(self, message: str) -> NoReturn:
        """Print usage, message and where to read more, and exit with 2."""
        hint = f"see {self.prog} --help"
        if self.get_default("assignments") is not None:
            hint += "; settings are given with --set SECTION.KEY=VALUE"
        super().error(f"{message}\n{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), {str(word): str(word) for word in action.choices or ()})
            raise
