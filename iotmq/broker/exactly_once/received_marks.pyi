from collections.abc import Callable

from typing_extensions import Buffer

def marked_elements(elements: Buffer) -> list[tuple[bytes, int, int, int]]: ...
def collect_received(
    view: Buffer, on_received: Callable[[bytes, int, int], None], on_released: Callable[[bytes], None]
) -> None: ...
