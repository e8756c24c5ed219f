from typing_extensions import Buffer

def gather_queued(
    records: Buffer, pushes: Buffer, start: int, bytes_max: int
) -> tuple[bytearray, bytearray, int]: ...
