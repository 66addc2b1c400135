"""A simulated connection: both its directions, the end that its faults bring, and the stream at either side."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

import trio

from rsocket_trio.testing.faults import Faults, Side, drawn_size
from rsocket_trio.testing.trace import Trace
from rsocket_trio.testing.wires import BytesLike, Wire


class Cable:
    """Both directions of one connection, and its two ends. ``is_cut`` tells whether the network has cut it."""

    def __init__(self, name: str, faults: Faults, chance: Random, trace: Trace, quiet: Callable[[], bool]) -> None:
        self.name = name
        self.is_cut = False
        self._trace = trace
        self._wires: dict[Side, Wire] = {
            side: Wire(f"{name} {side}", faults, chance, trace, quiet) for side in ("client", "server")
        }
        up, down = self._wires["client"], self._wires["server"]
        self.client = SimulatedStream(up, down)
        self.server = SimulatedStream(down, up)
        if faults.vanish_after and chance.random() < faults.vanish_chance:
            self._wires[chance.choice(faults.vanish_from)].vanish_at = drawn_size(chance, faults.vanish_after)
        if faults.cut_after and chance.random() < faults.cut_chance:
            wire = self._wires[chance.choice(faults.cut_from)]
            wire.cut_at = drawn_size(chance, faults.cut_after)
            reset, deliver = chance.choice(faults.cut_with) == "reset", chance.choice(faults.cut_delivers)
            wire.on_cut = lambda: self.cut(reset=reset, deliver=deliver)

    @property
    def is_half_open(self) -> bool:
        """Whether bytes vanish in one of its directions."""
        return any(wire.has_vanished for wire in self._wires.values())

    def cut(self, *, reset: bool, deliver: bool) -> None:
        """End it for both sides at once."""
        if self.is_cut:
            return
        self.is_cut = True
        self._trace.note(self.name, "is cut", "with a reset" if reset else "with an end", "delivers" * deliver)
        for wire in self._wires.values():
            wire.stop(deliver=deliver, reset=reset)

    def vanish(self) -> None:
        """Lose what either side writes from now on."""
        for wire in self._wires.values():
            wire.vanish()

    def copy_to(self, twin: Cable, size: int) -> None:
        """Have another connection's server read the client's first bytes as well, and then be cut."""
        left = size

        def copy(piece: bytes) -> None:
            nonlocal left
            copied = piece[:left]
            left -= len(copied)
            if copied:
                twin._wires["client"].put(copied)
            if not left:
                twin.cut(reset=False, deliver=True)

        self._wires["client"].on_written = copy
        copy(b"")


class SimulatedStream(trio.abc.HalfCloseableStream):
    """One end of a simulated connection."""

    def __init__(self, outgoing: Wire, incoming: Wire) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._busy: set[Literal["sending", "receiving"]] = set()
        self._is_finished = self._is_closed = False

    def __repr__(self) -> str:
        return f"<SimulatedStream {self._outgoing.name}>"

    async def send_all(self, data: BytesLike) -> None:
        """Write all bytes, waiting while too many are under way."""
        with _Alone(self._busy, "sending"):
            if self._is_finished and not self._is_closed:
                raise trio.ClosedResourceError("send_eof was called on this stream")
            await self._outgoing.write(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until a write might not have to wait."""
        with _Alone(self._busy, "sending"):
            await self._outgoing.wait_writable()

    async def send_eof(self) -> None:
        """Say that nothing more is written."""
        with _Alone(self._busy, "sending"):
            if self._is_closed:
                raise trio.ClosedResourceError("this stream was closed")
            self._is_finished = True
            self._outgoing.finish()
            await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes; none at the end."""
        if max_bytes is not None and not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes is an int, not {type(max_bytes).__name__}")
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes of {max_bytes}: must be at least 1")
        with _Alone(self._busy, "receiving"):
            return await self._incoming.read(2**31 if max_bytes is None else max_bytes)

    async def aclose(self) -> None:
        """Close both directions."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """What ``aclose`` does, for those that cannot wait."""
        if not self._is_closed:
            self._is_closed = self._is_finished = True
            told = not self._outgoing.has_vanished
            self._outgoing.close_writer()
            if told:
                self._incoming.close_reader()
            else:
                self._incoming.abandon()


class _Alone:
    """One task at a time."""

    def __init__(self, busy: set[Literal["sending", "receiving"]], what: Literal["sending", "receiving"]) -> None:
        self._busy = busy
        self._what = what

    def __enter__(self) -> None:
        if self._what in self._busy:
            raise trio.BusyResourceError(f"another task is {self._what} on this stream")
        self._busy.add(self._what)

    def __exit__(self, *_: object) -> None:
        self._busy.discard(self._what)
