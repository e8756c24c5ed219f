from typing import Any

from typing_extensions import Buffer

def decode_publish_properties(data: Buffer) -> tuple[int, dict[str, Any]]: ...
