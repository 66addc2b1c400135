"""The types of the functions that each decorator of a ``Responder`` takes.

For the type checker: a handler of other arguments, or of another result, is an error where it is decorated. Arguments
are given by position, so a handler names them as it likes.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rsocket_trio.payload import BytesLike
from rsocket_trio.terms import Lease, Setup

if TYPE_CHECKING:
    from rsocket_trio.connection.connection import Connection
    from rsocket_trio.services.calls.context import Call


class MetadataPushHandler(Protocol):
    """Metadata push: an async or plain function of the metadata."""

    def __call__(self, metadata: bytes, /) -> Awaitable[None] | None: ...


class SetupHandler(Protocol):
    """The setup handler: an async or plain function of the SETUP and the connection. It raises to refuse."""

    def __call__(self, setup: Setup, connection: Connection, /) -> Awaitable[None] | None: ...


class LeasePolicy(Protocol):
    """The lease policy: an async generator of the SETUP."""

    def __call__(self, setup: Setup, /) -> AsyncIterable[Lease]: ...


class ExtensionTaker(Protocol):
    """EXT frames: a plain function of the stream's id and the body."""

    def __call__(self, stream_id: int, body: bytes, /) -> None: ...


class EntryTaker(Protocol):
    """Extension entries: a plain function of where they came and what they say, which may answer in a SETUP."""

    def __call__(self, point: str, content: Any, /) -> BytesLike | None: ...


class OnError(Protocol):
    """``on_error``: a plain function of the exception and what the handler was called for."""

    def __call__(self, error: Exception, call: Call, /) -> object: ...


class Around(Protocol):
    """An interceptor: an async generator of the call that yields once."""

    def __call__(self, call: Call, /) -> AsyncIterable[None]: ...


class ContextAround(Protocol):
    """An interceptor: a function of the call that makes an async context manager."""

    def __call__(self, call: Call, /) -> AbstractAsyncContextManager[Any]: ...


class Authenticator(Protocol):
    """``authenticate``: an async or plain function of the credentials, and of the SETUP or call that carries them."""

    def __call__(self, credentials: Any, where: Any, /) -> object: ...


# A handler of requests may take any types and give any: what does not fit is refused when it is decorated.
RequestResponse: TypeAlias = Callable[..., object]
FireAndForget: TypeAlias = Callable[..., object]
RequestStream: TypeAlias = Callable[..., AsyncIterable[object] | Awaitable[None]]
RequestChannel: TypeAlias = Callable[..., AsyncIterable[object] | Awaitable[None]]
Interceptor: TypeAlias = Around | ContextAround
