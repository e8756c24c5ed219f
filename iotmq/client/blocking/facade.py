"""Make blocking classes from the asynchronous ones when they are loaded, so that they have all those have.

| of the asynchronous class | becomes |
| --- | --- |
| a coroutine function | a method that waits for its result |
| an asynchronous generator | an iterator |
| a function that returns an asyncio future | one that returns a `concurrent.futures` one |
| any other function, property or attribute | the same, used on the loop's thread |
| a function of the application as an argument | one that is called on worker threads, and may block |
| an object of a class that has a blocking form | that form, as an argument and as a result |

`classes.pyi` says the same to type checkers. `tools/blocking_stub.py` writes it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from iotmq.client.blocking.application_threads import ApplicationThreads
from iotmq.client.blocking.loop_thread import LoopThread
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.message import StoredMessage

# A blocking client has these of the layer below the client.
OF_TRANSPORT: Final = ("is_running", "on_connection", "start")
# An argument with one of these in its annotation calls the application.
_APPLICATION_TYPE: Final = re.compile(
    r"\b(Listener|ColumnsListener|Check|Execute|RebalanceListener|ListenerError|ConnectionListener)\b"
)
_TOLD: Final = frozenset({"RebalanceListener", "ListenerError", "ConnectionListener"})
"""Those that say what has happened, and have no part in the work."""
_SEVERAL: Final = re.compile(r"(?:Iterable|Collection|Sequence|list)\[(\w+)\]")
_OVER: Final = object()

_forms: dict[str, type[Blocking]] = {}
"""Name of an asynchronous class -> its blocking form."""


class Blocking:
    """The blocking form of an object: its methods wait, and may be called from any thread."""

    _of: type
    """The asynchronous class."""
    _thread: LoopThread
    _application: ApplicationThreads
    asynchronous: Any
    """The object itself, which belongs to the client's thread."""

    def __init__(self, client: Blocking, *args: Any, threads: int | None = None, **kwargs: Any) -> None:
        bound = inspect.signature(self._of).bind(client.asynchronous, *args, **kwargs)
        if threads is not None and not _application_names(self._of):
            raise TypeError(f"{type(self).__name__} calls no functions of the application: no threads=")
        self._thread = client._thread
        name = f"iotmq-{bound.arguments.get('group', 'client')}"
        told = ApplicationThreads(self._thread, f"{name}-told", 1)
        self._application = ApplicationThreads(self._thread, name, threads, told)
        self.asynchronous = self._thread.call(self._of, *_converted(self, self._of, bound), **bound.kwargs)

    @classmethod
    def _around(cls, other: Blocking, asynchronous: object) -> Self:
        """Return the blocking form of an object that another one's method has returned."""
        form = cls.__new__(cls)
        form._thread = other._thread
        form._application = other._application
        form.asynchronous = asynchronous
        return form

    def __getattr__(self, name: str) -> Any:
        # What the constructor of the object has set.
        if name[0] == "_" or name == "asynchronous" or isinstance(self.asynchronous, ClientTransport):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _result(self, getattr(self.asynchronous, name))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.asynchronous!r}>"


