"""The transport interface that a connection uses: whole frames in, whole frames out; and the time to open one."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from rsocket_trio.errors import ConnectionLost
from rsocket_trio.masking import shown_headers
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.mux.framing import EncodedFrame, Framing


@value
class Handshake:
    """The facts about the peer that are known before its first frame.

    ``transport`` is the scheme of the URI (``tcp``, ``tls``, ``unix``, ``ws``, ``wss``, ``h2``, ``h2s``, ``memory``, or
    ``stream``), ``peer_address`` its address as ``host:port`` or a path, ``certificate`` the result of
    ``ssl.SSLSocket.getpeercert()``, ``path`` and ``headers`` those of the request that opened a WebSocket or a stream
    of HTTP/2 (header names in lower case).
    """

    transport: str = "stream"
    peer_address: str = ""
    certificate: Mapping[str, Any] | None = None
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=shown_headers)


class Transport(Protocol):
    """Moves whole frames. One task sends, one task receives.

    ``BrokenResourceError`` and ``ClosedResourceError`` of Trio mean a lost transport; ``RemoteProtocolError`` means
    that the peer broke the framing and can't be understood from here on.
    """

    __slots__ = ("handshake",)

    handshake: Handshake

    @property
    def is_message_based(self) -> bool:
        """Return whether each message is one frame, so that no length prefix is needed."""
        ...

    def use_framing(self, framing: Framing) -> None:
        """Cut received bytes into frames this way from now on; called before the first ``receive``.

        Nothing is to be done for a transport whose messages are frames.
        """
        return

    async def peek(self) -> tuple[bytes, bool]:
        """Wait for more. Return the first bytes, or messages, so far, and whether all came; ``receive`` has them."""
        ...

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Write all frames, in one write where the transport allows it."""
        ...

    @property
    def send_at_once(self) -> Callable[[Sequence[EncodedFrame]], bool] | None:
        """Write all frames without waiting, while no ``send`` is under way; ``None`` if the transport can't.

        Return False if something is left: it goes first with the next ``send``, which is due then.
        """
        return None

    async def receive(self) -> Sequence[bytes]:
        """Return the next whole frames, at least one; an empty sequence at the end of the stream."""
        ...

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a frame was received and its rest was not."""
        ...

    @property
    def is_idle(self) -> bool:
        """Return whether nothing came that was not received, so that a peer loses nothing if this is cut."""
        return False

    async def finish(self, code: int = 1000) -> None:
        """Send the end of the stream, then wait for the peer to do the same, discarding what comes.

        Ends early once 4 MiB were discarded. The caller bounds the time. ``code`` is the WebSocket close code.
        """
        ...

    def cut(self) -> bool:
        """Close at once if that needs no waiting. Return whether it closed; if not, ``aclose`` is needed."""
        ...

    async def aclose(self) -> None:
        """Close at once; never raises for a transport that is broken already."""
        ...


class MessageTransport(Transport):
    """The base of transports of whole messages: each message is a frame, and ``_take`` waits for the next ones."""

    __slots__ = ("_peeked", "_shown")

    is_message_based = True

    def __init__(self, handshake: Handshake) -> None:
        self.handshake = handshake
        self._peeked: list[bytes] = []
        self._shown = 0

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a message was received, as far as that can be told."""
        return False

    async def peek(self) -> tuple[bytes, bool]:
        """Return the first message, at each further call with one more, and whether no more can come."""
        if self._shown == len(self._peeked):
            self._peeked += await self._take()
        ended = self._shown == len(self._peeked)
        self._shown += not ended
        return b"".join(self._peeked[: self._shown]), ended

    async def receive(self) -> Sequence[bytes]:
        ready, self._peeked = self._peeked, []
        self._shown = 0
        return ready or await self._take()

    @abstractmethod
    async def _take(self) -> list[bytes]:
        """Wait for the next messages; none at the end."""


class WrappedTransport(Transport):
    """Passes everything on to another transport, except for the short cuts of ``send_at_once`` and ``is_idle``."""

    def __init__(self, transport: Transport) -> None:
        self.handshake: Handshake = transport.handshake
        self._transport = transport

    @property
    def is_message_based(self) -> bool:
        return self._transport.is_message_based

    @property
    def mid_frame(self) -> bool:
        return self._transport.mid_frame

    @property
    def has_unread(self) -> bool:
        """Return whether something came that was not received, as far as the transport can tell."""
        return getattr(self._transport, "has_unread", False)

    @property
    def granted(self) -> Callable[[ConnectTimeout], Awaitable[Handshake]] | None:
        """Waits for the server's answer that grants the transport; ``None`` if it needs none."""
        return getattr(self._transport, "granted", None)

    def use_framing(self, framing: Framing) -> None:
        self._transport.use_framing(framing)

    async def peek(self) -> tuple[bytes, bool]:
        return await self._transport.peek()

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        await self._transport.send(frames)

    async def receive(self) -> Sequence[bytes]:
        return await self._transport.receive()

    async def finish(self, code: int = 1000) -> None:
        await self._transport.finish(code)

    def cut(self) -> bool:
        return self._transport.cut()

    async def aclose(self) -> None:
        await self._transport.aclose()


CONNECT_TIMEOUT = 10.0
"""Seconds that connecting may take by default."""


class ConnectTimeout:
    """The ``seconds`` that connecting to ``target`` may take, counted from now on; ``math.inf`` for no limit.

    Each step of connecting runs in a scope of its own, so that an open connection keeps none.
    Raise ``ValueError`` unless ``seconds`` is above 0, and ``TypeError`` for a value that is no number.
    """

    __slots__ = ("_deadline", "_seconds", "_target")

    def __init__(self, seconds: float, target: str = "") -> None:
        self._seconds = checked_connect_timeout(seconds)
        self._target = target
        self._deadline = math.inf if math.isinf(seconds) else trio.current_time() + seconds

    @contextmanager
    def step(self, missing: str) -> Iterator[None]:
        """Bound one step. Raise ``ConnectionLost`` once the time is over; ``missing`` says what did not come.

        Scopes and nurseries that are entered in a step end in it.
        """
        with trio.CancelScope(deadline=self._deadline) as scope:
            yield
        if scope.cancelled_caught:
            raise self.expired(missing)

    def scope(self) -> trio.CancelScope:
        """Return a scope with this deadline, for a step that opens what outlives it: remove the deadline then."""
        return trio.CancelScope(deadline=self._deadline)

    def expired(self, missing: str) -> ConnectionLost:
        """Return the error for a step that took too long."""
        where = f"{self._target}: " if self._target else ""
        return ConnectionLost(f"{where}{missing} within {self._seconds:g} s")


def checked_connect_timeout(seconds: object) -> float:
    """Return the seconds. Raise ``ValueError`` unless they are above 0, ``TypeError`` for a value that is no number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"connect_timeout is a number of seconds, not {type(seconds).__name__}")
    if not seconds > 0 or sys.float_info.max < seconds < math.inf:
        raise ValueError(f"connect_timeout of {seconds!s:.20}: must be above 0, below 1e308; math.inf is no limit")
    return seconds


UNLIMITED: Final = ConnectTimeout(math.inf)
"""No limit: the caller bounds the time."""
