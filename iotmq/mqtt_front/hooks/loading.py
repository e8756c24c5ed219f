"""Find the classes that `mqtt.hooks` names."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from iotmq.errors import ConfigError
from iotmq.hooks import Hooks


def load_hooks(names: Sequence[str]) -> list[tuple[str, Hooks]]:
    """Make an object of each class MODULE:CLASS. ConfigError when one cannot be made, which says why."""
    found = []
    for place, name in enumerate(names):
        where = f"mqtt.hooks[{place}] = {name!r}"
        module_name, _, class_name = name.partition(":")
        try:
            made = getattr(importlib.import_module(module_name), class_name)()
        except Exception as error:
            # Whatever a user's program raises.
            raise ConfigError(f"{where}: {type(error).__name__}: {error}") from error
        if not isinstance(made, Hooks):
            raise ConfigError(f"{where}: not a class derived from iotmq.hooks.Hooks")
        found.append((name, made))
    return found


def overrides(hooks: Hooks, method: str) -> bool:
    """Return whether a program has a method of its own."""
    return getattr(type(hooks), method) is not getattr(Hooks, method)
