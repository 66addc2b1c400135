"""A small capture whose every byte is written by hand: what it means is known, so others can be held to it.

``build`` writes it as files. Two runs captured it: ``client``, which has two connections (one is resumed), and
``server``, the other end of the second one, where everything is seen 150 us later, or earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rsocket_trio.capture.buffer import CLOSED, OPENED, OVER, RECEIVED, SENT, BufferEntry, FrameBuffer, Recorded
from rsocket_trio.capture.connection_decoder import CapturedFrame
from rsocket_trio.capture.rows import CaptureOrigin, Row
from rsocket_trio.capture.rsocket_decoder import ConnectionTracker
from rsocket_trio.capture.writers import FORMATS, TableWriter
from rsocket_trio.mux.framing import Facts

START_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z."""
COMPOSITE = b"message/x.rsocket.composite-metadata.v0"
JSON = b"application/json"
MIMES = b"\x27" + COMPOSITE + b"\x10" + JSON
TRACE = bytes(range(16))
LATENCY = 150
"""Microseconds between the two ends."""

# fmt: off
SETUP         = bytes.fromhex("00000000 0440 0001 0000 00004e20 00015f90") + MIMES
SETUP_RESUME  = bytes.fromhex("00000000 0480 0001 0000 00004e20 00015f90 0004") + b"able" + MIMES
LEASE         = bytes.fromhex("00000000 0800 00002710 00000006")
GET_1         = bytes.fromhex("00000001 1100 00002c fe00000b0a") + b"orders.get" + bytes.fromhex("fd000019 e8") \
                + TRACE + b"span-id!" + b"12345"
PAYLOAD_1     = bytes.fromhex("00000001 2860") + b"0123456789"
TICKS_3       = bytes.fromhex("00000003 1900 00000002 00000a fe00000605") + b"ticks"
ITEM_3        = bytes.fromhex("00000003 2820") + b"tick"
MORE_3        = bytes.fromhex("00000003 2000 00000002")
LAST_3        = bytes.fromhex("00000003 2860") + b"tock"
GET_5         = bytes.fromhex("00000005 1100 00000f fe00000b0a") + b"orders.get"
ERROR_5       = bytes.fromhex("00000005 2c00 00000201") + b"no such order"
PUT_7         = bytes.fromhex("00000007 1100 00000f fe00000b0a") + b"orders.put"
REJECTED_7    = bytes.fromhex("00000007 2c00 00000202") + b"busy"
TICKS_9       = bytes.fromhex("00000009 1900 0000000a 00000a fe00000605") + b"ticks"
CANCEL_9      = bytes.fromhex("00000009 2400")
LATE_9        = bytes.fromhex("00000009 2820") + b"late"
LOG_11        = bytes.fromhex("0000000b 1580 000008 fe00000403") + b"log" + b"half"
REST_11       = bytes.fromhex("0000000b 2820") + b"rest"
PING          = bytes.fromhex("00000000 0c80 0000000000000000")
PONG          = bytes.fromhex("00000000 0c00 0000000000000000")
GET_13        = bytes.fromhex("0000000d 1100 00000f fe00000b0a") + b"orders.get"
DENIED_13     = bytes.fromhex("0000000d 2c00 00000202") + b"no lease for this request"
CHANNEL_15    = bytes.fromhex("0000000f 1c00 00000001") + b"hi"

FEED_1        = bytes.fromhex("00000001 1900 00000005 000009 fe00000504") + b"feed"
FEED_ITEM_1   = bytes.fromhex("00000001 2820") + b"one"
FEED_MORE_1   = bytes.fromhex("00000001 2000 00000003")
FEED_LAST_1   = bytes.fromhex("00000001 2860") + b"two"
RESUME        = bytes.fromhex("00000000 3400 0001 0000 0004") + b"able" \
                + bytes.fromhex("0000000000000009 0000000000000000")
RESUME_OK     = bytes.fromhex("00000000 3800 0000000000000016")

