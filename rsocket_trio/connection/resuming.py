"""How does a connection get its next transport? A client dials again and asks; a server waits for its client."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import attrs
import trio

from rsocket_trio.connection.waiting import Parking
from rsocket_trio.errors import ConnectionLost, RemoteProtocolError, RSocketError
from rsocket_trio.mux.framing import Framing
from rsocket_trio.rsocket.continuity import Continuity
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.transports.base import Transport

Dial = Callable[[], AbstractAsyncContextManager[Transport]]
"""Opens a new transport to the same server, for as long as a block."""

GOODBYE = 1.0
"""Seconds that a last word on a transport gets."""
SHARE = 4
"""How many tries there is time for at least, however much the pauses have grown."""


ABSENCES = OSError, ConnectionLost, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError
"""What is raised where a network is not there, or a server can't be asked just now; TLS raises an ``OSError``."""


def is_absence(error: BaseException) -> bool:
    """Whether a function that opens streams could not connect. Anything else is a fault of its own."""
    if isinstance(error, ABSENCES):
        return True
    # Nobody raises what was never imported; programs that use TCP need not import it.
    websocket = sys.modules.get("trio_websocket")
    return websocket is not None and isinstance(error, websocket.HandshakeError)


@attrs.frozen(eq=False)
class Arrival:
    """A transport over which the session goes on, and the frames that came on it already. ``done`` when it is over."""

    transport: Transport
    frames: Sequence[bytes]
    done: trio.Event = attrs.field(factory=trio.Event)


class NoWayBack(Exception):
    """The session will not go on, for this reason."""

    def __init__(self, error: RSocketError) -> None:
        super().__init__(str(error))
        self.error = error


class Road(Protocol):
    """Where the next transport of a session comes from."""

    options: ResumeOptions

    def next(self) -> AbstractAsyncContextManager[Arrival]:
        """The next transport, for as long as a block. Raises ``NoWayBack``; the caller bounds the time."""
        ...


class ClientRoad:
    """Dials until a server answers RESUME, with a pause before each try.

    Pauses grow from try to try. They begin anew behind a transport that was good for something: it lived for longer
    than the longest pause, or some of the streams passed.
    """

    def __init__(
        self, dial: Dial, continuity: Continuity, framing: Callable[[], Framing], options: ResumeOptions
    ) -> None:
        self.options = options
        self._dial = dial
        self._continuity = continuity
        self._framing = framing
        self._tries = 0
        self._arrived = -math.inf
        self._progress = 0

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Arrival]:
        """The next transport on which the server goes on with the session."""
        lived = trio.current_time() - self._arrived
        if lived > self.options.longest_delay or self._continuity.progress != self._progress:
            self._tries = 0
        arrived = False
        while not arrived:
            await trio.sleep(self._pause())
            self._tries += 1
            with trio.CancelScope(deadline=trio.current_time() + self.options.answer_seconds) as patience:
                try:
                    async with self._dial() as transport:
                        arrival = await self._ask(transport)
                        # An answer in the very turn in which the time is over comes too late for this try.
                        if arrival is not None and not patience.cancel_called:
                            patience.deadline = math.inf
                            arrived = True
                            yield arrival
                except (ConnectionLost, trio.BrokenResourceError, trio.ClosedResourceError):
                    if arrived:
                        raise
                    # The network is not back, or gone again: the next try may do better.

    def _pause(self) -> float:
        """Seconds before the next try, of which the session's time is enough for some."""
        options = self.options
        return min(options.delay(self._tries, random.random()), options.session_seconds / SHARE)

    async def _ask(self, transport: Transport) -> Arrival | None:
        """What the server makes of it; ``None`` where it says nothing, or nobody wants to know any more."""
        if not self._continuity.is_kept:
            return None
        transport.use_framing(self._framing())
        # What the answer shows to have come is the doing of the transport before.
        self._progress = self._continuity.progress
        await transport.send([self._continuity.ask()])
        try:
            frames = await transport.receive()
            if not frames or not self._continuity.is_kept:
                return None
            self._continuity.answered(frames[0], trio.current_time())
        except RemoteProtocolError as error:
            # RS02-RSM-25: told, and not tried again.
            with trio.move_on_after(GOODBYE):
                await transport.send([self._continuity.farewell(error)])
                await transport.finish()
            lost = ConnectionLost(f"the peer broke the protocol: {error}")
            lost.__cause__ = error
            raise NoWayBack(lost) from error
        except RSocketError as refusal:
            raise NoWayBack(refusal) from refusal
        self._arrived = trio.current_time()
        return Arrival(transport, frames[1:])


class ServerRoad:
    """Waits for what the server brings."""

    def __init__(self, options: ResumeOptions) -> None:
        self.options = options
        self._arrival: Arrival | None = None
        self._waiting = Parking()

    @property
    def is_offered(self) -> bool:
        """Whether a transport is here that the session has not taken yet."""
        return self._arrival is not None

    def offer(self, arrival: Arrival) -> None:
        """The client is back, on this transport. One that was offered before and not taken is let go."""
        self.let_go()
        self._arrival = arrival
        self._waiting.wake_all()

    def let_go(self) -> None:
        """Whoever brought a transport that nobody took may close it."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.done.set()

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Arrival]:
        """The next transport that the client came back on."""
        while self._arrival is None:
            await self._waiting.park()
        arrival, self._arrival = self._arrival, None
        try:
            yield arrival
        finally:
            arrival.done.set()
