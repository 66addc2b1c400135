"""Ids come from the own range only, in order, and are not reissued while they are in use."""

from __future__ import annotations

import random

import pytest

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import StreamIds

LAST = 2**31 - 1


@pytest.mark.clause("RS10-SID-07", "RS10-SID-10", "RS10-SID-06")
@pytest.mark.parametrize("first", [1, 2])
def test_with_reuse_they_wrap_and_skip_those_in_use(first: int) -> None:
    ids = StreamIds(first, LAST, reuse=True)
    last = LAST if first == 1 else LAST - 1
    ids.start_at(last - 2)

    assert [ids.take({first, first + 4}) for _ in range(4)] == [last - 2, last, first + 2, first + 6]


@pytest.mark.clause("RS02-SID-05", "RS02-SID-04", "RS02-SEQ-06")
@pytest.mark.parametrize("first", [1, 2])
def test_without_reuse_there_is_an_end(first: int) -> None:
    ids = StreamIds(first, LAST, reuse=False)
    last = LAST if first == 1 else LAST - 1
    ids.start_at(last)

    assert ids.take(()) == last
    for _ in range(3):
        with pytest.raises(LocalProtocolError, match=str(LAST)):
            ids.take(())


@pytest.mark.clause("RS10-SID-08")
def test_with_reuse_there_is_an_end_while_all_are_in_use() -> None:
    ids = StreamIds(1, 9, reuse=True)
    in_use = {1, 3, 5, 7, 9}

    with pytest.raises(LocalProtocolError):
        ids.take(in_use)
    in_use.remove(7)
    assert ids.take(in_use) == 7


@pytest.mark.clause("RS10-SID-02", "RS02-SID-02")
@pytest.mark.parametrize("seed", range(5))
def test_an_id_in_use_is_never_given_out_and_a_freed_one_is_not_the_next(seed: int) -> None:
    rng = random.Random(seed)
    ids = StreamIds(2, 40, reuse=True)
    in_use: set[int] = set()
    freed = 0
    for _ in range(500):
        if in_use and (rng.random() < 0.5 or len(in_use) > 15):
            freed = rng.choice(sorted(in_use))
            in_use.remove(freed)
        else:
            stream_id = ids.take(in_use)
            assert stream_id not in in_use
            assert stream_id % 2 == 0
            assert 2 <= stream_id <= 40
            in_use.add(stream_id)
