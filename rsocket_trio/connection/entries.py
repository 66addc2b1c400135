"""Extension entries for applications: the hooks that see them, their answers, the entries of the running request."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from rsocket_trio.forms import Handler, unfit
from rsocket_trio.payload import as_bytes
from rsocket_trio.rsocket.frames import ExtensionEntry

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

    def call(*args: object) -> Any:
        # Every request runs in a context of its own.
        _entries.set(entries)
        return function(*args)

    return attrs.evolve(handler, function=call, origin=handler.registered)


@attrs.frozen
class EntryHooks:
    """The application's hooks for extension entries.

    ``hooks`` are the functions by the entry that each takes, ``call`` calls one in a context of the connection's, and
    ``limit`` is the largest answer in bytes.
    """

    hooks: Mapping[int | str, Handler]
    call: Callable[..., Any]
    limit: int

    def grants(
        self, entries: Iterable[ExtensionEntry], failed: Callable[[Handler, Exception], object]
    ) -> tuple[ExtensionEntry, ...] | None:
        """Return the answers to the entries of a SETUP that ask for one.

        ``failed`` is called for the first hook that raises; then return ``None``.
        """
        granted: list[ExtensionEntry] = []
        for entry, hook, content in self._hooked(AT_SETUP, entries):
            try:
                answer = self._call(hook, AT_SETUP, content)
                if answer is not None and entry.ack and isinstance(entry.ext, str):
                    granted.append(ExtensionEntry(entry.ext, ignore=True, payload=self._checked(answer)))
            except Exception as error:
                failed(hook, error)
                return None
        return tuple(granted)

    def offer_request(self, entries: Iterable[ExtensionEntry]) -> None:
        """Show the entries of a request. Raise ``HookFailed``: then the request is not served."""
        for _, hook, content in self._hooked(AT_STREAM, entries):
            try:
                self._call(hook, AT_STREAM, content)
            except Exception as error:
                raise HookFailed(hook, error) from error

    def offer_connection(
        self, entries: Iterable[ExtensionEntry], failed: Callable[[Handler, Exception], object]
    ) -> None:
        """Show the entries of an EXT frame; ``failed`` is called for each hook that raises."""
        for _, hook, content in self._hooked(AT_EXT, entries):
            try:
                self._call(hook, AT_EXT, content)
            except Exception as error:
                failed(hook, error)

    def _hooked(
        self, point: str, entries: Iterable[ExtensionEntry]
    ) -> Iterator[tuple[ExtensionEntry, Handler, object]]:
        """Yield the entries that a hook takes, with its argument: the content of a broker's entry, or the entry."""
        for entry in entries:
            hook = self.hooks.get(entry.ext)
            if hook is not None:
                content = _content(entry, point)
                yield entry, hook, entry if content is None else content

    def _call(self, hook: Handler, point: str, content: object) -> Any:
        answer = self.call(hook.function, point, content)
        if inspect.isawaitable(answer):
            wanted = "bytes or nothing: it is a plain function, run inline"
            raise unfit(hook.interaction, hook.registered, answer, wanted)
        return answer

    def _checked(self, answer: Any) -> bytes:
        content = as_bytes(answer)
        if len(content) > self.limit:
            raise ValueError(f"answer of {len(content)} bytes to an extension entry, limit {self.limit}")
        return content


def _content(entry: ExtensionEntry, point: str) -> object:
    """Return the meaning of an entry's payload at this place, ``None`` for an extension that is not known there."""
    # Imported here, so that programs without the extension draft do not load it.
    from rsocket_trio.rsocket.extensions import payloads

    points = (payloads.AT_SETUP, payloads.AT_STREAM, payloads.AT_EXT)
    return next(place for place in points if place.name == point).read(entry)
