from collections.abc import Callable

def collect_pops(
    view: memoryview,
    on_changes: Callable[[bytes], object],
    on_burial: Callable[[bytes, bytes], object],
) -> None: ...
