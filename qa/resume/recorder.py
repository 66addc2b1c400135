"""Records the frames between two peers, and checks that retransmitted ones are the same and positions agree."""

from __future__ import annotations

import hashlib
from collections import deque

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.extensions.entries import AT_OK, ResumeGrant
from rsocket_trio.rsocket.extensions.terms import content_at
from rsocket_trio.rsocket.frames import ResumeOkFrame, SetupOkFrame
from rsocket_trio.rsocket.resume_protocol import resume_request

CLIENT, SERVER = "client", "server"
"""The side whose bytes these are."""
KEEPALIVE = 0x03
TRACKED = range(0x04, 0x0C)
DIGEST = 12


def other(side: str) -> str:
    """The other side."""
    return SERVER if side == CLIENT else CLIENT


@attrs.define(eq=False)
class _Way:
    """One direction of one connection: bytes read, and bytes passed on."""

    cursor: int | None
    buffer: bytearray = attrs.field(factory=bytearray)
    read: int = 0
    passed: int = 0
    ends: deque[tuple[int, int]] = attrs.field(factory=deque)


class Recorder:
    """Follows all connections of one session. ``complaints`` is empty as long as the rules of resumption hold."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._frames: dict[str, dict[int, tuple[int, bytes]]] = {CLIENT: {}, SERVER: {}}
        self._ways: dict[tuple[int, str], _Way] = {}
        self._told = {CLIENT: 0, SERVER: 0}
        self._claims: dict[int, int] = {}
        self.arrived = {CLIENT: 0, SERVER: 0}
        """The position that each side's frames got to on their way, at the most."""
        self.firsts: dict[tuple[int, str], int] = {}
        """The bytes of each connection's first frame in either direction, prefix included."""
        self.comebacks: list[bytes] = []
        """The RESUME of each return of the client, as the other end got it."""
        self.resumed = 0
        self.again = 0
        self.complaints: list[str] = []

    def saw(self, connection: int, side: str, data: bytes) -> None:
        """A side sent bytes."""
        way = self._way(connection, side)
        way.buffer += data
        while len(way.buffer) >= 3:
            size = 3 + int.from_bytes(way.buffer[:3], "big")
            if len(way.buffer) < size:
                return
            frame = bytes(way.buffer[3:size])
            del way.buffer[:size]
            is_first = way.read == 0
            way.read += size
            self._frame(connection, side, way, frame, is_first=is_first)

    def passed(self, connection: int, side: str, size: int) -> None:
        """So many bytes of a side were passed on."""
        way = self._way(connection, side)
        way.passed += size
        while way.ends and way.ends[0][0] <= way.passed:
            position = way.ends.popleft()[1]
            self.arrived[side] = max(self.arrived[side], position)

    def _way(self, connection: int, side: str) -> _Way:
        return self._ways.setdefault((connection, side), _Way(None))

    def _frame(self, connection: int, side: str, way: _Way, frame: bytes, *, is_first: bool) -> None:
        if is_first:
            self.firsts[connection, side] = 3 + len(frame)
            self._first(connection, side, way, frame)
        kind, stream_id = frame[4] >> 2, int.from_bytes(frame[:4], "big")
        if kind == KEEPALIVE and not self._dialect.entries:
            self._claim("KEEPALIVE", side, int.from_bytes(frame[6:14], "big"))
        if kind not in TRACKED or stream_id == 0:
            return
        if way.cursor is None:
            self.complaints.append(f"the {side} sent frames before the session went on")
            return
        self._compare(side, way.cursor, frame)
        way.cursor += len(frame)
        way.ends.append((way.read, way.cursor))

    def _compare(self, side: str, position: int, frame: bytes) -> None:
        """Check that a frame that is sent again at this position is the one sent before."""
        digest = hashlib.blake2b(frame, digest_size=DIGEST).digest()
        known = self._frames[side].setdefault(position, (len(frame), digest))
        if known == (len(frame), digest):
            self.again += position + len(frame) <= self._told[side]
        else:
            self.complaints.append(f"at {position} the {side} sent other bytes than before")
        self._told[side] = max(self._told[side], position + len(frame))

    def _first(self, connection: int, side: str, way: _Way, frame: bytes) -> None:
        """The first frame on a connection: a session begins or goes on."""
        if side == CLIENT:
            back = resume_request(self._dialect, frame)
            if back is None:
                if connection == 0 or not self._told[CLIENT]:
                    way.cursor = 0
                    self._way(connection, SERVER).cursor = 0
                return
            self.comebacks.append(frame)
            self._claims[connection] = back.last_received_server_position
            self._claim("RESUME", CLIENT, back.last_received_server_position)
        elif connection in self._claims:
            position = self._granted(frame)
            if position is None:
                return
            self.resumed += 1
            self._claim("RESUME_OK", SERVER, position)
            way.cursor = self._claims[connection]
            self._way(connection, CLIENT).cursor = position

    def _granted(self, frame: bytes) -> int | None:
        try:
            answer = self._dialect.codec.decode(frame)
        except RemoteProtocolError:
            return None
        if isinstance(answer, ResumeOkFrame):
            return answer.last_received_client_position
        if isinstance(answer, SetupOkFrame):
            grant = content_at(AT_OK, answer.extensions, ResumeGrant)
            return grant.last_received_client_position if isinstance(grant, ResumeGrant) else None
        return None

    def _claim(self, frame: str, side: str, position: int) -> None:
        """A side says how far it got in what the other one sends."""
        sender = other(side)
        if position > self.arrived[sender]:
            self.complaints.append(f"{frame}: the {side} has {position}, but only {self.arrived[sender]} arrived")
        if position not in self._frames[sender] and position != self._told[sender]:
            self.complaints.append(f"{frame}: no frame of the {sender} begins at {position}")
