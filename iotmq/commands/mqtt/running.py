"""Run a command on an event loop until its end, a time limit or a signal, with texts and exit codes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from iotmq.errors import ClientError, ConfigError, ConnectionClosedError, IotmqError
from iotmq.mqtt_client.errors import ServerRefusedError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
# What mosquitto_sub answers when its time is over.
EXIT_TIMED_OUT: Final = 27

# What to change about a refusal, by its reason code.
_HINTS: Final = {
    0x84: "another version: -V 311",
    0x85: "another client id: -i",
    0x86: "the account: -u and -P",
    0x87: "the account: -u and -P",
    0x8A: "the account or client id: -u, -i",
    0x8C: "the way to authenticate: --auth-method",
    0x8E: "another client has this id: -i",
    0x90: "the topic: -t",
    0x9A: "without -r, which the server does not have",
    0x9B: "a lower QoS: -q",
}


def run(work: Coroutine[Any, Any, int], *, timeout_s: float | None, is_quiet: bool) -> int:
    """Return the exit code of `work`, which SIGTERM and SIGINT cancel."""
    import uvloop

    interrupted = False

    async def watched() -> int:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        async with asyncio.timeout(timeout_s):
            return await task

    say = speaker(is_quiet=is_quiet)
    try:
        return uvloop.run(watched())
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
    except TimeoutError:
        return EXIT_TIMED_OUT
    except ConfigError:
        raise
    except IotmqError as error:
        say(f"{error}{_hint(error)}")
        return EXIT_FAILED


def speaker(*, is_quiet: bool) -> Callable[[str], None]:
    """Writes a line to standard error."""

    def say(text: str) -> None:
        if not is_quiet:
            print(f"iotmq: {text}", file=sys.stderr, flush=True)

    return say


def _hint(error: IotmqError) -> str:
    if isinstance(error, ServerRefusedError):
        hint = _HINTS.get(error.code)
    elif isinstance(error, ClientError):
        hint = (
            "whom to trust: --cafile, or nobody's word: --insecure" if "not trusted" in str(error) else None
        )
    else:
        hint = "is a server there? -h and -p name it" if isinstance(error, ConnectionClosedError) else None
    return f" ({hint})" if hint is not None else ""
