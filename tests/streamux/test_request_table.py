"""Request ids go round from the first one, and are not reissued while they are in use."""

from __future__ import annotations

import random

import pytest

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import StreamIds


def ids_from(first: int, cap: int) -> StreamIds:
    ids = StreamIds(0, cap - 1, reuse=True, step=1)
    ids.start_at(first)
    return ids


@pytest.mark.clause("SMX-FLD-02")
@pytest.mark.parametrize("cap", [1, 2, 16])
def test_a_round_skips_what_is_in_use_and_ends_where_all_are(cap: int) -> None:
    rng = random.Random(cap)
    ids = ids_from(rng.randrange(cap), cap)
    in_use: set[int] = set()
    refused = 0
    for _ in range(500):
        if in_use and rng.random() < 0.4:
            in_use.remove(rng.choice(sorted(in_use)))
        elif len(in_use) == cap:
            refused += 1
            with pytest.raises(LocalProtocolError, match=f"no stream id up to {cap - 1} is left"):
                ids.take(in_use)
        else:
            number = ids.take(in_use)
            assert number not in in_use
            assert 0 <= number < cap
            in_use.add(number)
    assert refused > 0
