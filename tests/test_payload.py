"""A payload is bytes, whatever it was made of, and knows absent metadata from empty."""

from __future__ import annotations

import pytest

from rsocket_trio import Payload, PayloadLike
from rsocket_trio.payload import as_bytes, as_payload


@pytest.mark.parametrize("content", ["tëxt", "tëxt".encode(), bytearray("tëxt".encode()), memoryview("tëxt".encode())])
def test_data_and_metadata_are_always_bytes(content: str | bytes) -> None:
    payload = Payload(content, content)

    assert payload.data == payload.metadata == "tëxt".encode()
    assert type(payload.data) is type(payload.metadata) is bytes
    assert payload.text == "tëxt"


def test_a_buffer_that_changes_later_changes_no_payload() -> None:
    buffer = bytearray(b"before")
    payload = Payload(buffer)

    buffer[:] = b"after!"

    assert payload.data == b"before"


def test_an_empty_payload_has_no_metadata_and_an_empty_one_is_not_absent() -> None:
    assert Payload() == Payload(b"", None)
    assert Payload() != Payload(b"", b"")
    assert (Payload().data, Payload().metadata) == (b"", None)


@pytest.mark.parametrize("content", [None, 7, [b"list"], object()])
def test_what_is_neither_bytes_nor_text_is_refused(content: object) -> None:
    for make in (as_payload, as_bytes, Payload):
        with pytest.raises(TypeError, match=type(content).__name__):
            make(content)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"x", "x", bytearray(b"x"), memoryview(b"x"), Payload(b"x")])
def test_whatever_may_be_given_for_a_payload_becomes_one(content: PayloadLike) -> None:
    assert as_payload(content) == Payload(b"x")


def test_a_payload_is_passed_on_as_it_is() -> None:
    payload = Payload(b"x")

    assert as_payload(payload) is payload


def test_equal_payloads_have_equal_hashes() -> None:
    assert hash(Payload(b"x", b"y")) == hash(Payload("x", "y"))
    assert Payload(b"x", metadata_type=1) != Payload(b"x")
    assert Payload(b"x", data_mime="text/plain") != Payload(b"x")
    assert Payload(b"x") != b"x"


def test_the_size_counts_data_and_metadata() -> None:
    assert Payload(b"12345").size == 5
    assert Payload(b"12345", b"123").size == 8


def test_the_repr_is_short_and_names_what_is_there() -> None:
    assert repr(Payload(b"x")) == "Payload(b'x')"
    assert repr(Payload(b"x", b"m", metadata_type=2, data_mime="a", metadata_mime=3)) == (
        "Payload(b'x', metadata=b'm', metadata_type=2, data_mime='a', metadata_mime=3)"
    )
    assert len(repr(Payload(bytes(1_000_000)))) < 250
