"""Each dialect's own bytes: the same conversation, written by hand, comes to the same rows."""

from __future__ import annotations

from rsocket_trio.capture.schema import type_names
from rsocket_trio.connection.protocols import ALL
from tests.capture.reading import Script
from tests.each_row import each_row

ROUTING = b"message/x.rsocket.routing.v0".hex()
MIMES = f"1c {ROUTING} 0a {b'text/plain'.hex()}"

# fmt: off
NEW = {  # 1.0, 0.2 and the extension draft have all but the SETUP in common
    "ask":     "00000001 1100 000002 0161 71",
    "answer":  "00000001 2860 6f6b",
    "stream":  "00000003 1900 00000002 000002 0162",
    "item":    "00000003 2820 6f6e65",
    "more":    "00000003 2000 00000003",
    "error":   "00000003 2c00 00000201 6e6f",
    "again":   "00000005 1900 00000002 000002 0162",
    "cancel":  "00000005 2400",
}
BYTES = {
    "rsocket/1.0":        {"setup": f"00000000 0400 0001 0000 000003e8 00000bb8 {MIMES} 6869"} | NEW,
    "reactivesocket/0.2": {"setup": f"00000000 0400 0000 0002 000003e8 00000bb8 {MIMES} 6869"} | NEW,
    "rsocket/2.0-draft":  {"setup": "00000000 0600 0a 746578742f706c61696e 1c" + ROUTING
                                    + "000200008140 000008 000003e8 00000bb8 6869"} | NEW,
    "reactivesocket/0.1": {
        "setup":  f"0001 0000 00000000 0000 0001 000003e8 00000bb8 {MIMES} 6869",
        "ask":    "0004 4000 00000002 00000006 0161 71",
        "answer": "000b 1000 00000002 6f6b",
        "stream": "0006 4000 00000004 00000002 00000006 0162",
        "item":   "000b 0000 00000004 6f6e65",
        "more":   "0009 0000 00000004 00000003",
        "error":  "000c 0000 00000004 00000201 6e6f",
        "again":  "0006 4000 00000006 00000002 00000006 0162",
        "cancel": "000a 0000 00000006",
    },
    "reactivesocket/0.0": {
        "setup":  f"0000 0001 0000000000000000 {MIMES} 6869",
        "ask":    "0040 0011 0000000000000002 00000006 0161 71",
        "answer": "0010 0020 0000000000000002 6f6b",
        "stream": "0040 0013 0000000000000004 0000000000000002 00000006 0162",
        "item":   "0000 0020 0000000000000004 6f6e65",
        "more":   "0000 0015 0000000000000004 0000000000000003",
        "error":  "0000 0021 0000000000000004 6e6f",
        "again":  "0040 0013 0000000000000006 0000000000000002 00000006 0162",
        "cancel": "0000 0016 0000000000000006",
    },
}
# fmt: on


@each_row("dialect", BYTES)
def test_a_conversation_comes_to_the_same_rows_in_every_dialect(dialect: str) -> None:
    frames = {name: bytes.fromhex(text) for name, text in BYTES[dialect].items()}
    script = Script(dialect)
    script.sent(frames["setup"], at=10)
    script.sent(frames["ask"], at=20)
    script.received(frames["answer"], at=30)
    script.sent(frames["stream"], at=40)
    script.received(frames["item"], at=50)
    script.sent(frames["more"], at=60)
    script.received(frames["error"], at=70)
    script.sent(frames["again"], frames["cancel"], at=80)
    script.closed()
    rows, streams, [connection] = script.rows()

    assert [(row["route"], row["interaction"], row["outcome"], row["total_us"]) for row in streams] == [
        ("a", "request_response", "complete", 10),
        ("b", "request_stream", "error", 30),
        ("b", "request_stream", "cancel", 0),
    ]
    assert [(row["n_in"], row["n_out"], row["requested_n"], row["error_code"]) for row in streams] == [
        (1, 1, None, None),
        (1, 1, 5, 0x201),
        (0, 1, 2, None),
    ]
    assert [row["credit_after"] for row in rows if row["stream_id"] == rows[3]["stream_id"]] == [2, 1, 4, None]
    assert [row["frame_bytes"] for row in rows] == [len(frame) for frame in frames.values()]
    assert connection["data_mime"] == "text/plain"
    assert connection["keepalive_interval_ms"] == (0 if dialect == "reactivesocket/0.0" else 1000)
    names = type_names(dialect)
    assert [names[row["frame_type"]].removeprefix("REQUEST_") for row in rows[1:6:2]] == ["RESPONSE", "STREAM", "N"]


def test_of_streamux_the_sizes_are_known() -> None:
    script = Script("streamux/1")
    script.sent(bytes.fromhex("01287a2a4e"), (bytes.fromhex("090005"), 2), at=10)
    script.received(bytes.fromhex("011692a1ea") + bytes.fromhex("0e00"), dropped=2, at=20)
    script.closed()
    rows, streams, [connection] = script.rows()

    assert [(row["dir"], row["frame_bytes"], row["stream_id"]) for row in rows] == [
        ("out", 5, None),
        ("out", 5, None),
        ("in", 7, None),
    ]
    assert streams == []
    assert (connection["bytes_in"], connection["bytes_out"], connection["drop_count"]) == (7, 10, 2)


def test_every_dialect_is_tried_here() -> None:
    assert {*BYTES, "streamux/1"} == set(ALL)