class BlockingLifetime(Blocking):
    """A blocking form that `with` starts and stops."""

    def __enter__(self) -> Self:
        self._thread.run(self.asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._application.check_outside()
        self._thread.run(self.asynchronous.__aexit__(kind, error, trace))
        self._application.end()


class BlockingClient(Blocking):
    """A blocking client: an asynchronous one, and the thread that runs it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._thread = LoopThread()
        self._application = ApplicationThreads(self._thread, "iotmq-client", None)
        self.asynchronous = self._of(*args, **kwargs)
        # A handler of signals may stop the client while its thread does.
        self._lifetime = threading.RLock()

    @property
    def client_id(self) -> Any:
        """Return the name of this client inside its consumer groups."""
        return self.asynchronous.client_id

    @property
    def settings(self) -> Any:
        """Return the settings it was made with."""
        return self.asynchronous.settings

    def start(self) -> None:
        """Start the thread; a second time does nothing. Connections are made when they are needed."""
        with self._lifetime:
            if not self._thread.is_running:
                self._thread.start()
                try:
                    self._thread.run(self.asynchronous.start())
                except BaseException:
                    self._thread.stop()
                    raise

    def stop(self) -> None:
        """End all parts in their order, then the connections and the thread; a second time does nothing."""
        self._end(lambda client: client.stop())

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the client's thread and wait for it: for what `asynchronous` is needed for."""
        return self._thread.run(coroutine)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(lambda client: client.__aexit__(kind, error, trace))

    def _end(self, end: Callable[[Any], Any]) -> None:
        self._application.check_outside_of(self._thread)
        if self._thread.is_running:
            self._thread.check_caller()
        with self._lifetime:
            if not self._thread.is_running:
                return
            try:
                self._thread.run(end(self.asynchronous))
            finally:
                self._thread.stop()


def blocking(asynchronous: type) -> Any:
    """Make the blocking form of a class."""
    members: dict[str, Any] = {
        "_of": asynchronous,
        "__doc__": form_doc(asynchronous),
        "__module__": "iotmq.client.blocking.classes",
    }
    base = base_of(asynchronous)
    for name, value in members_of(asynchronous).items():
        if not hasattr(base, name):
            members["__iter__" if name == "__aiter__" else name] = _member(name, value)
    form = type(form_name(asynchronous), (base,), members)
    _forms[asynchronous.__name__] = form
    return form


def form_name(asynchronous: type) -> str:
    """Return the name of the blocking form of a class."""
    return f"Sync{asynchronous.__name__.removeprefix('Iotmq')}"


def form_doc(asynchronous: type) -> str:
    """Return the docstring of the blocking form of a class."""
    text = f"The blocking form of `{asynchronous.__name__}`, for any thread."
    return f"{text} `with` starts and stops it." if issubclass(asynchronous, Lifetime) else text


def base_of(asynchronous: type) -> type[Blocking]:
    """Return what the blocking form of a class is derived from."""
    if issubclass(asynchronous, ClientTransport):
        return BlockingClient
    for base in asynchronous.__mro__[1:]:
        if base.__name__ in _forms:
            return _forms[base.__name__]
    return BlockingLifetime if issubclass(asynchronous, Lifetime) else Blocking


def members_of(asynchronous: type) -> dict[str, Any]:
    """Return the public functions and properties that the blocking form of a class has."""
    found: dict[str, Any] = {}
    for base in reversed(asynchronous.__mro__[:-1]):
        for name, value in vars(base).items():
            if base is ClientTransport and name not in OF_TRANSPORT:
                continue
            is_member = inspect.isfunction(value) or isinstance(value, property | functools.cached_property)
            if is_member and (name[0] != "_" or name == "__aiter__"):
                found[name] = value
    return found


def _member(name: str, value: Any) -> Any:
    if not inspect.isfunction(value):
        return property(functools.partial(_get, name=name), doc=value.__doc__)
    if inspect.isasyncgenfunction(value):
        return functools.update_wrapper(_iterating(value), value)
    method = _waiting if inspect.iscoroutinefunction(value) else _calling
    return functools.update_wrapper(method(name, value), value)


def _get(form: Blocking, name: str) -> Any:
    if isinstance(form.asynchronous, StoredMessage):
        # What a message says does not change.
        return getattr(form.asynchronous, name)
    return _result(form, form._thread.call(getattr, form.asynchronous, name))


def _waiting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wait(self: Blocking, /, *args: Any, **kwargs: Any) -> Any:
        if name == "stop":
            self._application.check_outside()
        bound = inspect.signature(function).bind(self.asynchronous, *args, **kwargs)
        result = self._thread.run(function(*_converted(self, function, bound), **bound.kwargs))
        if name == "stop":
            self._application.end()
        return _result(self, result)

    return wait


def _iterating(function: Callable[..., Any]) -> Callable[..., Any]:
    def iterate(self: Blocking, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        bound = inspect.signature(function).bind(self.asynchronous, *args, **kwargs)
        items = function(*_converted(self, function, bound), **bound.kwargs)

        async def following() -> Any:
            return await anext(items, _OVER)

        try:
            while (item := self._thread.run(following())) is not _OVER:
                yield _result(self, item)
        finally:
            if self._thread.is_running:
                self._thread.run(items.aclose())

    return iterate


def _calling(_name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    made = str(inspect.signature(function).return_annotation)

    def call(self: Blocking, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, BlockingClient) and made in _forms:
            part = _forms[made](self, *args, **kwargs)
            self._thread.call(self.asynchronous._adopt, part.asynchronous)
            return part
        bound = inspect.signature(function).bind(self.asynchronous, *args, **kwargs)
        there = functools.partial(function, *_converted(self, function, bound), **bound.kwargs)
        return _result(self, self._thread.call(_call_there, there))

    return call


def _call_there(function: Callable[[], Any]) -> Any:
    """Call on the loop's thread; a future of the loop becomes one that any thread may wait for."""
    result = function()
    if not asyncio.isfuture(result):
        return result

    async def ended() -> Any:
        return await result

    return asyncio.run_coroutine_threadsafe(ended(), asyncio.get_running_loop())


def _application_names(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parameters of a function, or of a class, that call the application, and why they do."""
    found = {
        name: _APPLICATION_TYPE.search(str(parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
    }
    return {name: match[1] for name, match in found.items() if match}


@functools.cache
def _names_of_several(function: Callable[..., Any]) -> frozenset[str]:
    """Return the parameters of a function that take several objects of a class that has a blocking form."""
    found = {
        name: _SEVERAL.fullmatch(str(parameter.annotation))
        for name, parameter in inspect.signature(function).parameters.items()
    }
    return frozenset(name for name, match in found.items() if match and match[1] in _forms)


def _converted(
    form: Blocking, function: Callable[..., Any], bound: inspect.BoundArguments
) -> tuple[Any, ...]:
    """Make arguments fit for the loop's thread; returns those that are given by position."""
    for name, kind in _application_names(function).items():
        if bound.arguments.get(name) is not None:
            threads = form._application
            if kind in _TOLD and threads.told is not None:
                threads = threads.told
            bound.arguments[name] = threads.on_worker(bound.arguments[name])
    several = _names_of_several(function)
    for name, value in bound.arguments.items():
        if isinstance(value, Blocking):
            bound.arguments[name] = value.asynchronous
        elif name in several:
            bound.arguments[name] = [
                each.asynchronous if isinstance(each, Blocking) else each for each in value
            ]
    return bound.args


def _result(form: Blocking, value: Any) -> Any:
    """Return the blocking form of a result that has one, or of those in a list."""
    if isinstance(value, list) and value and type(value[0]).__name__ in _forms:
        return [_result(form, each) for each in value]
    kind = _forms.get(type(value).__name__)
    return kind._around(form, value) if kind is not None and type(value) is kind._of else value
