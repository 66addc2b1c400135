"""The connection's frames in the draft: keepalives, leases and applications' entries travel in EXT frames."""

from __future__ import annotations

from rsocket_trio.errors import Invalid, LocalProtocolError, Rejected, RemoteProtocolError
from rsocket_trio.mux.events import EntriesReceived
from rsocket_trio.rsocket.connection_frames import ConnectionFrames, Events, UnreadRequest
from rsocket_trio.rsocket.extensions.entries import (
    AT_EXT,
    REQUESTS_COUNT,
    Beat,
    MalformedExtension,
    Permits,
    ResumePosition,
    UnknownExtension,
    entry_of,
)
from rsocket_trio.rsocket.frames import ExtensionEntry, ExtFrame, Frame, KeepaliveFrame, LeaseFrame, RequestFrame
from rsocket_trio.rsocket.layouts.v2_0_draft import EXTENSION_BLOCK
from rsocket_trio.rsocket.resume_protocol import ResumeHandshake

BLOCK_ERRORS = (UnknownExtension, MalformedExtension)
REPORTS = 4
"""The number of times within one store that the peer is told this side's position."""
OURS = (Beat, Permits, ResumePosition)
"""The contents of an EXT's entries that concern the session and no application."""


class EntryFrames(ConnectionFrames):
    """The same frames; those of EXT's one type that has entries are read here, and sent instead of others."""

    __slots__ = ()

    def beat(self, frame: KeepaliveFrame) -> Frame:
        """RSX-KA-05: a peer that does not know the extension may ignore it."""
        return _block(entry_of(Beat(frame.respond, frame.data), ignore=True), ignore=True)

    def lease(self, frame: LeaseFrame) -> Frame:
        """RSX-LEASE-04: both sides have agreed on the one strategy."""
        return _block(entry_of(Permits(REQUESTS_COUNT, frame.time_to_live_ns, frame.number_of_requests)))

    def report_position(self) -> None:
        """RSX-RES-05: after every quarter of the store."""
        positions = self.positions
        if positions is not None and positions.unreported * REPORTS >= positions.options.store_bytes:
            self._put_position(positions)

    def _put_position(self, positions: ResumeHandshake) -> None:
        positions.unreported = 0
        self._outbox.put_signal(self._dialect.codec.encode(_block(entry_of(ResumePosition(positions.received)))))

    def entries(self, entries: tuple[ExtensionEntry, ...], *, ignore: bool) -> None:
        frame = ExtFrame(0, EXTENSION_BLOCK, ignore=ignore, extensions=entries)
        self._outbox.put(self._pushes, self._dialect.codec.encode(frame))

    def extension(self, ext_type: int, body: bytes, *, ignore: bool) -> None:
        if ext_type == EXTENSION_BLOCK:
            raise LocalProtocolError(f"EXT of type {EXTENSION_BLOCK} has extension entries here, and no other body")
        super().extension(ext_type, body, ignore=ignore)

    def receive(self, frame: Frame, now: float) -> Events:
        if isinstance(frame, ExtFrame) and frame.ext_type == EXTENSION_BLOCK:
            return self._on_block(frame, now)
        return super().receive(frame, now)

    def is_for_session(self, data: bytes) -> bool:
        try:
            frame = self._dialect.codec.decode(data)
        except RemoteProtocolError:
            return True
        return isinstance(frame, ExtFrame) and frame.ext_type == EXTENSION_BLOCK and not _others(frame)

    def unread_request(self, data: bytes, error: RemoteProtocolError) -> UnreadRequest | None:
        """Return the answer to a request whose extension block can't be read (RSX-TLV-07, RSX-TLV-08)."""
        codec = self._dialect.codec
        header = codec.header(data)
        row = None if header is None else header.row
        if header is None or row is None or row.frame is not RequestFrame or not isinstance(error, BLOCK_ERRORS):
            return None
        answer = Rejected if isinstance(error, UnknownExtension) else Invalid
        return header.stream_id, row.interaction, answer.default_code, str(error)

    def _on_block(self, frame: ExtFrame, now: float) -> Events:
        if frame.stream_id:
            return self._ignore(frame, now)  # ALL-RCT-07
        events: Events = ()
        for entry in frame.extensions:
            content = AT_EXT.read(entry)
            if isinstance(content, Beat):
                events += self._on_beat(content)
            elif isinstance(content, Permits):
                events += self._on_permits(content, now)
            elif isinstance(content, ResumePosition) and self.positions is not None:
                self.positions.confirmed(content.last_received_position)
        others = _others(frame)
        return (*events, EntriesReceived(others)) if others else events

    def _on_beat(self, beat: Beat) -> Events:
        if not beat.respond:
            return self._pong(beat.data)
        self.established = True
        if self.positions is not None:
            self._put_position(self.positions)
        self._outbox.put_reply(self._dialect.codec.encode(self.beat(KeepaliveFrame(False, 0, beat.data))))
        return ()

    def _on_permits(self, permits: Permits, now: float) -> Events:
        self.established = True
        if permits.strategy != REQUESTS_COUNT:
            self.ignored += 1  # It was not selected.
            return ()
        return self._on_lease(LeaseFrame(permits.time_to_live_ns, permits.number), now)


def _block(entry: ExtensionEntry, *, ignore: bool = False) -> ExtFrame:
    return ExtFrame(0, EXTENSION_BLOCK, ignore=ignore, extensions=(entry,))


def _others(frame: ExtFrame) -> tuple[ExtensionEntry, ...]:
    return tuple(entry for entry in frame.extensions if not isinstance(AT_EXT.read(entry), OURS))
