"""Large payloads in the smallest fragments that peers send: memory beside large fragments, and the receiver's CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qa.attacks.harness import Sampler, Scene, Size, Victim, expect
from qa.attacks.line import joined, repeated, warmed
from qa.processes import MIB
from tests.conformance import raw
from tests.conformance.raw import C, F, M, N

if TYPE_CHECKING:
    from qa.attacks.held import Load

MTU, LARGE = 64, 64 * 1024
"""Bytes of a frame with its length: the least that rsocket-java and rsocket-go can be told, and our own default."""
HEADER = 3 + 6
MORE, CPU = 16.0, 5.0
"""MiB that small fragments may take more than large ones, and seconds of CPU at the receiver."""
SETUP = raw.prefixed(raw.setup())


def data_pieces(first: bytes, size: int, mtu: int) -> Iterator[bytes]:
    """Data of about ``size`` bytes behind a first frame that others follow."""
    room = mtu - HEADER
    yield first
    yield from repeated(raw.prefixed(raw.payload(1, bytes(room), N | F)), size // room - 1)
    yield raw.prefixed(raw.payload(1, bytes(size % room), N | C))


def metadata_pieces(first: bytes, size: int, mtu: int) -> Iterator[bytes]:
    """The same in metadata, each piece with a length of its own."""
    room = mtu - HEADER - 3
    yield first
    yield from repeated(raw.prefixed(raw.frame(raw.PAYLOAD, N | F | M, 1, raw.sized(bytes(room)))), size // room)
    yield raw.prefixed(raw.payload(1, bytes(size % room), N | C))


Pieces = Callable[[bytes, int, int], Iterator[bytes]]


def at_server(scene: Scene, pieces: Pieces, size: int, mtu: int) -> None:
    """A request in pieces, whose answer is as large."""
    line = scene.line(SETUP)
    first = raw.prefixed(raw.ask(1, bytes(mtu - HEADER) if pieces is data_pieces else b"", F))
    expect(line.pour(joined(pieces(first, size, mtu))) == "sent", "the request was not taken")
    expect(line.read_bytes(size, 60), f"of an answer of {size} bytes {line.received} came")


def at_client(scene: Scene, pieces: Pieces, size: int, mtu: int) -> None:
    """The answer to a client's request in pieces."""
    line = scene.called("ask")
    expect(line.read(30, lambda: any(frame.stream_id == 1 for frame in line.frames)), "no request came")
    first = raw.prefixed(raw.payload(1, bytes(mtu - HEADER) if pieces is data_pieces else b"", N | F))
    expect(line.pour(joined(pieces(first, size, mtu))) in ("sent", "closed"), "the answer was not taken")
    expect(line.read(30), "the client did not leave with its answer")
    expect(not scene.victim.order("calls")[-1], f"the client had {scene.victim.order('calls')[-1]}")


def grown(role: Callable[[Scene, Pieces, int, int], None], pieces: Pieces, size: int, mtu: int) -> tuple[float, float]:
    """MiB by which a process grew at its peak, and its seconds of CPU."""
    with Victim() as victim:
        scene = Scene(victim, Size(count=1, growth=0), full=False)
        warmed(victim.ports["tcp"]).close()
        before, cpu = victim.resident(), victim.cpu()
        with Sampler(victim) as sampler:
            try:
                role(scene, pieces, size, mtu)
            finally:
                scene.leave()
        return (sampler.peak - before) / MIB, victim.cpu() - cpu


def mtu(size: Load) -> str:
    """Raise ``Missed`` if fragments of 64 bytes cost what they must not."""
    count = int(size.payload * 1_000_000)
    said = []
    for role, name in ((at_server, "server"), (at_client, "client")):
        for pieces, part in ((data_pieces, "data"), (metadata_pieces, "metadata")):
            small, cpu = grown(role, pieces, count, MTU)
            large, _ = grown(role, pieces, count, LARGE)
            text = f"{part} at a {name}: {small:.1f} MiB beside {large:.1f}, {cpu:.1f} s of CPU"
            expect(small - large <= MORE and cpu <= CPU * size.slack, text)
            said.append(text)
    return f"{size.payload:g} MB in fragments of {MTU} bytes and of 64 KiB; {'; '.join(said)}"
