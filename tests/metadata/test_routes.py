"""The route of a request: written by the requester, found by the responder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata import (
    ACCEPT_MIME_TYPES,
    APPLICATION_JSON,
    AUTHENTICATION,
    BAGGAGE,
    COMPOSITE_METADATA,
    DEADLINE,
    MIME_TYPE,
    ROUTING,
    TRACEPARENT,
    TRACESTATE,
    TRACING_ZIPKIN,
    Entry,
    RequestMetadata,
    decode_route,
    encode_composite,
    encode_route,
    read_request,
    route_of,
    with_route,
)

GREET = bytes.fromhex("FE 000006 05 6772656574")


def test_a_route_is_the_first_entry_of_composite_metadata() -> None:
    assert with_route("greet", None, COMPOSITE_METADATA) == GREET


def test_ready_made_entries_follow_the_route() -> None:
    ready = encode_composite([Entry(APPLICATION_JSON, b"{}")])

    assert with_route("greet", ready, COMPOSITE_METADATA) == GREET + ready
    assert route_of(GREET + ready, COMPOSITE_METADATA, 1024) == "greet"


@pytest.mark.parametrize("mime", [ROUTING, APPLICATION_JSON, "application/octet-stream"])
def test_with_any_other_type_the_route_is_all_the_metadata(mime: str) -> None:
    assert with_route("greet", None, mime) == b"\x05greet"
    with pytest.raises(ValueError, match="route 'greet' and metadata of 2 bytes"):
        with_route("greet", b"{}", mime)


@pytest.mark.parametrize("mime", [COMPOSITE_METADATA, ROUTING])
def test_a_route_above_255_bytes_is_refused(mime: str) -> None:
    with pytest.raises(ValueError, match="route of 256 bytes, limit 255"):
        with_route("x" * 256, None, mime)


@pytest.mark.parametrize(
    ("entries", "route"),
    [
        ([], None),
        ([Entry(APPLICATION_JSON, b"{}")], None),
        ([Entry(APPLICATION_JSON, b"{}"), Entry(ROUTING, b"\x01a")], "a"),
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


@pytest.mark.parametrize("mime", [COMPOSITE_METADATA, ROUTING, APPLICATION_JSON])
def test_without_metadata_there_is_no_route(mime: str) -> None:
    assert route_of(None, mime, 1024) is None
    assert route_of(b"", mime, 1024) is None


def test_metadata_of_another_type_is_not_looked_into() -> None:
    assert route_of(GREET, APPLICATION_JSON, 1024) is None


@pytest.mark.parametrize("size", [0, 200])
@pytest.mark.parametrize(
    "malformed",
    [b"\xfe\0\0\x02\x05a", b"\xfe\0\0\x02\x01\xff", GREET[:-1], GREET + b"\x85\0\0", GREET + b"\x00\xe9\0\0\0"],
    ids=["route cut short", "route not UTF-8", "entry cut short", "later entry cut short", "later type not ASCII"],
)
def test_undecodable_composite_metadata_is_the_peers_fault(malformed: bytes, size: int) -> None:
    before = encode_composite([Entry(APPLICATION_JSON, bytes(size))])

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
    assert route_of(two, APPLICATION_JSON, 2) is None
    with pytest.raises(RemoteProtocolError, match="more than 1 metadata"):
        route_of(two, COMPOSITE_METADATA, 1)


TRAVELLING = [AUTHENTICATION, DEADLINE, TRACEPARENT, TRACESTATE, BAGGAGE, TRACING_ZIPKIN]
MIMES = [MIME_TYPE, ACCEPT_MIME_TYPES]


def test_one_reading_gives_the_route_and_the_entries_of_the_call_in_order() -> None:
    every = [Entry(mime, mime.encode()) for mime in (*TRAVELLING, APPLICATION_JSON, *MIMES)]

    found = read_request(encode_composite([every[0], Entry(ROUTING, b"\x01a\x01b"), *every[1:]]), COMPOSITE_METADATA)

    assert found.route == "a"
    assert found.travelling == tuple(every[:6])
    assert found.mimes == tuple(every[7:])


def test_an_entry_that_comes_twice_is_there_twice() -> None:
    twice = (Entry(TRACEPARENT, b"one"), Entry(TRACEPARENT, b"two"))

    assert read_request(encode_composite(twice), COMPOSITE_METADATA) == RequestMetadata(travelling=twice)


@pytest.mark.parametrize("mime", TRAVELLING)
def test_metadata_of_the_type_of_one_travelling_entry_is_that_entry(mime: str) -> None:
    assert read_request(b"content", mime) == RequestMetadata(travelling=(Entry(mime, b"content"),))


@pytest.mark.parametrize("mime", MIMES)
def test_metadata_of_a_type_that_names_types_is_that_entry(mime: str) -> None:
    assert read_request(b"\x85", mime) == RequestMetadata(mimes=(Entry(mime, b"\x85"),))


@pytest.mark.parametrize("mime", TRAVELLING)
def test_metadata_that_differs_from_call_to_call_is_not_remembered(mime: str) -> None:
    metadata = GREET + encode_composite([Entry(mime, b"content")])

    first, second = (read_request(metadata, COMPOSITE_METADATA) for _ in range(2))

    assert first == second == RequestMetadata("greet", (Entry(mime, b"content"),))
    assert first is not second


@pytest.mark.parametrize("size", [0, 200])
def test_short_metadata_without_travelling_entries_is_remembered(size: int) -> None:
    metadata = GREET + encode_composite([Entry(MIME_TYPE, b"\x85"), Entry(APPLICATION_JSON, bytes(size))])

    first, second = (read_request(metadata, COMPOSITE_METADATA) for _ in range(2))

    assert (first is second) == (size == 0)
    assert first == second == RequestMetadata("greet", mimes=(Entry(MIME_TYPE, b"\x85"),))


def test_more_routes_than_are_remembered_are_read_all_the_same() -> None:
    routes = [f"route.{number}" for number in range(1000)]
    written = [with_route(route, None, COMPOSITE_METADATA) for route in routes]

    for _ in range(2):
        assert [read_request(metadata, COMPOSITE_METADATA).route for metadata in written] == routes


@given(st.text(max_size=63), st.sampled_from([COMPOSITE_METADATA, ROUTING]))
def test_the_responder_finds_the_route_that_was_written(route: str, mime: str) -> None:
    assert route_of(with_route(route, None, mime), mime, 1024) == route


@given(st.binary(max_size=200), st.sampled_from([COMPOSITE_METADATA, ROUTING, APPLICATION_JSON]))
def test_any_metadata_gives_a_route_or_is_the_peers_fault(metadata: bytes, mime: str) -> None:
    try:
        route = route_of(metadata, mime, 1024)
    except RemoteProtocolError:
        return
    assert route is None or isinstance(route, str)


# Routing metadata: tags behind their lengths


def test_tags_stand_behind_their_lengths() -> None:
    assert encode_route("greet", "de") == b"\x05greet\x02de"
    assert decode_route(b"\x05greet\x02de") == ["greet", "de"]


def test_lengths_count_bytes_not_characters() -> None:
    assert encode_route("grüß") == b"\x06gr\xc3\xbc\xc3\x9f"


def test_no_bytes_are_no_tags_and_an_empty_tag_is_one() -> None:
    assert decode_route(b"") == []
    assert decode_route(b"\x00") == [""]
    assert encode_route("") == b"\x00"


@given(st.lists(st.text(max_size=63)))
def test_tags_that_were_encoded_decode_to_the_same(tags: list[str]) -> None:
    assert decode_route(encode_route(*tags)) == tags


def test_a_tag_holds_255_bytes_and_no_more() -> None:
    assert encode_route("x" * 255) == b"\xff" + b"x" * 255
    with pytest.raises(ValueError, match="route of 256 bytes, limit 255"):
        encode_route("x" * 256)


@pytest.mark.parametrize(
    ("data", "offset", "text"),
    [
        (b"\x05gree", 0, "route of 5 bytes at offset 0, 4 left"),
        (b"\x01a\xff", 2, "route of 255 bytes at offset 2, 0 left"),
        (b"\x03a\xffb", 2, "route is not UTF-8 at offset 2"),
        (b"\x01\xc3", 1, "route is not UTF-8 at offset 1"),
    ],
)
def test_malformed_tags_are_the_peers_fault(data: bytes, offset: int, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        decode_route(data)

    assert caught.value.offset == offset


@given(st.binary(max_size=40))
def test_any_bytes_are_tags_or_the_peers_fault(data: bytes) -> None:
    try:
        tags = decode_route(data)
    except RemoteProtocolError:
        return
    assert encode_route(*tags) == data
