"""Run one plug-in in threads of its own, each with an event loop and an instance.

Operations: a question per device that connects, or per topic of a device, each of which may block the
thread that it runs in. Goals: what blocks holds up nobody but those who ask this plug-in, and these for its
time limit at most. Plan: who asks waits on a loop of its own for a time that the plug-in cannot stretch; a
question goes to the thread that has the fewest; what nobody waits for any more is not begun.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from iotmq import limits
from iotmq.clock import Clock
from iotmq.errors import IotmqError
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt_front.plugins.breaker import Breaker
from iotmq.mqtt_front.plugins.context import PluginContext, Publish
from iotmq.mqtt_front.plugins.light_session import LightSession
from iotmq.mqtt_front.plugins.loader import LoadedPlugin

_log: Final = logging.getLogger("iotmq.mqtt")

# Past a plug-in's own limit, which its loop keeps if it turns.
_GRACE_S: Final = 0.1
_STOP_TIMEOUT_S: Final = 0.3

ContextOf = Callable[[asyncio.AbstractEventLoop], PluginContext]


class PluginStartError(IotmqError):
    """A plug-in did not start; the text says why."""


class NoAnswerError(IotmqError):
    """A plug-in did not answer, in one of the ways of `cause`; who asked it is refused."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause


class _Question(NamedTuple):
    method: str
    words: Mapping[str, Any]
    answer: Future[object]


