"""The base class of the sessions that a connection drives, the same for every protocol, and its capabilities."""

# ruff: noqa: B027 - a session does nothing where its protocol has nothing for it

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import attrs

from rsocket_trio.errors import ConnectionClosed, ConnectionLost, Unsupported
from rsocket_trio.mux.events import SessionEnded

if TYPE_CHECKING:
    from rsocket_trio.errors import RemoteProtocolError, RSocketError, SetupError, StreamError
    from rsocket_trio.limits import Limits
    from rsocket_trio.mux.events import Event
    from rsocket_trio.mux.outbox import Outbox
    from rsocket_trio.mux.stream_state import Interaction, Permits, StreamState
    from rsocket_trio.payload import MetadataPush, Payload
    from rsocket_trio.terms import Lease


STALLED = 16
"""Factor on the limits of waiting replies that pause reading, while the store for resumption is full."""

StreamT = TypeVar("StreamT", bound="StreamState")


@attrs.frozen(eq=False, kw_only=True)
class Capabilities:
    """The properties of a dialect that a connection depends on. They do not change while a session lasts."""

    name: str
    first_message: str = "SETUP"
    """The dialect's name for the first message of a client."""
    keeps_credit: bool = True
    """The peer sends no more than it was granted; otherwise what is beyond waits for its reader all the same."""
    initial_request_n: int = 256
    """The credit that a request of this side begins with where its caller names none."""
    message_budget: int | None = None
    """Bytes of one message that may wait for its reader before it is refused; ``None`` for no such bound."""
    mime_fields: bool = False
    """MIME types are texts or numbers of well-known ones, and a payload may name its own."""
    metadata_types: bool = False
    """Metadata has a type byte."""
    routes: bool = True
    """Requests may have routes."""

    def lacks(self, payload: Payload) -> str:
        """Return what a payload has and the dialect has no place for, or ``""``."""
        if payload.metadata_type and not self.metadata_types:
            return "metadata types"
        has_types = payload.data_mime is not None or payload.metadata_mime is not None
        return "MIME types of single payloads" if has_types and not self.mime_fields else ""


class StreamCommands(ABC, Generic[StreamT]):
    """Commands that send on streams. Nothing waits; all is put into the outbox.

    A command that the state of the stream forbids raises ``LocalProtocolError`` and changes nothing.
    """

    __slots__ = ()

    @property
    def is_full(self) -> bool:
        """Return whether a new request has to wait until one in flight is over."""
        return False

    @abstractmethod
    def check_request(self, interaction: Interaction, payload: Payload) -> None:
        """Raise ``Unsupported``, or ``ValueError``, for a request that the protocol never allows."""

    @abstractmethod
    def open(
        self, interaction: Interaction, payload: Payload, initial_n: int | None = None, *, entries: tuple[Any, ...] = ()
    ) -> StreamT:
        """Open a stream. Raise ``Unsupported`` if the dialect lacks the interaction, or extension entries."""

    @abstractmethod
    def send_item(self, stream: StreamT, payload: Payload, *, complete: bool = False) -> None:
        """Send an item, for which there is credit; with ``complete`` it is the last."""

    def offer_item(self, stream: StreamT, item: object) -> bool:
        """Send an item of a plain kind if it may be sent now. Return whether it was sent; else nothing has changed."""
        return False

    @abstractmethod
    def send_complete(self, stream: StreamT) -> None:
        """Complete this side's half of the stream."""

    @abstractmethod
    def send_error(self, stream: StreamT, error: StreamError) -> RSocketError | None:
        """End the stream with an error. Return the error that ends the session if the dialect can't send one."""

    @abstractmethod
    def send_cancel(self, stream: StreamT) -> None:
        """Cancel the peer's half. Do nothing on a stream that has ended."""

    @abstractmethod
    def metadata_push(self, stream: StreamT, push: MetadataPush) -> None:
        """Send metadata for one stream. Raise ``Unsupported`` if the dialect has none."""

    def request_n(self, stream: StreamT, amount: int) -> None:
        """Grant credit. Do nothing once the peer's half is closed, or in a protocol without credit."""


