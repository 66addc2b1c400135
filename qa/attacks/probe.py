"""The well-behaved client: one request of 64 bytes every 20 ms on a connection of its own, written by hand.

A program without imports of ours, so that it starts quickly and costs nothing. It writes ``ready`` after its first
answer; once its standard input ends it writes its figures, in JSON.
"""

from __future__ import annotations

import json
import select
import socket
import statistics
import struct
import sys
import time

EVERY = 0.02
PATIENCE = 30.0
MIME = b"application/octet-stream"
DATA = bytes(range(64))


def framed(stream_id: int, kind: int, flags: int, body: bytes) -> bytes:
    return (6 + len(body)).to_bytes(3, "big") + struct.pack(">IH", stream_id, kind << 10 | flags) + body


def whole(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the server closed the probe's connection")
        data += chunk
    return data


def main(port: int) -> None:
    """Probe until the standard input ends, or until an answer is wrong or missing."""
    took: list[float] = []
    failure = ""
    mime = bytes([len(MIME)]) + MIME
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(framed(0, 1, 0, struct.pack(">HHII", 1, 0, 1_000_000, 10_000_000) + mime + mime))
        stream_id, due = 1, time.perf_counter()
        try:
            while True:
                asked = time.perf_counter()
                connection.sendall(framed(stream_id, 4, 0, DATA))
                if whole(connection, 73) != framed(stream_id, 10, 0x60, DATA):
                    raise ConnectionError("a wrong answer")
                took.append(time.perf_counter() - asked)
                if len(took) == 1:
                    print("ready", flush=True)
                stream_id += 2
                due = max(due + EVERY, time.perf_counter())
                if select.select([sys.stdin], [], [], max(0.0, due - time.perf_counter()))[0]:
                    break
        except OSError as error:
            failure = str(error) or type(error).__name__
    figures = {"count": len(took), "failure": failure, "median": statistics.median(took), "worst": max(took)}
    print(json.dumps(figures), flush=True)


main(int(sys.argv[1]))
