"""The cost of each piece of the hot path alone, in nanoseconds of CPU: the best of several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable

from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import Framing24, whole
from rsocket_trio.mux.outbox import Outbox
from rsocket_trio.mux.stream_state import Interaction, StreamQueue
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import RSOCKET_1_0
from rsocket_trio.rsocket.frames import PayloadFrame
from rsocket_trio.rsocket.handshake import ClientTerms
from rsocket_trio.rsocket.session import Session
from rsocket_trio.terms import Keepalive

ROUNDS = 7
LOOPS = 200
BATCH = 128
"""Frames that one chunk or one write holds."""
ITEM = Payload(bytes(64))
CODEC = RSOCKET_1_0.codec


def sessions() -> tuple[Session, Session]:
    """A client's and a server's, past their SETUP."""
    client, server = (
        Session(RSOCKET_1_0, client=client, limits=Limits(), fragment_size=65_536) for client in (True, False)
    )
    server.start_server(grants_leases=False)
    terms = ClientTerms(Payload(b""), "text/plain", "text/plain", Keepalive(), lease=False, strict=False)
    client.start_client(terms, 0.0)
    move(client, server)
    server.accept(0.0)
    return client, server


def move(sender: Session, receiver: Session) -> None:
    """Move the frames that one session has to send to the other."""
    receiver.receive([whole(frame) for frame in sender.outbox.take()], 0.0)


def encode() -> None:
    frame = PayloadFrame(5, ITEM)
    for _ in range(BATCH):
        CODEC.encode_parts(frame)


def decode() -> None:
    for _ in range(BATCH):
        CODEC.decode(ENCODED)


def cut() -> None:
    FRAMING.feed(CHUNK)


def join() -> None:
    FRAMING.join(FRAMES)


def queue() -> None:
    for _ in range(BATCH):
        OUTBOX.put(LANE, ENCODED)
    OUTBOX.take()


def request() -> None:
    """Requests of one tick, and their answers: rules only, no tasks."""
    client, server = PAIR
    for _ in range(BATCH):
        client.commands.open(Interaction.REQUEST_RESPONSE, ITEM)
    move(client, server)
    for stream in list(server.open_streams()):
        server.commands.send_item(stream, ITEM, complete=True)
    move(server, client)


ENCODED = CODEC.encode(PayloadFrame(5, ITEM))
FRAMES = [ENCODED] * BATCH
FRAMING = Framing24()
CHUNK = FRAMING.join(FRAMES)
OUTBOX = Outbox(2**22, lambda lane: None)
LANE = StreamQueue()
PAIR = sessions()
PIECES: dict[str, Callable[[], None]] = {
    "encode a payload frame": encode,
    "decode a payload frame": decode,
    "cut a frame out of a chunk": cut,
    "join a frame into a write": join,
    "queue a frame and take it": queue,
    "request and answer, both sessions": request,
}


def main(loops: int = LOOPS) -> dict[str, float]:
    """Print and return the nanoseconds of each piece."""
    figures: dict[str, float] = {}
    for name, piece in PIECES.items():
        piece()
        best = min(timed(piece, loops) for _ in range(ROUNDS))
        figures[name] = best / loops / BATCH
        print(f"{name:36} {figures[name]:8.0f} ns", flush=True)
    return figures


def timed(piece: Callable[[], None], loops: int) -> int:
    """Nanoseconds of CPU of so many calls."""
    begun = time.process_time_ns()
    for _ in range(loops):
        piece()
    return time.process_time_ns() - begun


if __name__ == "__main__":
    main()
