"""A refused move changes nothing, and each row does what it says."""

from __future__ import annotations

import pytest

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux import stream_state
from rsocket_trio.mux.stream_state import BOTH, NEITHER, RECEIVING, SENDING, Move, applied

MOVES = [move for move in vars(stream_state).values() if isinstance(move, Move)]
WORDS = {
    "send a payload": (SENDING, NEITHER),
    "complete": (SENDING, SENDING),
    "complete both ways": (SENDING, BOTH),
    "fail": (SENDING, BOTH),
    "cancel": (NEITHER, BOTH),
    "cancel the peer's half": (RECEIVING, RECEIVING),
    "be completed": (RECEIVING, RECEIVING),
    "be completed both ways": (RECEIVING, BOTH),
    "have this half cancelled": (SENDING, SENDING),
}


@pytest.mark.clause("RS10-SEQ-06", "RS10-SEQ-08", "RS10-SEQ-09", "RS10-SEQ-10", "RS02-SEQ-04")
def test_the_table_is_that_of_the_text() -> None:
    assert {move.name: (move.needs, move.closes) for move in MOVES} == WORDS


@pytest.mark.parametrize("before", [NEITHER, SENDING, RECEIVING, BOTH])
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.name)
def test_a_move_is_allowed_while_what_it_needs_is_open_and_closes_what_it_closes(move: Move, before: int) -> None:
    if before & move.needs == move.needs:
        assert applied(move, before) == before & ~move.closes
    else:
        with pytest.raises(LocalProtocolError, match=move.name):
            applied(move, before)
