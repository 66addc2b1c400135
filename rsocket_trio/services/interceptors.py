"""Interceptors: async context managers round the life of a call, on the side that serves it or makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import trio

from rsocket_trio.forms import Function, Kind, checked
from rsocket_trio.services.call_context import Call

T = TypeVar("T")
Interceptor: TypeAlias = Callable[[Call], AbstractAsyncContextManager[Any]]


def as_interceptor(decorator: str, function: Function) -> Interceptor:
    """Return ``function`` as a function that makes an async context manager of a call.

    It is an async generator function that yields once, or makes one already. Raise ``TypeError``, naming ``decorator``,
    for another kind of function.
    """
    handler = checked(decorator, function)
    if handler.kind is Kind.GENERATOR:
        return asynccontextmanager(handler.function)
    return function


class Interception:
    """The life of one call: what was entered round it, and how it ended.

    ``call`` is noted to have ended when the block ends, before its interceptors go on behind their ``yield``.
    """

    __slots__ = ("_stack", "call")

    def __init__(self, call: Call) -> None:
        self.call = call
        self._stack = AsyncExitStack()

    async def enter(self, interceptors: Sequence[Interceptor]) -> None:
        """Enter ``interceptors``, the outermost first. Those that were entered are left if one raises."""
        await self._stack.__aenter__()
        try:
            for interceptor in interceptors:
                await self._stack.enter_async_context(interceptor(self.call))
        except BaseException as error:
            await self.leave(error)
            raise

    async def leave(self, error: BaseException | None, *, cancelled: bool = False) -> None:
        """Leave them with ``error``, or ``None`` if the call was completed or ``cancelled``.

        Raise what they raise in its place. Without an answer there is nothing to go on with: an error that an
        interceptor swallows is for the caller to raise.
        """
        call = self.call
        if error is not None:
            call.error = error
        if isinstance(error, trio.Cancelled | GeneratorExit):
            call.outcome = "cancelled"
        elif call.error is not None:
            call.outcome = "failed"
        else:
            call.outcome = "cancelled" if cancelled else "completed"
        await self._stack.__aexit__(type(error) if error is not None else None, error, _trace_of(error))


def _trace_of(error: BaseException | None) -> Any:
    return None if error is None else error.__traceback__


async def intercepted(call: Call, interceptors: Sequence[Interceptor], body: Callable[[], Awaitable[T]]) -> T:
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
