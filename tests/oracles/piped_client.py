"""A foreign client in a process of its own, told what to do by JSON lines and answering by JSON lines.

Its script writes every line behind `MARK`, because its library may write to stdout as well. Lines have a
"kind": "ready" once, "done" or "failed" per call, and whatever else the script has to say.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from eventually import eventually
from piped_script import MARK


class ClientFailedError(Exception):
    """The client's library refused a call; the text is its own."""


class PipedClient:
    """One such process; `with` starts it and ends it."""

    def __init__(self, command: Sequence[str], *, directory: Path, environment: Mapping[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log = (directory / "client.log").open("ab")
        self._lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._is_ended = False
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            # For `piped_script`.
            env={**environment, "PYTHONPATH": str(Path(__file__).parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="piped-client", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self._take(("ready",), within_s=30)
        return self

    def __exit__(self, *_: object) -> None:
        """End it: it has a few seconds to leave by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._log.close()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def call(self, do: str, *, within_s: float = 30, **words: Any) -> Any:
        """Have the script do something; returns its value, raises ClientFailedError with its error."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self._process.stdin.flush()
        answer = self._take(("done", "failed"), within_s=within_s)
        if answer["kind"] == "failed":
            raise ClientFailedError(answer["error"])
        return answer.get("value")

    def said(self, kind: str, **words: Any) -> list[dict[str, Any]]:
        """All lines of a kind so far that have these words."""
        with self._changed:
            return [
                line
                for line in self._lines
                if line["kind"] == kind and all(line.get(name) == value for name, value in words.items())
            ]

    def wait_for(self, kind: str, count: int, *, within_s: float = 50, **words: Any) -> list[dict[str, Any]]:
        """`said`, once there are at least `count` lines.

        A consumer that was not told of another's leaving looks at its queues anew every 20 s.
        """

        def enough() -> list[dict[str, Any]] | None:
            lines = self.said(kind, **words)
            return lines if len(lines) >= count else None

        try:
            found = eventually(enough, f"{count} lines of kind {kind}", within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; has {self.said(kind, **words)}") from None
        assert found is not None
        return found

    def _take(self, kinds: Sequence[str], *, within_s: float) -> dict[str, Any]:
        """Remove and return the first line of one of these kinds."""

        def first() -> dict[str, Any] | None:
            with self._changed:
                for place, line in enumerate(self._lines):
                    if line["kind"] in kinds:
                        return self._lines.pop(place)
                return None

        with self._changed:
            self._changed.wait_for(
                lambda: self._is_ended or any(line["kind"] in kinds for line in self._lines), within_s
            )
        line = first()
        assert line is not None, f"no answer; ended with {self._process.poll()}: see {self._log.name}"
        return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            _, mark, words = text.partition(MARK)
            if mark:
                with self._changed:
                    self._lines.append(json.loads(words))
                    self._changed.notify_all()
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
