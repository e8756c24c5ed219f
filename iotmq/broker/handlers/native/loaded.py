"""Go on with requests that waited for the disk."""

from __future__ import annotations

from collections.abc import Callable

from iotmq.errors import RequestError
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


def answer_loaded(
    connection: ServerConnection,
    request: Command,
    error: OSError | None,
    look: Callable[[], Command | None],
) -> None:
    """Send what `look` answers, now that the pages are read, or `error`. `look` may put it off once more."""
    if connection.is_closed or request.is_oneway:
        return
    if error is not None:
        response: Command | None = request.reply(
            ResponseCode.SYSTEM_ERROR, remark=f"the disk does not give what is stored there: {error}"
        )
    else:
        try:
            response = look()
        except RequestError as refusal:
            response = request.reply(refusal.code, remark=str(refusal))
    if response is not None:
        connection.reply(response)