class _Thread:
    """One thread with its loop and its instance."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.loop = asyncio.new_event_loop()
        self.instance: Any = None
        self.open_count = 0
        """Questions that were handed over and are not done; of the thread that asks."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name=f"iotmq-plugin-{name}"[:15], daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Have the loop do something; from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def hand_over(self, question: _Question) -> None:
        self.loop.call_soon_threadsafe(self._begin, question)

    def stop(self) -> None:
        """Have it end; one that blocks ends with the process."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        rest = asyncio.all_tasks(self.loop)
        for task in rest:
            task.cancel()
        if rest:
            self.loop.run_until_complete(asyncio.wait(rest, timeout=_STOP_TIMEOUT_S))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _begin(self, question: _Question) -> None:
        if question.answer.cancelled():
            return
        task = self.loop.create_task(self._answer(question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: _Question) -> None:
        if not question.answer.set_running_or_notify_cancel():
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await getattr(self.instance, question.method)(**question.words)
        except asyncio.CancelledError:
            question.answer.set_exception(NoAnswerError("failed", "the plug-in is being stopped"))
            raise
        except BaseException as error:
            # A plug-in may raise anything; its thread goes on, and who asked is told.
            question.answer.set_exception(error)
        else:
            question.answer.set_result(answer)


class PluginHost:
    """Asks one plug-in, and counts what it answers."""

    def __init__(
        self,
        plugin: LoadedPlugin,
        sessions: Mapping[str, LightSession],
        publish: Publish,
        clock: Clock,
    ) -> None:
        self.plugin = plugin
        self.name = plugin.settings.shown_name
        self._sessions = sessions
        self._publish = publish
        settings = plugin.settings
        self._breaker = Breaker(clock, failures_max=settings.failures_max, pause_s=settings.pause_s)
        self._threads: list[_Thread] = []
        self._lock = threading.Lock()
        self._answers: Counter[str] = Counter()
        self._asked_total = 0
        self._seconds_total = 0.0
        self._events: deque[tuple[str, Mapping[str, Any]]] = deque()
        # Of the first thread, once it has started, if the plug-in is told anything.
        self._has_events: asyncio.Event | None = None
        self._telling: asyncio.Future[None] | None = None
        self._events_total = 0
        self._events_dropped_total = 0
        self._is_stopping = False

    async def start(self, timeout_s: float) -> None:
        """Make the instances, one after the other. PluginStartError when one cannot be made, or is late."""
        if self.plugin.unheard:
            _log.warning(
                "a plug-in has methods for events that it is not told",
                extra={"plugin": self.name, "events": ", ".join(self.plugin.unheard)},
            )
        for number in range(self.plugin.settings.hosts):
            thread = _Thread(f"{self.name}-{number}", self.plugin.settings.timeout_s)
            self._threads.append(thread)
            thread.start()
            try:
                made = asyncio.wrap_future(thread.submit(self._made(thread)))
                async with asyncio.timeout(timeout_s):
                    await made
            except TimeoutError:
                raise PluginStartError(
                    f"the plug-in {self.name} has not started within {timeout_s} s "
                    "(mqtt.plugins.start_timeout_s)"
                ) from None
            except Exception as error:
                raise PluginStartError(
                    f"the plug-in {self.name} does not start: {type(error).__name__}: {error}"
                ) from error
        if self.plugin.events:
            await asyncio.wrap_future(self._threads[0].submit(self._begin_events()))

    async def started(self, timeout_s: float) -> None:
        """Tell it that devices may connect."""
        await self._told("on_broker_post_start", timeout_s)

    async def stop(self) -> None:
        """End it, whatever it does. May be called twice."""
        if self._is_stopping:
            return
        self._is_stopping = True
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                for method in ("on_broker_pre_shutdown", "on_broker_post_shutdown", "close"):
                    await self._told(method, _STOP_TIMEOUT_S)
        except TimeoutError:
            _log.warning("a plug-in does not stop, and is left alone", extra={"plugin": self.name})
        finally:
            for thread in self._threads:
                thread.stop()

    async def _made(self, thread: _Thread) -> None:
        context = PluginContext(self.name, self.plugin.options, thread.loop, self._sessions, self._publish)
        thread.instance = self.plugin.plugin_class(context)
        if hasattr(thread.instance, "on_broker_pre_start"):
            await thread.instance.on_broker_pre_start()

    async def _told(self, method: str, timeout_s: float) -> None:
        if not hasattr(self.plugin.plugin_class, method):
            return
        made = [thread for thread in self._threads if thread.instance is not None]
        tellings = [
            asyncio.wrap_future(thread.submit(_awaited(getattr(thread.instance, method)))) for thread in made
        ]
        for telling in tellings:
            try:
                async with asyncio.timeout(timeout_s):
                    await telling
            except Exception as error:
                _log.warning(
                    "a plug-in failed at a start or a stop",
                    extra={
                        "plugin": self.name,
                        "method": method,
                        "detail": f"{type(error).__name__}: {error}",
                    },
                )

    # Questions

    async def ask(self, method: str, words: Mapping[str, Any]) -> bool | None:
        """Return the plug-in's answer. NoAnswerError when there is none, of whatever cause."""
        settings = self.plugin.settings
        thread = self._with_room()
        question = _Question(method, words, Future())
        question.answer.add_done_callback(lambda _: self._is_done(thread))
        began_s = time.perf_counter()
        thread.hand_over(question)
        try:
            async with asyncio.timeout(settings.timeout_s + _GRACE_S):
                answer = await asyncio.wrap_future(question.answer)
        except TimeoutError:
            raise self._no_answer(question, "late", f"no answer in {settings.timeout_s} s") from None
        except asyncio.CancelledError:
            # Who asked has no more time.
            self._no_answer(question, "late", "")
            raise
        except Exception as error:
            known = self.plugin.known.no_by_error
            if known is None or not isinstance(error, known):
                text = f"{type(error).__name__}: {error}"[:200]
                raise self._no_answer(question, "failed", text) from error
            answer = False
        finally:
            with self._lock:
                self._seconds_total += time.perf_counter() - began_s
        if answer is not None and not isinstance(answer, bool):
            raise self._no_answer(
                question, "failed", f"it answered {type(answer).__name__}, not true or false"
            )
        self._breaker.succeeded()
        self._count("none" if answer is None else "yes" if answer else "no")
        return answer

    def _with_room(self) -> _Thread:
        """Return the thread that has the fewest questions, with one more."""
        if self._is_stopping:
            raise NoAnswerError("refused", "it is being stopped")
        settings = self.plugin.settings
        with self._lock:
            self._asked_total += 1
            if sum(thread.open_count for thread in self._threads) >= settings.waiting_max:
                self._answers["refused"] += 1
                raise NoAnswerError("refused", f"waiting_max is {settings.waiting_max}")
        if not self._breaker.may_ask():
            self._count("refused")
            raise NoAnswerError("refused", f"it failed {settings.failures_max} times in a row")
        with self._lock:
            thread = min(self._threads, key=lambda each: each.open_count)
            thread.open_count += 1
            return thread

    def _is_done(self, thread: _Thread) -> None:
        with self._lock:
            thread.open_count -= 1

    def _no_answer(self, question: _Question, cause: str, detail: str) -> NoAnswerError:
        # One whose turn has not come is not begun any more. It counts as late, too: what is before it is.
        question.answer.cancel()
        self._count(cause)
        if self._breaker.failed():
            _log.error(
                "a plug-in fails again and again, and is not asked for a while",
                extra={"plugin": self.name, "detail": detail, "pause_s": self.plugin.settings.pause_s},
            )
        return NoAnswerError(cause, detail)

    def _count(self, answer: str) -> None:
        with self._lock:
            self._answers[answer] += 1

    # Events

    def tell(self, event: str, words: Mapping[str, Any]) -> None:
        """Tell the plug-in something about a device, some time; it is dropped when too much waits."""
        if event not in self.plugin.events or self._has_events is None or self._is_stopping:
            return
        if len(self._events) >= limits.MQTT_PLUGIN_EVENTS_MAX:
            self._events_dropped_total += 1
            return
        self._events.append((event, words))
        self._threads[0].loop.call_soon_threadsafe(self._has_events.set)

    async def _begin_events(self) -> None:
        self._has_events = asyncio.Event()
        self._telling = asyncio.ensure_future(self._tell_events(self._has_events))

    async def _tell_events(self, has_events: asyncio.Event) -> None:
        instance = self._threads[0].instance
        telling = asyncio.current_task()
        while True:
            await has_events.wait()
            has_events.clear()
            while self._events:
                event, words = self._events.popleft()
                self._events_total += 1
                try:
                    async with asyncio.timeout(self.plugin.settings.timeout_s):
                        await getattr(instance, f"on_{event}")(**words)
                except BaseException as error:
                    # A plug-in may raise anything, also what ends a task or a thread.
                    if telling is not None and telling.cancelling():
                        raise
                    _log.warning(
                        "a plug-in failed at an event",
                        extra={
                            "plugin": self.name,
                            "event": event,
                            "detail": f"{type(error).__name__}: {error}",
                        },
                    )

    def metrics(self) -> Iterable[Metric]:
        labels = (("plugin", self.name),)
        with self._lock:
            waiting = sum(thread.open_count for thread in self._threads)
            answers = {
                name: self._answers[name] for name in ("yes", "no", "none", "failed", "late", "refused")
            }
        yield from samples(
            ("iotmq_mqtt_plugin_asked_total", "Questions to a plug-in.", self._asked_total),
            ("iotmq_mqtt_plugin_waiting", "Questions that a plug-in has not answered yet.", waiting),
            ("iotmq_mqtt_plugin_seconds_total", "Time that answers took, all together.", self._seconds_total),
            (
                "iotmq_mqtt_plugin_paused",
                "Whether a plug-in is not asked because it fails (1).",
                self._breaker.is_open,
            ),
            ("iotmq_mqtt_plugin_pauses_total", "Times that began.", self._breaker.opened_total),
            ("iotmq_mqtt_plugin_events_total", "Events that a plug-in was told.", self._events_total),
            (
                "iotmq_mqtt_plugin_events_dropped_total",
                "Events that a plug-in was not told, because too many waited.",
                self._events_dropped_total,
            ),
            labels=labels,
        )
        yield from samples_by(
            "answer",
            "iotmq_mqtt_plugin_answers_total",
            "Answers of a plug-in; late, failed and refused (not asked) ones deny.",
            answers,
            labels=labels,
        )


async def _awaited(method: Callable[[], Awaitable[object]]) -> None:
    await method()
