"""Ask and tell users' programs, with a time limit, and count what comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from iotmq import limits
from iotmq.hooks import DECIDING, TOLD, Deny, Hooks, Message
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt_front.hooks.hook_thread import HookCall, HookThread
from iotmq.mqtt_front.hooks.loading import load_hooks, overrides

_log: Final = logging.getLogger("iotmq.mqtt")

_LOG_PAUSE_S: Final = 1.0
_START_TIMEOUT_S: Final = 10.0
# A program that decides about deliveries has the loop so long; past it so often, it is asked no more.
_DELIVER_S: Final = 0.005
_DELIVER_LATE_MAX: Final = 100
# What a message takes beside its topic and payload.
_EACH_BYTES: Final = 512


class _Program(NamedTuple):
    name: str
    hooks: Hooks


Answered = Callable[[Sequence[Deny | None]], None]


class _Question:
    """Something that programs are asked, one after the other; the first that says no decides."""

    __slots__ = (
        "answered", "arguments", "count", "give_up", "is_over", "left", "method", "timer", "verdicts",
    )  # fmt: skip

    def __init__(
        self, method: str, arguments: tuple[Any, ...], count: int, left: list[_Program], answered: Answered
    ) -> None:
        self.method = method
        self.arguments = arguments
        self.count = count
        """How many answers there are: one, or that of a list."""
        self.left = left
        self.answered = answered
        self.verdicts: list[Deny | None] = [None] * count
        self.is_over = False
        self.timer: asyncio.TimerHandle | None = None
        self.give_up: Callable[[], None] | None = None


class HookCalls:
    """The programs of one front end. With none of a method, `has(method)` is False and nothing is called."""

    def __init__(self, names: Sequence[str], loop: asyncio.AbstractEventLoop, *, timeout_s: float) -> None:
        """ConfigError for what cannot be loaded."""
        self._loop = loop
        self._timeout_s = timeout_s
        self._programs = [_Program(name, hooks) for name, hooks in load_hooks(names)]
        self._of_method = {
            method: [program for program in self._programs if overrides(program.hooks, method)]
            for method in (*DECIDING, *TOLD)
        }
        self._thread = HookThread(loop) if self._programs else None
        self._questions: set[_Question] = set()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._failed: Counter[tuple[str, str]] = Counter()
        self._late: Counter[tuple[str, str]] = Counter()
        self._denied: Counter[tuple[str, str]] = Counter()
        self._untold: Counter[str] = Counter()
        self._deliver_late: Counter[str] = Counter()
        self._logged_s: dict[tuple[str, str], float] = {}

    def has(self, method: str) -> bool:
        """Return whether any program has the method."""
        return bool(self._of_method[method])

    async def start(self) -> None:
        """Start the programs. What one raises, or TimeoutError, is the caller's."""
        if self._thread is None:
            return
        self._thread.start()
        async with asyncio.timeout(_START_TIMEOUT_S):
            for program in self._programs:
                if overrides(program.hooks, "started"):
                    await self._wait_for(program.hooks.started)

    async def stop(self) -> None:
        if self._thread is None:
            return
        for question in tuple(self._questions):
            self._end(question, [Deny("the front end stops")] * question.count)
        try:
            async with asyncio.timeout(self._timeout_s):
                for program in self._programs:
                    if overrides(program.hooks, "stopped"):
                        await self._wait_for(program.hooks.stopped)
        except Exception as error:
            # It stops all the same.
            _log.warning("a hook failed at the end", extra={"detail": repr(error)})
        await self._thread.stop()

    async def _wait_for(self, method: Callable[..., Any]) -> None:
        assert self._thread is not None
        result: asyncio.Future[None] = self._loop.create_future()

        def done(_: Any, error: BaseException | None, seconds: float) -> None:
            if result.done():
                return
            if error is None:
                result.set_result(None)
            else:
                result.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        self._thread.call(HookCall(method, (), done))
        await result

    # Asking

    def ask(self, method: str, arguments: tuple[Any, ...], answered: Answered, *, count: int = 1) -> None:
        """Have programs decide. `answered` gets an answer for each of `count`, later, on the loop."""
        left = list(self._of_method[method])
        question = _Question(method, arguments, count, left, answered)
        if len(self._questions) >= limits.HOOK_QUESTIONS_MAX:
            self._late[left[0].name, method] += 1
            self._loop.call_soon(answered, [Deny("too much is asked")] * count)
            return
        self._questions.add(question)
        question.timer = self._loop.call_later(self._timeout_s, self._overdue, question)
        self._ask_next(question)

    def _ask_next(self, question: _Question) -> None:
        assert self._thread is not None
        program = question.left[0]
        method = getattr(program.hooks, question.method)

        def done(result: Any, error: BaseException | None, seconds: float) -> None:
            self._answered(question, program, result, error, seconds)

        question.give_up = self._thread.call(HookCall(method, question.arguments, done))

    def _answered(
        self, question: _Question, program: _Program, result: Any, error: BaseException | None, seconds: float
    ) -> None:
        key = (program.name, question.method)
        self._calls[key] += 1
        self._seconds[key] += seconds
        if question.is_over:
            return
        if error is None:
            answers = _answers_of(result, question.count)
            if answers is None:
                error = TypeError(f"it returned {result!r:.200}")
        if error is not None:
            self._note_failed(key, error)
            answers = [Deny("a hook failed")] * question.count
        assert answers is not None
        question.verdicts = [
            former if former is not None else new
            for former, new in zip(question.verdicts, answers, strict=True)
        ]
        self._denied[key] += sum(answer is not None for answer in answers)
        question.left.pop(0)
        if question.left and None in question.verdicts:
            self._ask_next(question)
        else:
            self._end(question, question.verdicts)

    def _overdue(self, question: _Question) -> None:
        key = (question.left[0].name, question.method)
        self._late[key] += 1
        self._tell_log(key, "a hook is late and denies", f"mqtt.hook_timeout_s is {self._timeout_s}")
        if question.give_up is not None:
            question.give_up()
        self._end(question, [Deny("a hook is late")] * question.count)

    def _end(self, question: _Question, verdicts: Sequence[Deny | None]) -> None:
        question.is_over = True
        self._questions.discard(question)
        if question.timer is not None:
            question.timer.cancel()
        question.answered(verdicts)

    # Telling

    def tell(self, method: str, *arguments: Any) -> None:
        """Tell programs what has happened; they hear of it in this order."""
        assert self._thread is not None
        size = sum(map(_size_of, arguments))
        for program in self._of_method[method]:
            key = (program.name, method)

            def done(_: Any, error: BaseException | None, seconds: float, key: tuple[str, str] = key) -> None:
                self._calls[key] += 1
                self._seconds[key] += seconds
                if error is not None:
                    self._note_failed(key, error)

            if not self._thread.tell(HookCall(getattr(program.hooks, method), arguments, done, size)):
                self._untold[method] += 1

    # On the loop

    def may_deliver(self, message: Message) -> bool:
        """Ask those that decide about deliveries, at once. One that is slow again and again denies all."""
        for program in self._of_method["before_deliver"]:
            key = (program.name, "before_deliver")
            if self._deliver_late[program.name] >= _DELIVER_LATE_MAX:
                self._denied[key] += 1
                return False
            began_s = time.perf_counter()
            answer: Deny | None = Deny()
            try:
                answer = program.hooks.before_deliver(message)
            except Exception as error:
                # Whatever a user's program raises.
                self._note_failed(key, error)
            seconds = time.perf_counter() - began_s
            self._calls[key] += 1
            self._seconds[key] += seconds
            if seconds > _DELIVER_S:
                self._note_late_delivery(key)
            if answer is not None:
                self._denied[key] += 1
                return False
        return True

    def _note_late_delivery(self, key: tuple[str, str]) -> None:
        self._late[key] += 1
        self._deliver_late[key[0]] += 1
        if self._deliver_late[key[0]] == _DELIVER_LATE_MAX:
            _log.error(
                "a hook was too slow too often: it is asked no more and denies every delivery",
                extra={"hook": key[0], "detail": f"{_DELIVER_LATE_MAX} calls above {_DELIVER_S} s"},
            )

    # Numbers

    def _note_failed(self, key: tuple[str, str], error: BaseException) -> None:
        self._failed[key] += 1
        self._tell_log(key, "a hook failed", repr(error), error)

    def _tell_log(
        self, key: tuple[str, str], text: str, detail: str, error: BaseException | None = None
    ) -> None:
        now_s = self._loop.time()
        last_s = self._logged_s.get(key)
        if last_s is not None and now_s - last_s < _LOG_PAUSE_S:
            return
        self._logged_s[key] = now_s
        _log.warning(text, exc_info=error, extra={"hook": key[0], "method": key[1], "detail": detail})

    def metrics(self) -> Iterable[Metric]:
        if self._thread is None:
            return
        tables: tuple[tuple[str, str, Mapping[tuple[str, str], float]], ...] = (
            ("calls_total", "Calls of hooks that have ended.", self._calls),
            ("seconds_total", "Seconds that calls of hooks took.", self._seconds),
            ("failed_total", "Calls of hooks that raised an error, or returned nonsense.", self._failed),
            ("late_total", "Calls of hooks that were not answered in time.", self._late),
            ("denied_total", "What hooks have denied.", self._denied),
        )
        for name, text, counts in tables:
            for (program, method), value in sorted(counts.items()):
                yield from samples(
                    (f"iotmq_mqtt_hook_{name}", text, value), labels=(("hook", program), ("method", method))
                )
        yield from samples_by(
            "method",
            "iotmq_mqtt_hook_untold_total",
            "Events that hooks were not told, because too many waited.",
            self._untold,
        )
        yield from samples(
            ("iotmq_mqtt_hook_questions", "Decisions of hooks that are waited for.", len(self._questions)),
            (
                "iotmq_mqtt_hook_events_waiting",
                "Events that hooks are still to be told.",
                self._thread.told_count,
            ),
        )


def _size_of(argument: Any) -> int:
    """Return about how many bytes an argument of an event takes: messages are what may be large."""
    if isinstance(argument, list):
        return sum(map(_size_of, argument))
    if isinstance(argument, Message):
        return _EACH_BYTES + len(argument.topic) + len(argument.payload)
    return _EACH_BYTES


def _answers_of(result: Any, count: int) -> Sequence[Deny | None] | None:
    """Return the answers a program gave; None for what is none."""
    if result is None:
        return [None] * count
    if isinstance(result, Deny):
        return [result] * count
    is_list = isinstance(result, (list, tuple)) and len(result) == count
    if is_list and all(answer is None or isinstance(answer, Deny) for answer in result):
        answers: Sequence[Deny | None] = result
        return answers
    return None
