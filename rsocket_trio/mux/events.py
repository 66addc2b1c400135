"""The events that a session returns to its connection when frames arrive or timers expire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from rsocket_trio.masking import shown_metadata
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.errors import ConnectionLost, RSocketError
    from rsocket_trio.mux.stream_state import StreamState
    from rsocket_trio.payload import MetadataPush, Payload
    from rsocket_trio.terms import Setup


class Event:
    """The base class of all events."""

    __slots__ = ()


@value
class SetupReceived(Event):
    """A client asks to be let in; the session waits for ``accept`` or ``refuse``."""

    setup: Setup


@value
class SetupAccepted(Event):
    """The server's answer to a SETUP that asked for one; ``entries`` are what it granted."""

    entries: tuple[Any, ...]


@value
class RequestReceived(Event):
    """The peer opened a stream, and its first payload is whole.

    ``complete`` says that the requester of a channel sends nothing more; ``entries`` are the request's extensions.
    """

    stream: StreamState
    payload: Payload
    complete: bool
    entries: tuple[Any, ...] = ()


@value
class ItemReceived(Event):
    """One item; with ``complete`` it is the last one."""

    stream: StreamState
    payload: Payload
    complete: bool


@value
class ItemsReceived(Event):
    """Several items of one stream that came together; none is its last."""

    stream: StreamState
    payloads: list[Payload]


@value
class StreamCompleted(Event):
    """The peer sends nothing more on this stream."""

    stream: StreamState


@value
class StreamFailed(Event):
    """The stream ended both ways with this error."""

    stream: StreamState
    error: RSocketError


@value
class StreamCancelled(Event):
    """The requester cancelled: the stream ended both ways."""

    stream: StreamState


@value
class SendingCancelled(Event):
    """The responder of our channel wants no more items of ours; its own half goes on."""

    stream: StreamState


@value
class CreditGranted(Event):
    """More items may be sent on this stream."""

    stream: StreamState


@value
class LeaseReceived(Event):
    """The peer granted requests: tasks that wait for a lease may try again."""


@value
class MetadataPushed(Event):
    """Metadata for the connection."""

    metadata: bytes = attrs.field(repr=shown_metadata)


@value
class StreamMetadataPushed(Event):
    """Metadata for one stream."""

    stream: StreamState
    push: MetadataPush


@value
class ExtensionReceived(Event):
    """An EXT frame whose type the application registered."""

    ext_type: int
    stream_id: int
    body: bytes


@value
class EntriesReceived(Event):
    """Extension entries for the connection that are not the session's own, known or not."""

    entries: tuple[Any, ...]


@value
class Pong(Event):
    """A ping was answered; ``token`` is the one that it was sent with."""

    token: Any


@value
class PeerFault(Event):
    """The peer broke a rule without consequences: it is only logged."""

    text: str


@value
class PeerDraining(Event):
    """The peer announced its end: no new stream may start, open ones may finish.

    ``closing`` says that the peer expects this side to close the connection, once no stream is open any more.
    """

    closing: bool


@value
class TransportSilent(Event):
    """No frame arrived for too long: the transport is dead, and the session may go on over another one."""

    error: ConnectionLost


@value
class SessionEnded(Event):
    """The session is over. The rest of the outbox is to be sent, then the transport closed.

    ``ordinary`` says that the peer ended it while no stream was open: that is no failure. ``refuses`` says that the
    last frame refuses the client.
    """

    error: RSocketError
    ordinary: bool = False
    refuses: bool = False
