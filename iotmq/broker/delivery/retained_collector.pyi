from collections.abc import Callable

from typing_extensions import Buffer

def collect_retained(view: Buffer, on_retained: Callable[[bytes, bytes | None], None]) -> None: ...
