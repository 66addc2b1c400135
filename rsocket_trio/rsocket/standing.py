"""Where does a connection stand? What can be asked of its session without changing anything."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

from rsocket_trio.errors import ConnectionLost, RSocketError, Unsupported
from rsocket_trio.limits import Limits
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.continuity import Continuity
from rsocket_trio.rsocket.control import Control
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.extensions.blocks import Entry
from rsocket_trio.rsocket.extensions.terms import cost_of
from rsocket_trio.rsocket.inbound import Inbound
from rsocket_trio.rsocket.keepalive import KeepaliveTimer
from rsocket_trio.rsocket.lease import Permits
from rsocket_trio.rsocket.outbound import Outbound
from rsocket_trio.rsocket.streams import Stream, StreamTable

if TYPE_CHECKING:
    from rsocket_trio.rsocket.beginning import ClientBeginning, ServerBeginning


class State(enum.Enum):
    """Where a connection stands."""

    NEW = enum.auto()
    """A server that waits for SETUP, a client that has not sent it."""
    ASKING = enum.auto()
    """A client whose SETUP waits for the answer that it asked for."""
    GATED = enum.auto()
    """A server whose application considers the SETUP."""
    OPEN = enum.auto()
    OVER = enum.auto()


STALLED = 16
"""How many times the replies that usually pause reading may wait while the store for resumption is full."""
TICKING = frozenset({State.OPEN, State.GATED, State.ASKING})
"""Where silence counts."""


class Standing:
    """The parts of a session, and what they say of it.

    ``beginning`` is ``None`` once the connection is open or over: what it held is not kept.
    """

    first_word = "SETUP"
    is_full = False
    is_mid_frame = False
    message_budget: int | None = None

    __slots__ = (
        "__weakref__",
        "_suspended",
        "beginning",
        "client",
        "commands",
        "continuity",
        "control",
        "dialect",
        "error",
        "has_announced",
        "inbound",
        "keepalive",
        "limits",
        "outbox",
        "state",
        "table",
    )

    has_announced: bool
    """Whether the peer was told, or is about to be, that the connection ends."""
    _suspended: bool
    beginning: ClientBeginning | ServerBeginning | None
    client: bool
    commands: Outbound
    continuity: Continuity
    control: Control
    dialect: Dialect
    error: RSocketError | None
    inbound: Inbound
    keepalive: KeepaliveTimer
    limits: Limits
    outbox: Outbox
    state: State
    table: StreamTable

    @property
    def name(self) -> str:
        """The dialect's name."""
        return self.dialect.name

    @property
    def permits(self) -> Permits | None:
        """What the peer's last lease allows, ``None`` without leases."""
        return self.control.permits

    @property
    def draining(self) -> bool:
        """Whether nothing new is taken or asked."""
        return self.inbound.draining

    @property
    def opens_at_once(self) -> bool:
        """Whether a new request needs no permit, and is not refused."""
        return self.control.permits is None and not self.inbound.draining

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
        """Whether both sides may ask: the application has let its peer in."""
        return self.state is State.OPEN

    @property
    def can_resume(self) -> bool:
        """Whether the loss of the transport is not the end."""
        continuity = self.continuity
        agreed = continuity.resumption is not None and not continuity.gave_up
        return agreed and self.state in (State.OPEN, State.GATED)

    @property
    def gave_up_resuming(self) -> bool:
        """Whether resumption was agreed, and is not promised any more."""
        return self.continuity.gave_up

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
    def lingering(self) -> int:
        """Handlers that still run although their streams are over: they count as streams of the peer's."""
        return self.inbound.lingering

    @lingering.setter
    def lingering(self, number: int) -> None:
        self.inbound.lingering = number

    @property
    def deadline(self) -> float:
        """When ``expire`` has something to say, as far as is known now; infinite when nothing is due."""
        return self.keepalive.deadline if self.state in TICKING and not self._suspended else math.inf

    @property
    def patience_until(self) -> float:
        """When ``expire`` takes a silent peer for dead; infinite when it does not."""
        return self.keepalive.death if self.state in TICKING and not self._suspended else math.inf

    @property
    def is_congested(self) -> bool:
        """Whether reading must pause: replies wait for a peer that does not read, or the gate holds enough."""
        outbox, limits = self.outbox, self.limits
        # What lets a stalled store go on stands behind whatever the peer sent before: reading goes on for longer.
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
        """Every dialect has routes, in its metadata."""

    def cost(self, entries: tuple[Entry, ...]) -> int:
        """Permits that a request with these entries costs. Raises ``Unsupported`` where the dialect has none."""
        if not self.dialect.entries:
            raise Unsupported(f"{self.dialect.name} has no extension entries")
        return cost_of(entries)

    def cut_off(self, lost: ConnectionLost) -> RSocketError:
        """The transport ended: nothing more is to be said of it."""
        return lost
