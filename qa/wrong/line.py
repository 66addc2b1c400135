"""A line between the tester and a right peer that spoils one kind of frame: a wrong peer of any dialect and role.

Frames are told apart by their situations, as ``a second REQUEST_N for 0 items``. A fault is a reaction to one
situation: the frame gets lost, comes back twice, ends the connection, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from typing import Final

import attrs
import trio
from trio.testing import memory_stream_pair

from qa.wrong.right import Manner
from rsocket_trio.conformance.catalogue import read_chapter
from rsocket_trio.conformance.notation import Notation
from rsocket_trio.conformance.run import Dial, Start
from rsocket_trio.conformance.streamux_notation import Streamux
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.rsocket.codec import Codec
from rsocket_trio.rsocket.dialect import DIALECTS
from rsocket_trio.rsocket.frames import ErrorFrame, Frame, RequestFrame, SetupFrame
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.schemes import parse_uri

SILENCE: Final = 0.15
"""Seconds without a frame that are a situation of their own."""
WHOLE: Final = 0.05
"""Seconds after which the beginning of a frame is passed on, although its end did not come."""
LARGE: Final = 1024
"""Bytes from which a frame counts as large."""
THE_END, THE_SILENCE, NO_FRAME = "the end", "silence", "bytes that are no frame"
BEGINS: Final = " that begins"
"""Ends the situations of a first frame that is not the usual one."""
ORDINALS: Final = ("first", "second", "third")
CONNECTION_ERROR: Final = 0x101
INVALID: Final = 0x204
OTHER_CODE: Final = 0x0F
"""The bits that are flipped in the code of an error."""


class Reaction(Enum):
    """The kinds of faults, by the verb of their name."""

    # What the tester sends
    SKIP = "skips"
    """The peer never sees the frame."""
    ADMIT = "admits"
    """The first frame is taken for the usual one."""
    REFUSE = "refuses"
    """The peer answers by an ERROR of the stream, or by one of the connection and its end."""
    LEAVE = "leaves-at"
    """The peer closes without a word."""
    # What the peer sends
    RECODE = "recodes"
    """The ERROR has another code."""
    CHANGE = "changes"
    """The last byte is another one."""
    MOVE = "moves"
    """The frame is on another stream."""
    REPEAT = "repeats"
    """The frame comes twice."""
    WITHHOLD = "withholds"
    """The frame, or the end of the connection, does not come."""
    # What nobody says
    SPEAK = "breaks"
    """An item of a stream that is not open breaks the silence."""


OF_TESTER: Final = (Reaction.SKIP, Reaction.REFUSE, Reaction.LEAVE)
OF_PEER: Final = (Reaction.RECODE, Reaction.CHANGE, Reaction.MOVE, Reaction.REPEAT, Reaction.WITHHOLD)


@attrs.frozen
class Fault:
    """One fault: the situation, and the reaction to it."""

    reaction: Reaction
    situation: str

    def __str__(self) -> str:
        return f"{self.reaction.value} {self.situation}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the fault that a text names. Raise ``ValueError`` for a reaction that is none."""
        reaction, _, situation = text.partition(" ")
        return cls(Reaction(reaction), situation)


def faults_at(situation: str) -> list[Fault]:
    """Return the faults that a situation can meet with, the gentlest first."""
    if situation == THE_SILENCE:
        kinds: tuple[Reaction, ...] = (Reaction.SPEAK, Reaction.LEAVE)
    elif situation == THE_END:
        kinds = (Reaction.WITHHOLD,)
    elif situation.startswith("its "):
        kinds = OF_PEER if "ERROR" in situation else OF_PEER[1:]
    elif situation.endswith(BEGINS):
        kinds = (Reaction.ADMIT, *OF_TESTER)
    else:
        kinds = OF_TESTER
    return [Fault(kind, situation) for kind in kinds]


class Left(Exception):
    """The peer closes the connection."""