# When, in us, on which connection, what.
CLIENT: tuple[tuple[int, str, int, object], ...] = (
    (     0, "a",  OPENED,   Facts("client", "rsocket/1.0", "tcp", "127.0.0.1:7878")),
    (    10, "a",  SENT,     [SETUP]),
    (  1000, "a",  RECEIVED, [LEASE]),
    (  2000, "a",  SENT,     [GET_1]),
    (  2800, "a",  RECEIVED, [PAYLOAD_1]),
    (  3000, "a",  SENT,     [TICKS_3]),
    (  3500, "a",  RECEIVED, [ITEM_3]),
    (  4000, "a",  RECEIVED, [ITEM_3]),
    (  6000, "a",  SENT,     [MORE_3]),
    (  6500, "a",  RECEIVED, [LAST_3]),
    (  7000, "a",  SENT,     [GET_5]),
    (  7900, "a",  RECEIVED, [ERROR_5]),
    (  8000, "a",  SENT,     [PUT_7]),
    (  8400, "a",  RECEIVED, [REJECTED_7]),
    (  8500, "a",  SENT,     [TICKS_9]),
    (  9000, "a",  SENT,     [CANCEL_9]),
    (  9100, "a",  RECEIVED, [LATE_9]),
    (  9200, "a",  SENT,     [LOG_11, REST_11]),
    ( 10000, "a",  SENT,     [PING]),
    ( 10300, "a",  RECEIVED, [PONG]),
    ( 10500, "a",  SENT,     [GET_13]),
    ( 10700, "a",  RECEIVED, [DENIED_13]),
    ( 10800, "a",  SENT,     [CHANNEL_15]),
    ( 20000, "a",  CLOSED,   "the peer closed the transport"),
    ( 20000, "a",  OVER,     "the peer closed the transport"),

    # FEED_MORE_1, 10 bytes, was sent and lost: RESUME_OK says 22, which are those of FEED_1.
    ( 30000, "b1", OPENED,   Facts("client", "rsocket/1.0", "tcp", "127.0.0.1:7979")),
    ( 30000, "b1", SENT,     [SETUP_RESUME, FEED_1]),
    ( 31000, "b1", RECEIVED, [FEED_ITEM_1]),
    ( 32000, "b1", SENT,     [FEED_MORE_1]),
    ( 32000, "b1", CLOSED,   "the transport broke: connection reset"),
    ( 40000, "b2", OPENED,   Facts("client", "rsocket/1.0", "tcp", "127.0.0.1:7979")),
    ( 40000, "b2", SENT,     [RESUME]),
    ( 41000, "b2", RECEIVED, [RESUME_OK]),
    ( 41100, "b2", SENT,     [FEED_MORE_1]),
    ( 42000, "b2", RECEIVED, [FEED_LAST_1]),
    ( 43000, "b2", CLOSED,   "the connection was closed by this side"),
    ( 43000, "b1", OVER,     "the connection was closed by this side"),
)
# fmt: on


def at_the_server() -> Iterator[tuple[int, str, int, object]]:
    """The other end of the second connection: what the client has sent or received there, but for what was lost."""
    for us, name, kind, what in CLIENT:
        if name != "a" and (us, kind) != (32000, SENT):
            there = {SENT: RECEIVED, RECEIVED: SENT}.get(kind, kind)
            facts = Facts("server", "rsocket/1.0", "tcp", f"127.0.0.1:5000{name[1]}")
            yield us + (-LATENCY if kind == RECEIVED else LATENCY), name, there, facts if kind == OPENED else what


def rows(name: str = "client") -> dict[str, list[Row]]:
    """The rows of one of the two runs, by table. Connections are named after the run: ``client-0``, ``client-1`` ..."""
    numbers = iter(range(100))
    tracker = ConnectionTracker(
        CaptureOrigin(f"{name}-capture", f"{name}-host", START_US, 0), lambda: f"{name}-{next(numbers)}"
    )
    for entry in entries(CLIENT if name == "client" else at_the_server()):
        tracker.see(entry)
    assert not len(tracker), "every connection has come to its end"
    return tracker.take()


def entries(conversation: Iterable[tuple[int, str, int, object]]) -> Iterator[BufferEntry]:
    """Return the bytes that recorders would have put into the buffer."""
    buffer = FrameBuffer(1000, 1_000_000, lambda: None)
    sources: dict[str, Recorded] = {}
    for us, name, kind, what in conversation:
        if isinstance(what, Facts):
            sources[name] = Recorded(buffer, what)
        kept: list[CapturedFrame] = what if isinstance(what, list) else []
        text = what if isinstance(what, str) else ""
        yield BufferEntry(sources[name], kind, us * 1000, kept, sum(map(len, kept)), 0, text)


def build(directory: Path, format: str = "parquet") -> Path:
    """Write both runs as a capture would, and return the directory."""
    for name in ("client", "server"):
        for table, content in rows(name).items():
            writer = TableWriter(directory, table, FORMATS[format], name, 2**26, 60.0)
            writer.add(content, 0.0)
            writer.complete()
    return directory
