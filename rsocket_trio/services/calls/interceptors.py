"""Interceptors: async context managers round the life of a call, on the side that serves it or makes it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import trio

from rsocket_trio.forms import Function, Kind, checked, function_name
from rsocket_trio.services.calls.context import Call

ContextOf: TypeAlias = Callable[[Call], AbstractAsyncContextManager[object]]
"""A function that makes the async context manager round a call."""
Interceptor: TypeAlias = ContextOf | Callable[[Call], AsyncIterable[None]]
"""An interceptor of an application: such a function, or an async generator function that yields once."""


def as_interceptor(decorator: str, function: Function) -> ContextOf:
    """Return ``function`` as a function that makes an async context manager of a call.

    It is an async generator function that yields once, or makes one already. Raise ``TypeError``, naming ``decorator``,
    for another kind of function.
    """
    handler = checked(decorator, function)
    if handler.kind is Kind.GENERATOR:
        return asynccontextmanager(handler.function)
    return function


class Interception:
    """The interceptors round one call, as an async context manager: it enters and leaves them, the outermost first.

    ``call`` is noted to have ended when the block ends, before its interceptors go on behind their ``yield``. Where one
    of them raises, those outside of it see the call end with that.
    """

    __slots__ = ("_entered", "_interceptors", "call")

    def __init__(self, call: Call, interceptors: Sequence[ContextOf]) -> None:
        self.call = call
        self._interceptors = interceptors
        self._entered: list[AbstractAsyncContextManager[object]] = []

    async def __aenter__(self) -> None:
        try:
            for interceptor in self._interceptors:
                context = interceptor(self.call)
                # As ``isinstance`` of an abstract class finds out in four times as long.
                if not hasattr(context, "__aexit__"):
                    name, kind = function_name(interceptor), type(context).__name__
                    raise TypeError(f"interceptor {name} returned {kind}, not an async context manager")
                await context.__aenter__()
                self._entered.append(context)
        except BaseException as error:
            await self.leave(error)
            raise

    def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> Coroutine[object, None, None]:
        return self.leave(error)

    async def leave(self, error: BaseException | None, *, cancelled: bool = False) -> None:
        """Leave those that were entered with ``error``, or ``None`` if the call was completed or ``cancelled``.

        Raise what they raise in its place. Without an answer there is nothing to go on with: an error that an
        interceptor swallows is for the caller to raise.
        """
        raised = error
        self._note(raised, cancelled)
        while self._entered:
            context = self._entered.pop()
            try:
                if raised is None:
                    await context.__aexit__(None, None, None)
                else:
                    await context.__aexit__(type(raised), raised, raised.__traceback__)
            except BaseException as another:
                raised = another
                self._note(raised, cancelled)
        try:
            if raised is not None and raised is not error:
                raise raised
        finally:
            del raised, error  # their tracebacks refer to this frame

    def _note(self, error: BaseException | None, cancelled: bool) -> None:
        call = self.call
        if error is not None and _is_cancellation(error):
            call.outcome = "cancelled"
            return
        if error is not None:
            call.error = error
        if call.error is not None:
            call.outcome = "failed"  # also where the reader of a stream handled the error
        else:
            call.outcome = "cancelled" if cancelled else "completed"


def _is_cancellation(error: BaseException) -> bool:
    """Return whether an exception says only that the call was cancelled, maybe in several tasks of a nursery."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled | GeneratorExit)
