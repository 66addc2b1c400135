"""Payloads that come in fragments are joined before a case looks at them."""

from __future__ import annotations

import pytest

from rsocket_trio.conformance.catalogue import read_chapter
from rsocket_trio.conformance.notation import MAX_JOINED, NO_HEADERS, Fragments, Torn

PLAIN, OLD, OLDEST, DRAFT = "rsocket/1.0", "reactivesocket/0.1", "reactivesocket/0.0", "rsocket/2.0-draft"
JOINED = {
    "data": (PLAIN, ['item_more 1 "a"', 'item_more 1 "b"', 'item 1 "c"'], 'item 1 "abc"'),
    "the end of a stream": (PLAIN, ['item_more 1 "a"', 'last 1 "b"'], 'last 1 "ab"'),
    "fragments without NEXT": (PLAIN, ['more 1 "a"', 'rest_last 1 "b"'], 'last 1 "ab"'),
    "metadata and data": (
        PLAIN,
        ['item_more_described 1 "m" ""', 'item_more_described 1 "n" "a"', 'last 1 "b"'],
        'last_described 1 "mn" "ab"',
    ),
    "empty metadata": (PLAIN, ['item_more_described 1 "" "a"', 'item 1 "b"'], 'item_described 1 "" "ab"'),
    "a request": (PLAIN, ['stream_more 1 7 "a"', 'item 1 "b"'], 'stream 1 7 "ab"'),
    "a request with metadata": (
        PLAIN,
        ['ask_more_described 1 "m" ""', 'item_described 1 "n" "b"'],
        'ask_described 1 "mn" "b"',
    ),
    "a channel that opens complete": (
        PLAIN,
        ['channel_complete_more 1 2 "a"', 'item 1 "b"'],
        'channel_complete 1 2 "ab"',
    ),
    "a frame with FOLLOWS and COMPLETE": (PLAIN, ['last_more 1 "a"'], 'last_more 1 "a"'),
    "what comes behind a CANCEL": (PLAIN, ['item_more 1 "a"', "cancel 1", 'item 1 "b"'], 'item 1 "b"'),
    "frames of other streams": (PLAIN, ['item_more 1 "a"', 'item 3 "x"', 'item 1 "b"'], 'item 1 "ab"'),
    "a response of 0.1": (OLD, ['item_more_described 2 "m" "a"', 'last 2 "b"'], 'last_described 2 "m" "ab"'),
    "metadata of 0.1": (OLD, ['item_more_described 2 "m" ""', 'last_described 2 "n" "b"'], 'last_described 2 "mn" "b"'),
    "a request of 0.1": (OLD, ['sub_more 1 3 "a"', 'sub 1 3 "b"'], 'sub 1 3 "ab"'),
    "a channel of 0.1": (OLD, ['channel_more 2 3 "a"', 'channel_item 2 "b"'], 'channel 2 3 "ab"'),
    "a response of 0.0": (
        OLDEST,
        ['item_more_described 2 "m" ""', 'last_described 2 "n" "b"'],
        'last_described 2 "mn" "b"',
    ),
    "typed metadata of 0.0": (
        OLDEST,
        ["hex 00 60 0020 0000000000000002 a5 000005 6d", 'last_described 2 "n" "b"'],
        "hex 00 50 0020 0000000000000002 a5 000006 6d 6e 62",
    ),
    "what would be fragments of a request of 0.0": (OLDEST, ['ask_more 2 "a"'], 'ask_more 2 "a"'),
    "an item with types of its own": (DRAFT, ["hex 00000001 28b0 85 78", 'item 1 "y"'], "hex 00000001 2830 85 78 79"),
}


def fragments_of(dialect: str) -> Fragments:
    return Fragments(read_chapter(dialect).notation.headers)


@pytest.mark.parametrize(("dialect", "frames", "whole"), JOINED.values(), ids=JOINED)
def test_fragments_are_joined(dialect: str, frames: list[str], whole: str) -> None:
    notation = read_chapter(dialect).notation
    fragments = Fragments(notation.headers)
    got = [fragments.take(notation.frame(frame).value) for frame in frames]

    assert got[-1] == notation.frame(whole).value
    assert not fragments.pending


def test_the_first_fragment_tells_what_is_not_whole() -> None:
    notation = read_chapter(PLAIN).notation
    fragments = fragments_of(PLAIN)
    for frame in ('item 3 "x"', 'item_more 1 "a"', 'item_more 1 "b"'):
        fragments.take(notation.frame(frame).value)

    assert fragments.pending == notation.frame('item_more 1 "a"').value
    assert fragments.take(notation.frame('item 1 "c"').value) == notation.frame('item 1 "abc"').value
    assert fragments.began_at == 1


@pytest.mark.parametrize(
    ("frame", "fault"),
    [('item_described 1 "m" "b"', "behind data"), ("hex 00000001 2920 000005 6d", "longer than its fragment")],
)
def test_fragments_that_no_peer_may_send_are_torn(frame: str, fault: str) -> None:
    notation, fragments = read_chapter(PLAIN).notation, fragments_of(PLAIN)
    fragments.take(notation.frame('item_more 1 "a"').value)

    with pytest.raises(Torn, match=fault):
        fragments.take(notation.frame(frame).value)


def test_fragments_end_somewhere() -> None:
    notation, fragments = read_chapter(PLAIN).notation, fragments_of(PLAIN)
    part = notation.frame('item_more 1 "a"').value + bytes(MAX_JOINED // 4)
    for _ in range(3):
        fragments.take(part)

    with pytest.raises(Torn, match="bytes came"):
        fragments.take(part)


def test_chunks_of_streamux_stay_as_they_are() -> None:
    assert Fragments(NO_HEADERS).take(b"chunk") == b"chunk"
