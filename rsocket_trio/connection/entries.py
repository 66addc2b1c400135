"""Extension entries for applications: the hooks that see them, their answers, the entries of the running request."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from rsocket_trio.forms import Handler, unfit
from rsocket_trio.payload import as_bytes
from rsocket_trio.rsocket.frames import ExtensionEntry

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine

# The names of the places where a block of entries may stand.
AT_SETUP, AT_STREAM, AT_EXT = "SETUP", "REQUEST", "EXT"

_entries: contextvars.ContextVar[tuple[ExtensionEntry, ...]] = contextvars.ContextVar(
    "rsocket_trio.entries", default=()
)


def current_request_entries() -> tuple[ExtensionEntry, ...]:
    """Return the extension entries of the request that the running handler serves."""
    return _entries.get()


class HookFailed(Exception):
    """A hook raised ``error``."""

    def __init__(self, hook: Handler, error: Exception) -> None:
        super().__init__(hook, error)
        self.hook = hook
        self.error = error


def with_entries(handler: Handler, entries: tuple[ExtensionEntry, ...]) -> Handler:
    """Return the handler, with ``current_request_entries`` returning these entries in its calls."""
    function = handler.function

    def call(*args: object) -> object:
        # Every request runs in a context of its own.
        _entries.set(entries)
        return function(*args)

    return attrs.evolve(handler, function=call, origin=handler.registered)


def offer(engine: Engine, point: str, entries: Iterable[ExtensionEntry]) -> tuple[ExtensionEntry, ...]:
    """Show entries to the hooks of the application. Return the answers to those of a SETUP that ask for one.

    Raise ``HookFailed`` for the first hook that raises, or whose answer is none.
    """
    granted: list[ExtensionEntry] = []
    for entry in entries:
        hook = engine.responder._entry_hooks.get(entry.ext)
        if hook is None:
            continue
        content = _content(entry, point)
        try:
            answer = engine.run_in_context(hook.function, point, entry if content is None else content)
            if inspect.isawaitable(answer):
                required = "bytes or nothing: it is a plain function, run inline"
                raise unfit(hook.interaction, hook.registered, answer, required)
            if point == AT_SETUP and answer is not None and entry.ack and isinstance(entry.ext, str):
                payload, limit = as_bytes(answer), engine.session.limits.setup_size
                if len(payload) > limit:
                    raise ValueError(f"answer of {len(payload)} bytes to an extension entry, limit {limit}")
                granted.append(ExtensionEntry(entry.ext, ignore=True, payload=payload))
        except Exception as error:
            raise HookFailed(hook, error) from error
    return tuple(granted)


def _content(entry: ExtensionEntry, point: str) -> object:
    """Return the meaning of an entry's payload at this place, ``None`` for an extension that is not known there."""
    # Imported here, so that programs without the extension draft do not load it.
    from rsocket_trio.rsocket.extensions.entries import AT_EXT, AT_SETUP, AT_STREAM

    points = (AT_SETUP, AT_STREAM, AT_EXT)
    return next(place for place in points if place.name == point).read(entry)
