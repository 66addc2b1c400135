"""The bytes of whole connections, for a server that listens: set up as they should be, and mutated behind that."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import attrs

from qa.fuzz.mutation import mutate
from qa.fuzz.spoken import FRAMES, KINDS, NAMES, SHARES, STREAMUX, TEMPERS
from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import Framing24, Framing32, whole
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.session import Session
from rsocket_trio.streamux.chunks import ChunkHeader, HeaderLayout
from rsocket_trio.streamux.negotiation import Initialize, Terms
from tests.rsocket.pairs import client_terms

NOISE: Final = "noise"
SPEAKERS: Final = (*NAMES, STREAMUX, NOISE)
TERMS: Final = Terms(8, 10)
OFFER: Final = Initialize(min_id=8, max_id=8, rec_id=8, min_len=10, max_len=10, rec_len=10)


def traffic(speaker: str, frames: int, random: Random) -> bytes:
    """All that a client says on one connection: so many frames behind its first."""
    temper = random.choice(TEMPERS)
    if speaker == NOISE:
        return random.randbytes(random.randrange(1, 20 * frames))
    if speaker == STREAMUX:
        data = OFFER.encode() + b"".join(chunk(random) for _ in range(frames))
    else:
        dialect = NAMES[speaker]
        said = [setup(dialect), *(frame(dialect, temper, random) for _ in range(frames))]
        data = (Framing24() if dialect.framing == "u24" else Framing32(2**24, 8)).join(said)
    # The lengths themselves are mutated too, on some connections.
    return mutate(random, (data,)) if random.random() < temper else data


def setup(dialect: Dialect) -> bytes:
    """The first frame of a client."""
    client = Session(dialect, client=True, limits=Limits(), fragment_size=1000)
    client.start_client(client_terms(), 0.0)
    return whole(client.outbox.take(65536)[0])


def frame(dialect: Dialect, temper: float, random: Random) -> bytes:
    """A frame on one of a few streams."""
    (kind,) = random.choices(KINDS, cum_weights=SHARES)
    value: Any
    value, data = random.choice(FRAMES[dialect][kind])
    if value.stream_id:
        try:
            data = dialect.codec.encode(attrs.evolve(value, stream_id=random.randrange(12)))
        except LocalProtocolError:
            pass  # A vector that may only be read goes as it stands.
    return mutate(random, (data,)) if random.random() < temper else data


def chunk(random: Random) -> bytes:
    """A chunk of one of a few requests."""
    payload = bytes(random.choice((0, 0, 1, 30, 200)))
    header = ChunkHeader(random.randrange(4), len(payload), random.random() < 0.02, random.random() < 0.5)
    return HeaderLayout(TERMS).encode(header) + payload
