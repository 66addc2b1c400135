"""The part that conversations with a session have in common, whatever it speaks: a peer, an application, a clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar, Final, Generic, TypeVar

from rsocket_trio.errors import RejectedSetup
from rsocket_trio.mux.events import Event, SessionEnded
from rsocket_trio.mux.session import Session, State

LENGTH: Final = range(10, 41)
"""Number of frames that a peer sends."""
StreamT = TypeVar("StreamT")


class Conversation(ABC, Generic[StreamT]):
    """One conversation, and the bounds of its session at any time."""

    session: Session
    on_streams: ClassVar[Sequence[Callable[[Any, Any], object]]]
    """The actions of an application on one of its streams."""
    on_connection: ClassVar[Sequence[Callable[[Any], object]]]
    """Its other actions."""
    impossible: ClassVar[tuple[type[Exception], ...]]
    """The errors that the application gets where it asked for something impossible."""
    pauses: ClassVar[Sequence[float]]
    """The seconds that may pass."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.ended = False
        self.received: list[bytes] = []

    @abstractmethod
    def run(self) -> None:
        """Talk, and look at every step whether all is as it must be."""

    @abstractmethod
    def idle_streams(self) -> list[StreamT]:
        """Return the streams on which the application may do something."""

    @abstractmethod
    def check(self) -> None:
        """Hold the session to what is true at any time."""

    def saw(self, events: list[Event]) -> None:
        """Hold the events to what a connection relies on, and be that connection."""
        for event in events:
            assert isinstance(event, Event), event
            assert not self.ended, f"{event} after the end"
            self.ended = isinstance(event, SessionEnded)
        assert not self.ended or self.session.state is State.OVER
        if self.session.state is State.GATED and self.random.random() < 0.5:
            if self.random.random() < 0.9:
                self.saw(self.session.accept(self.now))
            else:
                self.saw(self.session.refuse(RejectedSetup("not today")))

    def act(self) -> None:
        """One thing that an application or its connection does, if it may be done now."""
        if self.session.state is not State.OPEN:
            return
        streams = self.idle_streams()
        try:
            if streams and self.random.random() < 0.6:
                self.random.choice(self.on_streams)(self, self.random.choice(streams))
            else:
                self.random.choice(self.on_connection)(self)
        except self.impossible:
            return

    def wait(self) -> None:
        self.now += self.random.choice(self.pauses)
        self.saw(self.session.expire(self.now))

    def check_empty(self) -> None:
        """Nothing waits once all has left."""
        outbox = self.session.outbox
        if self.session.state is State.OPEN:
            assert (outbox.size, outbox.reply_size, outbox.reply_frames, bool(outbox)) == (0, 0, 0, False)
