"""Interceptors: async context managers round the life of a call, on the side that serves it or makes it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, _AsyncGeneratorContextManager, asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import trio

from rsocket_trio.forms import Function, Kind, checked, function_name
from rsocket_trio.services.calls.context import Call

T = TypeVar("T")
ContextOf: TypeAlias = Callable[[Call], AbstractAsyncContextManager[Any]]
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


NOT_STOPPED = "generator didn't stop"


class Interception:
    """The life of one call: what was entered round it, and how it ended.

    ``call`` is noted to have ended when the block ends, before its interceptors go on behind their ``yield``. Where one
    of them raises, those outside of it see the call end with that.
    """

    __slots__ = ("_entered", "call")

    def __init__(self, call: Call) -> None:
        self.call = call
        self._entered: list[tuple[ContextOf, AbstractAsyncContextManager[Any]]] = []

    async def enter(self, interceptors: Sequence[ContextOf]) -> None:
        """Enter ``interceptors``, the outermost first. Those that were entered are left if one raises."""
        try:
            for interceptor in interceptors:
                context: object = interceptor(self.call)
                if not isinstance(context, AbstractAsyncContextManager):
                    name, kind = function_name(interceptor), type(context).__name__
                    raise TypeError(f"interceptor {name} returned {kind}, not an async context manager")
                await context.__aenter__()
                self._entered.append((interceptor, context))
        except BaseException as error:
            await self.leave(error)
            raise

    async def leave(self, error: BaseException | None, *, cancelled: bool = False) -> None:
        """Leave them with ``error``, or ``None`` if the call was completed or ``cancelled``.

        Raise what they raise in its place. Without an answer there is nothing to go on with: an error that an
        interceptor swallows is for the caller to raise.
        """
        raised = error
        self._note(raised, cancelled)
        while self._entered:
            interceptor, context = self._entered.pop()
            try:
                if raised is None:
                    await context.__aexit__(None, None, None)
                else:
                    await context.__aexit__(type(raised), raised, raised.__traceback__)
            except BaseException as another:
                if _is_second_yield(context, another):
                    if str(another).startswith(NOT_STOPPED):
                        with suppress(RuntimeError):  # it yields at this, too
                            await context.gen.aclose()  # type: ignore[attr-defined] # as contextlib of 3.11.2 does not
                    another = _second_yield(interceptor, raised)
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


def _is_second_yield(context: object, error: BaseException) -> bool:
    """Return whether ``context`` raised ``error`` because its generator yields more than once."""
    # The frames are this one's caller and the context's own: deeper ones are of contexts inside of the generator.
    inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return (
        type(error) is RuntimeError
        and isinstance(context, _AsyncGeneratorContextManager)
        and str(error).startswith((NOT_STOPPED, "async generator ignored GeneratorExit"))
        and (inner is None or inner.tb_next is None)
    )


def _second_yield(interceptor: ContextOf, error: BaseException | None) -> TypeError:
    """Return the error for an interceptor that yields again after the call, which ended with ``error``."""
    raised = TypeError(
        f"interceptor {function_name(interceptor)} yields a second time: it runs round one call and can't repeat it. "
        "To try again, repeat the request where it is made, in a loop round 'await connection.request_response(...)'"
    )
    raised.__cause__ = error
    return raised


def _is_cancellation(error: BaseException) -> bool:
    """Return whether an exception says only that the call was cancelled, maybe in several tasks of a nursery."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled | GeneratorExit)


async def intercepted(call: Call, interceptors: Sequence[ContextOf], body: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``body``, which is the call, inside of its interceptors, the outermost first."""
    life = Interception(call)
    await life.enter(interceptors)
    try:
        result = await body()
    except BaseException as error:
        await life.leave(error)
        raise
    await life.leave(None)
    return result