class Frames:
    """Puts the frames of one connection into words."""

    def __init__(self, notation: Notation, role: str) -> None:
        self._notation = notation
        self._role = role
        dialect = DIALECTS.get(notation.dialect)
        self._codec: Codec | None = dialect.codec if dialect else None
        self._opened: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._usual = notation.frame("setup").value
        self._has_begun = False

    def met(self, frame: bytes, *, from_peer: bool) -> str:
        """Return the situation of a frame that passes."""
        begins = not from_peer and not self._has_begun and (self._role == "server" or not self._codec)
        if self._codec:
            words = self._words(frame, from_peer=from_peer)
        else:
            assert isinstance(self._notation, Streamux)
            words = self._chunk(self._notation, frame, is_offer=frame in self._notation.offers)
        self._has_begun |= not from_peer
        if begins:
            words += " that is the usual one" if frame == self._usual else BEGINS
        words = f"its {words}" if from_peer else words
        self._counts[words] += 1
        count = self._counts[words]
        return words if count == 1 else f"{ORDINALS[count - 1] if count <= len(ORDINALS) else 'later'} {words}"

    def _chunk(self, session: Streamux, message: bytes, *, is_offer: bool) -> str:
        """Return the words for a message of Streamux."""
        if is_offer:
            return "initialize message"
        chunk = session.parsed(message)
        known = chunk.id in self._opened
        self._opened.add(chunk.id)
        words = [("empty " * (not chunk.data)) + ("last " * chunk.last) + ("response" if chunk.response else "request")]
        words += ["that is large"] * (len(message) >= LARGE) + ["with a new id"] * (not known)
        return " ".join(words)

    def _words(self, frame: bytes, *, from_peer: bool) -> str:
        assert self._codec is not None
        header = self._codec.header(frame)
        row = self._codec.row(header.number) if header else None
        ignorable = " with I" if self._codec.ignorable(frame) else ""
        if header is None:
            return "frame without a header"
        if row is None:
            return f"frame of an unknown type{ignorable}"
        try:
            decoded = self._codec.decode(frame)
        except RemoteProtocolError:
            return f"malformed {row.name}{ignorable}"
        spare = " with spare flags" if header.flags & self._codec.spare_flags(row) else ""
        stream = self._stream(decoded, from_peer=from_peer)
        return f"{row.name}{ignorable}{spare}{self._traits(decoded, len(frame))}{stream}"

    def _traits(self, frame: Frame, size: int) -> str:
        """Return what a frame has that not every frame of its kind has."""
        found = [f"with {name}" for name in ("follows", "complete", "respond", "lease") if getattr(frame, name, False)]
        payload = getattr(frame, "payload", None)
        metadata = getattr(payload or frame, "metadata", None)
        if metadata is not None:
            found.append("with metadata" if metadata else "with empty metadata")
        data = getattr(payload or frame, "data", None)
        if data is not None and not data:
            found.append("without data")
        number = getattr(frame, "initial_n", getattr(frame, "request_n", None))
        if number is not None:
            found.append(f"for {number}" if number <= 2 else "for many")
        if isinstance(frame, ErrorFrame):
            found.append(f"of 0x{frame.code:x}")
        if isinstance(frame, SetupFrame) and frame.resume_token is not None:
            found.append("with a token")
        if size >= LARGE:
            found.append("that is large")
        return "".join(f" {one}" for one in found)

    def _stream(self, frame: Frame, *, from_peer: bool) -> str:
        """Return how a frame's stream is odd."""
        by_client = from_peer == (self._role == "client")
        stream_id, known = frame.stream_id, frame.stream_id in self._opened
        opens = isinstance(frame, RequestFrame)
        if opens:
            self._opened.add(stream_id)
        if not stream_id:
            return " on stream 0" if opens else ""
        if not opens:
            return "" if known else " on an unknown stream"
        if known:
            return " on a known stream"
        is_own = (stream_id - self._notation.first_id) % 2 != by_client
        return "" if is_own else " with an id of the other side"


