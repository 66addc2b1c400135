"""Two sessions back to back, without I/O: what one puts into its outbox the other receives."""

from __future__ import annotations

from rsocket_trio.limits import Limits
from rsocket_trio.mux.events import Event, SessionEnded, SetupReceived
from rsocket_trio.mux.framing import whole
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import RSOCKET_1_0, Dialect
from rsocket_trio.rsocket.handshake import ClientTerms
from rsocket_trio.rsocket.session import Session
from rsocket_trio.terms import Keepalive
from tests.events import one_by_one


def client_terms(*, lease: bool = False, keepalive: Keepalive | None = None) -> ClientTerms:
    return ClientTerms(
        Payload(b"hello"), "data/mime", "metadata/mime", keepalive or Keepalive(20, 90), lease=lease, strict=False
    )


class SessionPair:
    """A client's and a server's session; ``now`` is the time of both. They have met, unless ``met`` is false."""

    def __init__(
        self,
        dialect: Dialect = RSOCKET_1_0,
        *,
        lease: bool = False,
        fragment_size: int = 1000,
        limits: Limits | None = None,
        keepalive: Keepalive | None = None,
        met: bool = True,
    ) -> None:
        self.now = 0.0
        limits = Limits() if limits is None else limits
        self.client = Session(dialect, client=True, limits=limits, fragment_size=fragment_size)
        self.server = Session(dialect, client=False, limits=limits, fragment_size=fragment_size)
        self.server.start_server(grants_leases=lease)
        self.client.start_client(client_terms(lease=lease, keepalive=keepalive), self.now)
        if met:
            saw = self.exchange()[1]
            assert isinstance(saw[0], SetupReceived)
            self.server.accept(self.now)

    def move(self, sender: Session, limit: int = 65536) -> list[Event]:
        """Return what the other side sees of one write."""
        receiver = self.server if sender is self.client else self.client
        frames = [whole(frame) for frame in sender.outbox.take(limit)]
        return [*one_by_one(receiver.receive(frames, self.now))] if frames else []

    def exchange(self) -> tuple[list[Event], list[Event]]:
        """Everything that waits, both ways, until nothing does: what the client saw, and what the server saw."""
        client_saw: list[Event] = []
        server_saw: list[Event] = []
        while self.client.outbox or self.server.outbox:
            server_saw += self.move(self.client)
            client_saw += self.move(self.server)
        return client_saw, server_saw

    def assert_quiet(self) -> None:
        """Neither side holds anything."""
        for session in (self.client, self.server):
            assert session.is_quiet, session.open_streams()
            assert session.table.reassembling == 0
            assert (session.outbox.size, session.outbox.reply_size, session.outbox.reply_frames) == (0, 0, 0)
            assert not session.outbox

    def end(self) -> list[SessionEnded]:
        """The ends that either side has reported."""
        return [event for saw in self.exchange() for event in saw if isinstance(event, SessionEnded)]
