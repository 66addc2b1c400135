"""A server that bounds nothing, to judge the judge: it keeps every byte, closes nobody, and answers the probe.

It is told apart by what it is asked for: a ``delay`` before each answer, or bytes that it ``logs`` per connection.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from typing import Any

KEPT: list[bytes] = []


def main(options: dict[str, Any]) -> None:
    """Serve until the standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(json.dumps([f"tcp://127.0.0.1:{listener.getsockname()[1]}"]), flush=True)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(0, selectors.EVENT_READ)
    clients: list[socket.socket] = []
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                client, _ = listener.accept()
                clients.append(client)
                waiting.register(client, selectors.EVENT_READ)
                if options.get("logs"):
                    print("x" * options["logs"], file=sys.stderr, flush=True)
            elif key.fileobj == 0:
                orders = os.read(0, 65536)
                if not orders:
                    return
                for _ in orders.splitlines():
                    print(json.dumps({"tasks": len(clients)}), flush=True)
            else:
                assert isinstance(key.fileobj, socket.socket)
                answer(key.fileobj, waiting, options)


def answer(client: socket.socket, waiting: selectors.BaseSelector, options: dict[str, Any]) -> None:
    try:
        data = client.recv(65536)
    except ConnectionError:
        data = b""
    if not data:
        waiting.unregister(client)  # and never closed
        return
    KEPT.append(data)
    if data[-73:-64].startswith(b"\x00\x00\x46") and data[-66:-65] == b"\x10":
        time.sleep(options.get("delay", 0))
        client.sendall(data[-73:-66] + b"\x28\x60" + data[-64:])


main(json.loads(sys.argv[1]))
