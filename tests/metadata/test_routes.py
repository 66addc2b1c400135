"""The route of a request: written by the requester, found by the responder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import (
    COMPOSITE_METADATA,
    JSON,
    ROUTING,
    Entry,
    encode_composite,
    route_of,
    with_route,
)

GREET = bytes.fromhex("FE 000006 05 6772656574")


def test_a_route_is_the_first_entry_of_composite_metadata() -> None:
    assert with_route("greet", None, COMPOSITE_METADATA) == GREET


def test_ready_made_entries_follow_the_route() -> None:
    ready = encode_composite([Entry(JSON, b"{}")])

    assert with_route("greet", ready, COMPOSITE_METADATA) == GREET + ready
    assert route_of(GREET + ready, COMPOSITE_METADATA, 1024) == "greet"


@pytest.mark.parametrize("mime", [ROUTING, JSON, "application/octet-stream"])
def test_with_any_other_type_the_route_is_all_the_metadata(mime: str) -> None:
    assert with_route("greet", None, mime) == b"\x05greet"
    with pytest.raises(ValueError, match="route 'greet' and metadata of 2 bytes"):
        with_route("greet", b"{}", mime)


def test_present_and_empty_metadata_counts_as_metadata() -> None:
    with pytest.raises(ValueError, match="metadata of 0 bytes"):
        with_route("greet", b"", ROUTING)


@pytest.mark.parametrize("mime", [COMPOSITE_METADATA, ROUTING])
def test_a_route_above_255_bytes_is_refused(mime: str) -> None:
    with pytest.raises(ValueError, match="route of 256 bytes, limit 255"):
        with_route("x" * 256, None, mime)


@pytest.mark.parametrize(
    ("entries", "route"),
    [
        ([], None),
        ([Entry(JSON, b"{}")], None),
        ([Entry(JSON, b"{}"), Entry(ROUTING, b"\x01a")], "a"),
        ([Entry(ROUTING, b"\x01a\x01b")], "a"),
        ([Entry(ROUTING, b"\x01a"), Entry(ROUTING, b"\x01b")], "a"),
        ([Entry(ROUTING, b""), Entry(ROUTING, b"\x01b")], None),
        ([Entry(ROUTING, b"\x00")], ""),
    ],
)
def test_the_route_is_the_first_tag_of_the_first_routing_entry(entries: list[Entry], route: str | None) -> None:
    assert route_of(encode_composite(entries), COMPOSITE_METADATA, 1024) == route


def test_a_routing_type_that_is_spelt_out_counts_too() -> None:
    spelt_out = bytes((len(ROUTING) - 1,)) + ROUTING.encode() + b"\0\0\x02\x01a"

    assert route_of(spelt_out, COMPOSITE_METADATA, 1024) == "a"


def test_plain_routing_metadata_holds_the_route() -> None:
    assert route_of(b"\x05greet\x02de", ROUTING, 1024) == "greet"


@pytest.mark.parametrize("mime", [COMPOSITE_METADATA, ROUTING, JSON])
def test_without_metadata_there_is_no_route(mime: str) -> None:
    assert route_of(None, mime, 1024) is None
    assert route_of(b"", mime, 1024) is None


def test_metadata_of_another_type_is_not_looked_into() -> None:
    assert route_of(GREET, JSON, 1024) is None


@pytest.mark.parametrize("size", [0, 200])
@pytest.mark.parametrize(
    "malformed",
    [b"\xfe\0\0\x02\x05a", b"\xfe\0\0\x02\x01\xff", GREET[:-1], GREET + b"\x85\0\0", GREET + b"\x00\xe9\0\0\0"],
    ids=["route cut short", "route not UTF-8", "entry cut short", "later entry cut short", "later type not ASCII"],
)
def test_undecodable_composite_metadata_is_the_peers_fault(malformed: bytes, size: int) -> None:
    before = encode_composite([Entry(JSON, bytes(size))])

    for _ in range(2):  # remembering an answer must not turn a fault into one
        with pytest.raises(RemoteProtocolError, match="at offset"):
            route_of(before + malformed, COMPOSITE_METADATA, 1024)


@pytest.mark.parametrize("malformed", [b"\x05gree", b"\x01\xff"])
def test_undecodable_routing_metadata_is_the_peers_fault(malformed: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="at offset"):
        route_of(malformed, ROUTING, 1024)


def test_entries_beyond_the_limit_are_refused_even_behind_the_route() -> None:
    many = GREET + b"\x85\0\0\0" * 1024

    assert route_of(many[:-4], COMPOSITE_METADATA, 1024) == "greet"
    with pytest.raises(RemoteProtocolError, match="more than 1024 metadata entries"):
        route_of(many, COMPOSITE_METADATA, 1024)


def test_an_answer_that_is_remembered_keeps_to_its_type_and_limit() -> None:
    two = GREET + b"\x85\0\0\0"

    assert route_of(two, COMPOSITE_METADATA, 2) == "greet"
    assert route_of(two, JSON, 2) is None
    with pytest.raises(RemoteProtocolError, match="more than 1 metadata"):
        route_of(two, COMPOSITE_METADATA, 1)


@given(st.text(max_size=63), st.sampled_from([COMPOSITE_METADATA, ROUTING]))
def test_the_responder_finds_the_route_that_was_written(route: str, mime: str) -> None:
    assert route_of(with_route(route, None, mime), mime, 1024) == route


@given(st.binary(max_size=200), st.sampled_from([COMPOSITE_METADATA, ROUTING, JSON]))
def test_any_metadata_gives_a_route_or_is_the_peers_fault(metadata: bytes, mime: str) -> None:
    try:
        route = route_of(metadata, mime, 1024)
    except RemoteProtocolError:
        return
    assert route is None or isinstance(route, str)
