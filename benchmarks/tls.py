"""The cost of TLS: this library, rsocket-py and grpcio with the same certificate, and this library without TLS."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trustme

from benchmarks import harness
from benchmarks.comparing import described, interleaved
from benchmarks.libraries import BY_LIBRARY, OURS, THEIRS
from benchmarks.markdown import NO, YES, command, cpu, spread, table
from benchmarks.peers.secured import AUTHORITY, CHAIN, KEY, WORD
from benchmarks.workloads import BY_NAME, OPERATIONS

NAMES = ("rr64", "stream", "bulk")
GRPCIO = BY_LIBRARY["grpcio"]
OTHERS = (THEIRS, GRPCIO)
PLAIN = "tcp"
"""The column of this library without TLS."""


def main(repeat: int) -> dict[str, Any]:
    """Run the workloads over TLS, in turn; print and return the costs."""
    there = [library for library in (OURS, *OTHERS) if library.missing() is None]
    columns = {name: [PLAIN, *(library.name for library in there)] for name in NAMES}
    with certificates() as word:
        return {"libraries": described(there), "runs": interleaved(columns, repeat, partial(run, word=word))}


def run(name: str, column: str, *, word: str, share: float = 1) -> harness.Cost:
    """Run a workload once, or a share of it; ``word`` names the certificates to the peers."""
    if column == PLAIN:
        return harness.run(OURS.name, name, share=share)
    part = share * BY_LIBRARY[column].share if BY_NAME[name].kind != "request" else share
    return harness.run(column, name, "tls", to_server=(word,), to_client=(word,), share=part)


@contextmanager
def certificates() -> Iterator[str]:
    """Make an authority and a certificate of this machine for as long as the block. Return the word that names them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = trustme.CA()
        server = authority.issue_cert("localhost", "127.0.0.1")
        authority.cert_pem.write_to_path(str(folder / AUTHORITY))
        server.private_key_pem.write_to_path(str(folder / KEY))
        for pem in server.cert_chain_pems:
            pem.write_to_path(str(folder / CHAIN), append=True)
        yield f"{WORD}{folder}"


def written(figures: dict[str, Any]) -> list[str]:
    """TLS beside TCP, and beside the TLS of others."""
    of = figures["tls"]
    others = [library for library in OTHERS if library.name in of["libraries"]]
    rows = []
    for name, runs in of["runs"].items():
        plain, ours = cpu(runs, PLAIN), cpu(runs, OURS.name)
        middle = harness.middle(ours)
        cells = [spread(plain), spread(ours), f"{middle / harness.middle(plain):.2f}"]
        times = [harness.middle(cpu(runs, library.name)) / middle for library in others]
        cells += [f"{spread(cpu(runs, each.name))}, {x:.1f}x" for each, x in zip(others, times, strict=True)]
        met = YES if all(x > 1 for x in times) else NO
        rows.append([f"{BY_NAME[name].label} {BY_NAME[name].what}", *cells, met])
    return [
        "## Over TLS",
        (
            f"CPU seconds of {OPERATIONS:,} operations, both ends, one connection of TLS 1.3 that was made before; the "
            "others have to take more. OpenSSL encrypts and decrypts for this library and for rsocket-py by way of "
            "Python's `ssl`, and BoringSSL for grpcio."
        ),
        table(["workload", "TCP", "TLS", "ratio", *(library.title for library in others), "met"], rows),
        command("tls"),
    ]