class Line:
    """The line of one connection: what arrives at either end, and the situations that were met."""

    def __init__(
        self, notation: Notation, role: str, fault: Fault | None, met: set[str], manner: Manner | None = None
    ) -> None:
        self._notation = notation = notation.connected()
        self._manner = manner
        self._greeting = manner.greeting if manner else ()
        dialect = DIALECTS.get(notation.dialect)
        self._codec: Codec | None = dialect.codec if dialect else None
        self._fault = fault
        self._met = met
        self._frames = Frames(notation, role)
        self._kept = {True: b"", False: b""}
        self._is_raw = {True: False, False: False}
        self.heard = trio.current_time()
        self.tester_left = False
        """True once the tester sends nothing more: then the peer's end says nothing."""

    @property
    def end_is_owed(self) -> bool:
        """Return whether the tester waits for the end: it is still there, or has sent half a frame and said so."""
        return not self.tester_left or self._is_raw[False]

    def has_part(self, *, from_peer: bool) -> bool:
        """Return whether a part of a frame waits for its rest."""
        return bool(self._kept[from_peer])

    def reaction(self, situation: str) -> Reaction | None:
        """Return what happens in this situation that should not."""
        self._met.add(situation)
        return self._fault.reaction if self._fault and self._fault.situation == situation else None

    def pass_part(self, *, from_peer: bool) -> bytes:
        """Return the part of a frame that waits; from here on all bytes pass as they are."""
        data, self._kept[from_peer], self._is_raw[from_peer] = self._kept[from_peer], b"", True
        if from_peer or not data:
            return data
        reaction = self.reaction(NO_FRAME)
        if reaction is Reaction.LEAVE:
            raise Left
        return b"" if reaction is Reaction.SKIP else data

    def from_tester(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what goes on to the peer, and what comes back to the tester. Raise ``Left``."""
        self.heard = trio.current_time()
        if self._is_raw[False]:
            return data, b""
        frames, self._kept[False] = self._cut(self._kept[False] + data)
        on, back = b"", b""
        for frame in frames:
            reaction = self.reaction(self._frames.met(frame, from_peer=False))
            if reaction is Reaction.LEAVE:
                raise Left
            if reaction is Reaction.REFUSE:
                back += self._notation.with_length(self._refusal(frame))
            elif reaction is not Reaction.SKIP:
                admitted = self._notation.frame("setup").value if reaction is Reaction.ADMIT else frame
                on += self._notation.with_length(admitted)
            # A client that asks for leases may be requested of nothing yet.
            if frame[:6] == self._notation.frame("setup").value[:6]:
                back += b"".join(map(self._notation.with_length, self._greeting))
            self._greeting = ()
        return on, back

    def _cut(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the tester's whole frames, and what stands behind them."""
        notation = self._notation
        return notation.cut(data, 0) if isinstance(notation, Streamux) else notation.cut(data)

    def from_peer(self, data: bytes) -> bytes:
        """Return what the tester sees of it."""
        self.heard = trio.current_time()
        if self._is_raw[True]:
            return data
        frames, self._kept[True] = self._notation.cut(self._kept[True] + data)
        seen = b""
        for frame in frames:
            reaction = self.reaction(self._frames.met(frame, from_peer=True))
            if reaction is not Reaction.WITHHOLD:
                spoiled = self._spoiled(frame, reaction)
                shapes = self._manner.reshape(spoiled) if self._manner else [spoiled]
                seen += b"".join(map(self._notation.with_length, shapes))
            if reaction is Reaction.REPEAT:
                seen += self._notation.with_length(frame)
        return seen

    def unasked(self) -> bytes:
        """Return an item of a stream that nobody opened."""
        if isinstance(self._notation, Streamux):
            return self._filled("response", 1) if self._notation.is_agreed else b""
        return self._notation.with_length(self._filled("item", self._notation.first_id + 200))

    def _spoiled(self, frame: bytes, reaction: Reaction | None) -> bytes:
        layout = self._codec.layout if self._codec else None
        size = self._codec.header_size if self._codec else 1
        if reaction is Reaction.CHANGE or (reaction is Reaction.RECODE and len(frame) < size + 4):
            return frame[:-1] + bytes([frame[-1] ^ 1])
        if reaction is Reaction.RECODE:
            return frame[: size + 3] + bytes([frame[size + 3] ^ OTHER_CODE]) + frame[size + 4 :]
        if reaction is Reaction.MOVE and isinstance(self._notation, Streamux):
            widths = self._notation.agreed_widths
            number = int.from_bytes(frame[: widths.header_size], "little") ^ (1 << 2 + widths.length_bits)
            return number.to_bytes(widths.header_size + 1, "little")[:-1] + frame[widths.header_size :]
        if reaction is Reaction.MOVE:
            end = layout.stream_id.stop if layout else 1
            return frame[: end - 1] + bytes([frame[end - 1] ^ 0x40]) + frame[end:]
        return frame

    def _refusal(self, frame: bytes) -> bytes:
        """Return an ERROR of the frame's stream, or of the connection for a frame without one. Raise ``Left``."""
        if isinstance(self._notation, Streamux):
            if not self._notation.is_agreed or frame in self._notation.offers:
                raise Left
            return self._filled("response_end", self._notation.parsed(frame).id)
        header = self._codec.header(frame) if self._codec else None
        stream_id = header.stream_id if header else 0
        return self._filled("error", stream_id, INVALID) if stream_id else self._filled("failure", 0, CONNECTION_ERROR)

    def _filled(self, name: str, stream_id: int, code: int = 0) -> bytes:
        values = {"id": stream_id, "code": code}
        fields = self._notation.templates[name].fields
        return self._notation.fill(name, *[values.get(field, b"!") for field in fields]).value


async def relay(tester: trio.abc.HalfCloseableStream, peer: trio.abc.HalfCloseableStream, line: Line) -> None:
    """Pass what comes on both sides until both have ended, or the fault ends it."""
    telling, passing = trio.Lock(), trio.Lock()

    async def next_of(stream: trio.abc.HalfCloseableStream, *, from_peer: bool) -> bytes | None:
        """Return the next bytes, ``None`` if the rest of a frame does not come."""
        with trio.move_on_after(WHOLE if line.has_part(from_peer=from_peer) else float("inf")):
            try:
                return bytes(await stream.receive_some(65536))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
        return None

    async def tell(data: bytes) -> None:
        # Two tasks answer the tester: the one that reads from the peer, and the one that answers for it.
        async with telling:
            await say(tester, data)

    async def pass_on_more(data: bytes) -> None:
        on, back = line.from_tester(data)
        await tell(back)
        async with passing:
            await say(peer, on)

    async def pass_on() -> None:
        while True:
            data = await next_of(tester, from_peer=False)
            if not data:
                async with passing:
                    await say(peer, line.pass_part(from_peer=False))
            if data == b"":
                line.tester_left = True
                break
            await pass_on_more(data or b"")
        await finish(peer)

    async def pass_back() -> None:
        while True:
            data = await next_of(peer, from_peer=True)
            if not data:
                await tell(line.pass_part(from_peer=True))
            if data == b"":
                break
            await tell(line.from_peer(data or b""))
            if line.has_part(from_peer=False):
                # In Streamux it may be whole now: the peer's initialize message gives the widths.
                await pass_on_more(b"")
        if line.end_is_owed and line.reaction(THE_END) is Reaction.WITHHOLD:
            await trio.sleep_forever()
        await finish(tester)

    async def watch() -> None:
        until = line.heard + SILENCE
        while trio.current_time() < until:
            await trio.sleep_until(until)
            until = line.heard + SILENCE
        reaction = line.reaction(THE_SILENCE)
        if reaction is Reaction.LEAVE:
            raise Left
        if reaction is Reaction.SPEAK:
            await tell(line.unasked())

    async def until_left(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Left:
            nursery.cancel_scope.cancel()

    async with tester, peer, trio.open_nursery() as nursery:
        for task in (watch, pass_on, pass_back):
            nursery.start_soon(until_left, task)


async def say(stream: trio.abc.HalfCloseableStream, data: bytes) -> None:
    """Send, unless the other side is gone."""
    if data:
        try:
            await stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def finish(stream: trio.abc.HalfCloseableStream) -> None:
    """Send the end, unless the other side is gone."""
    try:
        await stream.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def connected(uri: str) -> trio.SocketStream:
    """Return a connection to a URI of TCP."""
    endpoint = parse_uri(uri)
    return await trio.open_tcp_stream(endpoint.host, endpoint.port)


def dial_spoiled(
    uri: str,
    dialect: str,
    fault: Fault | None,
    met: set[str],
    nursery: trio.Nursery,
    manner: Manner | None = None,
) -> Dial:
    """Return what opens a spoiled line to a server, run by the nursery. ``met`` collects the situations."""

    @asynccontextmanager
    async def dial() -> AsyncIterator[Transport]:
        near, far = memory_stream_pair()
        line = Line(read_chapter(dialect).notation, "server", fault, met, manner)
        nursery.start_soon(relay, far, await connected(uri), line)
        try:
            yield ByteStreamTransport(near)
        finally:
            await trio.aclose_forcefully(near)

    return dial


def start_spoiled(start: Start, fault: Fault | None, met: set[str]) -> Start:
    """Return what starts a client behind a spoiled line. ``met`` collects the situations."""

    @asynccontextmanager
    async def spoiled(
        uri: str, dialect: str, asks: str, options: Sequence[str]
    ) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        async def take(client: trio.SocketStream) -> None:
            await relay(await connected(uri), client, Line(read_chapter(dialect).notation, "client", fault, met))

        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(partial(trio.serve_tcp, take, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            async with start(f"tcp://127.0.0.1:{port}", dialect, asks, options) as end_of:
                yield end_of
            nursery.cancel_scope.cancel()

    return spoiled
