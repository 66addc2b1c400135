"""A pair of sessions is cut at every frame and goes on: exactly what is missing is sent again, nothing counts twice."""

from __future__ import annotations

import pytest

from rsocket_trio.mux.events import (
    LeaseReceived,
    Pong,
    SessionEnded,
    TransportSilent,
)
from rsocket_trio.mux.framing import whole
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.resume_protocol import LAST_POSITION
from rsocket_trio.terms import Keepalive, Lease
from tests.rsocket.resumable import (
    Conversation,
    ResumablePair,
    by_frames,
    each,
    resumption,
)


@each
def test_a_pair_that_is_cut_at_any_frame_goes_on(dialect: Dialect) -> None:
    whole_length = 1
    length = 0
    while length < whole_length:
        pair = ResumablePair(dialect)
        conversation = Conversation(pair)
        arrived = pair.exchange(length)
        pair.lose(3)
        lost = {side: pair.sent[side] for side in pair.sent}
        received = {side: list(pair.tracked[side]) for side in pair.tracked}
        for side in lost:
            pair.sent[side] = []
        pair.cut()
        # Exactly what is missing is sent again, as it was.
        for side in (pair.client, pair.server):
            sent = [frame for frame in lost[side] if resumption(side).tracks(frame)]
            missing = sent[len(received[pair.other(side)]) :]
            again = [whole(frame) for frame in side.outbox.take(sum(map(len, missing)))] if missing else []
            assert again == missing
            pair.deliver(side, again)
        pair.exchange()
        conversation.check()
        if arrived < length:
            break
        length += 1
        whole_length = length + 1
    assert length > 15


# Positions


@each
def test_what_is_too_short_for_a_type_does_not_count(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    resumption(pair.server).count([b"", b"\0\0\0\1", b"\0\0\0"])
    assert resumption(pair.server).received == 0


@each
@pytest.mark.clause("RS10-RSM-07")
def test_positions_end(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    resumption(pair.server).received = LAST_POSITION - (11 if dialect.entries else 6)
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b""))
    pair.exchange()
    assert pair.server.error is None
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b""))
    pair.exchange()

    assert "the last is 9223372036854775807" in str(pair.server.error)
    ended = [event for event in pair.saw[pair.client] if isinstance(event, SessionEnded)]
    assert len(ended) == 1
    assert "9223372036854775807" in str(ended[0].error)


# Keepalives


@by_frames
@pytest.mark.clause("RS10-RSM-22", "RS02-RSM-21")
def test_keepalives_trim_what_both_sides_keep(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"123"))
    pair.server.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"12345"))
    pair.exchange()
    assert [resumption(side).store.size for side in (pair.client, pair.server)] == [9, 11]
    pair.client.ping("?")
    pair.exchange()

    assert [resumption(side).store.size for side in (pair.client, pair.server)] == [0, 0]
    assert pair.saw[pair.client][-1] == Pong("?")
    pair.suspend()
    assert pair.ask()[-16:] == (11).to_bytes(8, "big") + (9).to_bytes(8, "big")
    pair.resume()
    pair.exchange()
    pair.assert_in_step()


@each
def test_a_lost_ping_is_sent_again_and_answered_once(dialect: Dialect) -> None:
    pair = ResumablePair(dialect)
    pair.client.ping("lost")
    assert len(pair.take(pair.client)) == 1
    pair.suspend()
    pair.client.ping("meanwhile")
    pair.resume()
    pair.exchange()

    assert [event for event in pair.saw[pair.client] if isinstance(event, Pong)] == [Pong("lost"), Pong("meanwhile")]
    pair.assert_in_step()


@each
@pytest.mark.clause("RS10-KA-07")
def test_silence_counts_from_the_new_link_on(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, keepalive=Keepalive(2, 10))
    pair.now = 10.0
    assert [type(event) for event in pair.client.expire(pair.now)] == [TransportSilent]
    assert pair.client.error is None
    pair.suspend()
    assert pair.client.deadline == pair.server.deadline == float("inf")
    assert pair.client.expire(pair.now) == pair.server.expire(pair.now) == []
    pair.now = 100.0
    pair.resume()

    assert pair.client.deadline == 102
    assert pair.server.deadline == 110
    assert pair.client.expire(102) == []
    assert len(pair.take(pair.client)) == 1


# Leases


@each
@pytest.mark.clause("RS10-RSM-21", "RS02-RSM-20", "RS02-RSM-03")
def test_leases_begin_anew(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, lease=True)
    pair.server.grant(Lease(3, 60), pair.now)
    pair.exchange()
    permits = pair.client.permits
    assert permits is not None
    assert permits.remaining(pair.now) == 3
    assert permits.take(pair.now)
    pair.client.commands.open(Interaction.FIRE_AND_FORGET, Payload(b"x"))
    pair.exchange()
    pair.now = 20.0
    pair.suspend()
    answer = pair.let_in()
    assert pair.client.permits is not None
    pair.client.resume_handshake.answered(answer, pair.now)
    assert pair.client.permits.remaining(pair.now) == 0
    pair.forget()
    pair.exchange()

    assert LeaseReceived() in pair.saw[pair.client]
    assert (pair.client.permits.remaining(pair.now), pair.client.permits.expires_in(pair.now)) == (2, 40)
    assert pair.server.permits is not None
    assert pair.server.permits.remaining(pair.now) > 1000  # the client's own, without a policy

    pair.server.grant(Lease(1, 60), pair.now)
    pair.exchange()
    assert [pair.client.permits.take(pair.now) for _ in range(2)] == [True, False]


@each
def test_a_lease_that_is_over_is_not_granted_again(dialect: Dialect) -> None:
    pair = ResumablePair(dialect, lease=True)
    pair.server.grant(Lease(3, 5), pair.now)
    pair.exchange()
    pair.now = 6.0
    pair.cut()
    pair.forget()
    pair.exchange()

    assert LeaseReceived() not in pair.saw[pair.client]
    assert pair.client.permits is not None
    assert pair.client.permits.remaining(pair.now) == 0
