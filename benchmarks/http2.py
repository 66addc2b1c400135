"""The cost of a connection over HTTP/2 beside one over TCP, and of h2 alone for the same bytes."""

from __future__ import annotations

import time
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived

from benchmarks import harness
from benchmarks.comparing import Runs, interleaved
from benchmarks.libraries import OURS
from benchmarks.markdown import NO, YES, command, cpu, spread, table
from benchmarks.workloads import BY_NAME, OPERATIONS

BAR = 1.8
"""The most CPU seconds that a workload may take, in ratio to TCP."""
NAMES = ("rr64", "stream", "bulk")
SCHEMES = ("tcp", "h2")
ALONE = (1_024, 16_384, 65_536)
"""Bytes of a DATA frame that h2 moves alone, in memory."""
ROUNDS = 2_000


def main(repeat: int) -> dict[str, Any]:
    """Run the workloads over both, in turn; then move bytes through two connections of h2."""
    columns = {name: list(SCHEMES) for name in NAMES}
    runs: Runs = interleaved(columns, repeat, lambda name, scheme: harness.run(OURS.name, name, scheme))
    alone = {str(size): [h2_alone(size) for _ in range(repeat)] for size in ALONE}
    for size, costs in alone.items():
        print(f"h2 alone, DATA frames of {size} B: {harness.middle(costs):.1f} us a frame, both ends")
    return {"runs": runs, "alone": alone}


def h2_alone(size: int) -> float:
    """Return the CPU microseconds that h2 takes to send, receive and acknowledge a DATA frame of ``size`` bytes."""
    client, server = connected()
    data = bytes(size)
    begun = time.process_time()
    for _ in range(ROUNDS):
        client.send_data(1, data)
        for event in server.receive_data(client.data_to_send()):
            if isinstance(event, DataReceived):
                server.acknowledge_received_data(event.flow_controlled_length or 0, 1)
        if updates := server.data_to_send():
            client.receive_data(updates)
    return (time.process_time() - begun) / ROUNDS * 1e6


def connected() -> tuple[H2Connection, H2Connection]:
    """Return a client and a server of h2 with one open stream, and windows and frames of 1 MiB."""
    client, server = (H2Connection(H2Configuration(client_side=side)) for side in (True, False))
    for each in (client, server):
        each.initiate_connection()
        each.update_settings({4: 1 << 20, 5: 1 << 20})
        each.increment_flow_control_window(1 << 20)
    for _ in range(2):
        server.receive_data(client.data_to_send())
        client.receive_data(server.data_to_send())
    client.send_headers(1, [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "a")])
    server.receive_data(client.data_to_send())
    server.send_headers(1, [(":status", "200")])
    client.receive_data(server.data_to_send())
    return client, server


def written(figures: dict[str, Any]) -> list[str]:
    """HTTP/2 beside TCP."""
    of = figures["http2"]
    rows = []
    for name, runs in of["runs"].items():
        tcp, h2 = (cpu(runs, scheme) for scheme in SCHEMES)
        ratio = harness.middle(h2) / harness.middle(tcp)
        met = YES if ratio <= BAR else NO
        rows.append([f"{BY_NAME[name].label} {BY_NAME[name].what}", spread(tcp), spread(h2), f"**{ratio:.2f}**", met])
    alone = [[f"DATA frame of {int(size):,} B", f"{harness.middle(costs):.1f}"] for size, costs in of["alone"].items()]
    return [
        "## Over HTTP/2",
        (
            f"CPU seconds of {OPERATIONS:,} operations, both ends, one connection alone on its HTTP/2 connection; at "
            f"most {BAR:g} times those of TCP. DATA frames are cut and made without h2, which handles all others."
        ),
        table(["workload", "TCP, CPU s", "HTTP/2, CPU s", "ratio", "met"], rows),
        "CPU microseconds that h2 alone takes for a frame, in memory: sent, received and acknowledged.",
        table(["", "CPU us"], alone),
        command("http2"),
    ]
