"""The parts of an RSocket session and queries of its state: open, draining, resumable, congested."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Self

from rsocket_trio.errors import ConnectionLost, RSocketError, Unsupported
from rsocket_trio.limits import Limits
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.connection_frames import Control
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.extensions.blocks import Entry
from rsocket_trio.rsocket.extensions.terms import cost_of
from rsocket_trio.rsocket.fast_path import BytePatterns
from rsocket_trio.rsocket.keepalive import KeepaliveTimer
from rsocket_trio.rsocket.lease import Permits
from rsocket_trio.rsocket.resume_handshake import ResumeHandshake
from rsocket_trio.rsocket.stream_receiver import StreamReceiver
from rsocket_trio.rsocket.stream_sender import StreamSender
from rsocket_trio.rsocket.stream_table import Stream, StreamTable

if TYPE_CHECKING:
    from rsocket_trio.rsocket.beginning import ClientBeginning, ServerBeginning


class State(enum.Enum):
    """The state of a connection, from before the SETUP to the end."""

    NEW = enum.auto()
    """A server that waits for SETUP, a client that has not sent it."""
    ASKING = enum.auto()
    """A client whose SETUP waits for the answer that it asked for."""
    GATED = enum.auto()
    """A server whose application considers the SETUP."""
    OPEN = enum.auto()
    OVER = enum.auto()


STALLED = 16
"""Factor on the limits of waiting replies that pause reading, while the store for resumption is full."""
TICKING = frozenset({State.OPEN, State.GATED, State.ASKING})
"""The states in which the keepalive timer runs."""


class Standing:
    """The parts of a session, and properties derived from them.

    ``patterns`` are those of the short way, ``None`` to take every frame the long way.
    ``beginning`` is ``None`` once the connection is open or over: what it held is not kept.
    """

    first_word = "SETUP"
    is_full = False
    is_mid_frame = False
    message_budget: int | None = None

    __slots__ = (
        "__weakref__",
        "_suspended",
        "attention",
        "beginning",
        "client",
        "commands",
        "control",
        "dialect",
        "error",
        "has_announced",
        "keepalive",
        "limits",
        "outbox",
        "patterns",
        "receiver",
        "resume_handshake",
        "state",
        "table",
    )

    has_announced: bool
    """Whether the peer was told, or is about to be, that the connection ends."""
    _suspended: bool
    attention: bool
    beginning: ClientBeginning | ServerBeginning | None
    client: bool
    commands: StreamSender
    resume_handshake: ResumeHandshake
    control: Control
    dialect: Dialect
    error: RSocketError | None
    receiver: StreamReceiver
    keepalive: KeepaliveTimer
    limits: Limits
    outbox: Outbox
    patterns: BytePatterns | None
    state: State
    table: StreamTable

    # Capabilities of mux.session, None where the dialect or the options of this session exclude them

    own_framing = None

    @property
    def leasing(self) -> Self:
        """Leases, in both directions."""
        return self

    @property
    def resumable(self) -> Self | None:
        """Resumption, if this side was told to resume sessions."""
        return self if self.resume_handshake.offered else None

    @property
    def connection_metadata(self) -> Control:
        """Metadata for the connection."""
        return self.control

    @property
    def extensions(self) -> Control:
        """Extension frames."""
        return self.control

    @property
    def extension_entries(self) -> Self | None:
        """Extension entries, which the extension draft has."""
        return self if self.dialect.entries else None

    @property
    def silence_timer(self) -> KeepaliveTimer:
        """The keepalive timer."""
        return self.keepalive

    @property
    def close_announcement(self) -> Self | None:
        """The announcement of the end, if the dialect has CONNECTION_CLOSE."""
        return self if self.dialect.has_connection_close else None

    @property
    def name(self) -> str:
        """The dialect's name."""
        return self.dialect.name

    @property
    def permits(self) -> Permits | None:
        """The permits of the peer's last lease, ``None`` without leases."""
        return self.control.permits

    @property
    def draining(self) -> bool:
        """Whether new requests are neither accepted nor sent."""
        return self.receiver.draining

    @property
    def opens_at_once(self) -> bool:
        """Whether a new request needs no permit, and is not refused."""
        return self.control.permits is None and not self.receiver.draining

    @property
    def awaits_setup(self) -> bool:
        """Whether this is a server that no SETUP has reached."""
        return self.state is State.NEW

    @property
    def awaits_answer(self) -> bool:
        """Whether this is a client whose SETUP has still to be answered before anything is asked."""
        return self.state is State.ASKING

    @property
    def is_open(self) -> bool:
        """Whether both sides may send requests: the application has accepted the SETUP."""
        return self.state is State.OPEN

    @property
    def can_resume(self) -> bool:
        """Whether the session survives the loss of its transport."""
        resume_handshake = self.resume_handshake
        agreed = resume_handshake.resumption is not None and not resume_handshake.gave_up
        return agreed and self.state in (State.OPEN, State.GATED)

    @property
    def gave_up_resuming(self) -> bool:
        """Whether resumption was agreed and then given up."""
        return self.resume_handshake.gave_up

    @property
    def has_credit(self) -> bool:
        """Whether the peer sends only what it was granted."""
        return self.dialect.keeps_credit

    @property
    def initial_request_n(self) -> int:
        """The credit that a request begins with where its caller names none."""
        return self.dialect.initial_request_n

    @property
    def has_mime_fields(self) -> bool:
        """Whether payloads may name MIME types of their own."""
        return self.dialect.mime_fields

    @property
    def is_quiet(self) -> bool:
        """Whether no stream is open, and the last frame of each has left."""
        return not self.table

    @property
    def detached(self) -> int:
        """Handlers that still run although their streams are over: they count as streams of the peer's."""
        return self.receiver.detached

    @detached.setter
    def detached(self, number: int) -> None:
        self.receiver.detached = number

    @property
    def deadline(self) -> float:
        """The next time at which ``expire`` has something to do, as far as is known; infinite when nothing is due."""
        return self.keepalive.deadline if self.state in TICKING and not self._suspended else math.inf

    @property
    def patience_until(self) -> float:
        """The time at which ``expire`` declares a silent peer dead; infinite while silence is not timed."""
        return self.keepalive.death if self.state in TICKING and not self._suspended else math.inf

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause: replies wait for a peer that does not read, or the gate holds enough."""
        outbox, limits = self.outbox, self.limits
        # The frame that frees a stalled store lies behind all that the peer sent before it: read on for longer.
        patience = STALLED if outbox.is_stalled else 1
        return (
            outbox.reply_size >= patience * limits.reply_size
            or outbox.reply_frames >= patience * limits.reply_frames
            or (self.beginning is not None and self.beginning.is_full)
        )

    def open_streams(self) -> list[Stream]:
        """All streams of both sides, as they are now."""
        return [*self.table.mine.values(), *self.table.theirs.values()]

    def check_request(self, interaction: Interaction, payload: Payload) -> None:
        """Raise ``Unsupported`` where the dialect lacks the interaction."""
        if interaction not in self.dialect.interactions:
            raise Unsupported(f"{self.dialect.name} has no {interaction.value}")

    def check_route(self) -> None:
        """Accept: every RSocket dialect carries routes in its metadata."""

    def cost(self, entries: tuple[Entry, ...]) -> int:
        """Return the permits that these entries cost. Raises ``Unsupported`` if the dialect has no entries."""
        if not self.dialect.entries:
            raise Unsupported(f"{self.dialect.name} has no extension entries")
        return cost_of(entries)

    def cut_off(self, lost: ConnectionLost) -> RSocketError:
        """Return the error that ends the session after its transport ended: ``lost`` itself."""
        return lost