class Receiver(Protocol):
    """Turns what the peer sent on streams into events."""

    events: list[Event]
    """Those since the last call of the session."""
    detached: int
    """Handlers that still run although their streams are over."""


class State(enum.Enum):
    """The state of a connection, from before the first message to the end."""

    NEW = enum.auto()
    """A server that waits for its client's first message, a client that has not sent it."""
    ASKING = enum.auto()
    """A client that may send no requests before its first message is answered."""
    GATED = enum.auto()
    """A server whose application considers the client."""
    OPEN = enum.auto()
    OVER = enum.auto()


class Session(ABC):
    """The rules of one connection: frames in, events out, time as an argument.

    Only the session assigns its ``state``. Behind the abstract methods stand abilities that some protocols lack: a
    session without one does nothing, or raises ``Unsupported``.

    ``receive``, ``broken``, ``expire``, ``accept`` and ``refuse`` return events. The caller collects all of them before
    it calls the session again.
    """

    __slots__ = (
        "__weakref__",
        "attention",
        "client",
        "commands",
        "dialect",
        "error",
        "limits",
        "outbox",
        "receiver",
        "state",
    )

    client: bool
    dialect: Capabilities
    """The properties of the dialect."""
    error: RSocketError | None
    """The error that ended the session, ``None`` before."""
    limits: Limits
    outbox: Outbox
    commands: StreamCommands[Any]
    """The commands that send on streams."""
    receiver: Receiver
    state: State
    has_announced: bool = False
    """True if the peer was told, or is about to be, to close the connection once no stream is open."""

    attention: bool
    """True if the connection has to do more after a read or a write than act on the events.

    The session sets it when it drains, holds what came behind a closed gate, has so many answers or requests waiting
    that reading may have to pause, or moved its deadline; the request queue and the end of the
    connection set it, too. The engine tests it after each read and each write. Only the engine clears it, once a look
    finds nothing of the kind.
    """

    @property
    @abstractmethod
    def draining(self) -> bool:
        """Return whether neither side may open new streams."""

    @property
    def awaits_admission(self) -> bool:
        """Return whether a server has not let its client in yet: no first message came, or the application decides."""
        return not self.client and self.state in (State.NEW, State.GATED)

    @property
    @abstractmethod
    def deadline(self) -> float:
        """The time of the next call of ``expire``, as far as is known now."""

    @property
    @abstractmethod
    def patience_until(self) -> float:
        """The time at which ``expire`` gives up a peer that stays silent; infinite if it may stay silent."""

    @property
    @abstractmethod
    def is_congested(self) -> bool:
        """Return whether reading must pause."""

    @property
    @abstractmethod
    def is_quiet(self) -> bool:
        """Return whether no stream is open."""

    @abstractmethod
    def open_streams(self) -> Iterable[StreamState]:
        """Return all streams of both sides, as they are now."""

    @property
    @abstractmethod
    def requests_in_flight(self) -> int:
        """Return the number of this side's requests that are not over."""

    @property
    @abstractmethod
    def opens_at_once(self) -> bool:
        """Return whether a new request needs neither a permit nor an id that is in use, and is not refused."""

    @abstractmethod
    def receive(self, frames: Sequence[bytes], now: float) -> list[Event]:
        """Take whole frames, in order, and return the events. No bytes of a peer make this raise."""

    @abstractmethod
    def broken(self, error: RemoteProtocolError) -> list[Event]:
        """End the session, because the transport could not find the next frame."""

    @abstractmethod
    def expire(self, now: float) -> list[Event]:
        """Do what is due at this time, and return the events."""

    @abstractmethod
    def accept(self, now: float, granted: tuple[Any, ...] = ()) -> list[Event]:
        """Open the session to a client that the application accepts, and grant these extension entries."""

    @abstractmethod
    def refuse(self, error: SetupError) -> list[Event]:
        """End the session with a client that the application refuses."""

    @abstractmethod
    def ping(self, token: object) -> None:
        """Send a ping, whose answer is ``Pong`` with this token. Raise ``Unsupported`` if the dialect has none."""

    @abstractmethod
    def drain(self) -> None:
        """Refuse new requests from now on."""

    def close(self, error: RSocketError | None = None) -> None:
        """End the session on this side: what comes is ignored from now on."""
        if self.error is None:
            self.error = error if error is not None else ConnectionClosed("the connection was closed by this side")
        self.state = State.OVER
        self.attention = True
        self.outbox.drop_held()

    def _end(self, error: RSocketError, *, ordinary: bool = False, refuses: bool = False) -> None:
        self.outbox.discard_queues()
        self.close(error)
        self.receiver.events.append(SessionEnded(error, ordinary, refuses))

    def _broken_by(self, error: RemoteProtocolError, code: int | None = None) -> ConnectionLost:
        lost = ConnectionLost(f"the peer broke the protocol: {error}", code=code)
        lost.__cause__ = error.with_traceback(None)  # which would keep the frames of our own that read it
        return lost

    @property
    def _has_many_replies(self) -> bool:
        """Return whether so many answers to the peer wait that reading must pause."""
        outbox, limits = self.outbox, self.limits
        # The frame that frees a stalled store lies behind all that the peer sent before it: read on for longer.
        patience = STALLED if outbox.is_stalled else 1
        return (
            outbox.reply_size >= patience * limits.reply_size or outbox.reply_frames >= patience * limits.reply_frames
        )

    def _collected(self) -> list[Event]:
        events, self.receiver.events = self.receiver.events, []
        return events

    # Abilities that some protocols lack

    def announce_drain(self) -> None:
        """Tell the peer that this side takes no more requests."""

    def announce_close(self, *, last: bool) -> None:
        """Tell the peer that this connection ends: at once, or with ``last`` when all else has left."""

    @property
    def permits(self) -> Permits | None:
        """The peer's last lease; ``None`` if no leases were agreed, so that requests need no permit."""
        return None

    def grant(self, lease: Lease, now: float) -> None:
        """Grant the peer a lease; do nothing if no leases were agreed."""

    @property
    def can_resume(self) -> bool:
        """Return whether the session survives the loss of its transport."""
        return False

    def suspend(self) -> list[Event]:
        """Detach the lost transport: what is sent waits, and silence does not count. Return what happened."""
        return []

    def metadata_push(self, metadata: bytes, metadata_type: int = 0) -> None:
        """Send metadata for the connection."""
        raise Unsupported(f"{self.dialect.name} has no metadata")

    def extension(self, ext_type: int, body: bytes, *, ignore: bool) -> None:
        """Send an extension frame; ``ignore`` allows the peer to skip it."""
        raise Unsupported(f"{self.dialect.name} has no extension frames")

    def entries(self, entries: tuple[Any, ...], *, ignore: bool) -> None:
        """Send extension entries for the connection; ``ignore`` allows the peer to skip all of them."""
        raise Unsupported(f"{self.dialect.name} has no extension entries")

    def cost(self, entries: tuple[Any, ...]) -> int:
        """Return the permits that a request with these entries costs."""
        raise Unsupported(f"{self.dialect.name} has no extension entries")

    def heard(self, now: float) -> None:
        """Count silence from now on: a frame was received, or nothing was read without a fault of the peer's."""

    def excuse(self, now: float) -> None:
        """Give the peer its full time if a late clock delayed what asks it for an answer."""

    @property
    def is_mid_frame(self) -> bool:
        """Return whether a part of a frame is here and the rest is not, in a session that cuts the bytes itself."""
        return False

    def cut_off(self, lost: ConnectionLost) -> RSocketError:
        """Return the error of a transport that ended with ``lost``, given the part of a frame that is here."""
        return lost
