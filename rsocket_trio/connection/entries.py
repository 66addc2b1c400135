"""Extension entries as an application meets them: its hooks, what they grant, and what the running request has."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from rsocket_trio.connection.handler_tasks import is_failure, only_leaf
from rsocket_trio.forms import Handler, unfit
from rsocket_trio.payload import as_bytes
from rsocket_trio.rsocket.extensions.blocks import Entry, Point
from rsocket_trio.rsocket.extensions.payloads import AT_EXT, AT_SETUP, AT_STREAM

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine

_entries: contextvars.ContextVar[tuple[Entry, ...]] = contextvars.ContextVar("rsocket_trio.entries", default=())


def current_request_entries() -> tuple[Entry, ...]:
    """The extension entries of the request that the running handler serves."""
    return _entries.get()


class HookFailed(Exception):
    """A hook raised ``error``."""

    def __init__(self, hook: Handler, error: Exception) -> None:
        super().__init__(hook, error)
        self.hook = hook
        self.error = error


def with_entries(handler: Handler, entries: tuple[Entry, ...]) -> Handler:
    """The same handler, in whose calls ``current_request_entries`` says these."""
    function = handler.function

    def call(*args: object) -> Any:
        # Every request runs in a context of its own.
        _entries.set(entries)
        return function(*args)

    return attrs.evolve(handler, function=call, origin=handler.registered)


def grants(engine: Engine, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """What the application's hooks answer to the entries of a SETUP that ask for it. Raises ``HookFailed``."""
    granted: list[Entry] = []
    for entry, hook, content in _hooked(engine, AT_SETUP, entries):
        try:
            answer = _call(engine, hook, AT_SETUP, content)
            if answer is not None and entry.ack and isinstance(entry.ext, str):
                granted.append(Entry(entry.ext, ignore=True, payload=_answer(answer, engine)))
        except Exception as error:
            raise HookFailed(hook, error) from error
    return tuple(granted)


def offer_request(engine: Engine, entries: Iterable[Entry]) -> None:
    """Show the hooks what a request has. Raises ``HookFailed``: then the request is not served."""
    for _, hook, content in _hooked(engine, AT_STREAM, entries):
        try:
            _call(engine, hook, AT_STREAM, content)
        except Exception as error:
            raise HookFailed(hook, error) from error


def offer_connection(engine: Engine, entries: Iterable[Entry]) -> None:
    """Show the hooks what an EXT frame has. A hook that fails concerns the log only."""
    for _, hook, content in _hooked(engine, AT_EXT, entries):
        try:
            _call(engine, hook, AT_EXT, content)
        except Exception as error:
            if is_failure(engine, only_leaf(error)):
                engine.faults.handler_failed(hook, error)


def _hooked(engine: Engine, point: Point, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Handler, object]]:
    """The entries that a hook takes, with what it is given: what a broker's entry says, or else the entry."""
    hooks = engine.responder.entry_hooks
    for entry in entries:
        hook = hooks.get(entry.ext)
        if hook is not None:
            content = point.read(entry)
            yield entry, hook, entry if content is None else content


def _call(engine: Engine, hook: Handler, point: Point, content: object) -> Any:
    answer = engine.workers.context.copy().run(hook.function, point.name, content)
    if inspect.isawaitable(answer):
        raise unfit(hook.interaction, hook.registered, answer, "bytes or nothing: it is a plain function, run inline")
    return answer


def _answer(answer: Any, engine: Engine) -> bytes:
    content, limit = as_bytes(answer), engine.session.limits.setup_size
    if len(content) > limit:
        raise ValueError(f"answer of {len(content)} bytes to an extension entry, limit {limit}")
    return content
