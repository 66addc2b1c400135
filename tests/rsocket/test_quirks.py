"""Quirks are data: each is a named change of one dialect, off unless somebody asks for it."""

from __future__ import annotations

import attrs
import pytest

from rsocket_trio.rsocket.dialect import DIALECTS, REACTIVESOCKET_0_1, REACTIVESOCKET_0_2, RSOCKET_1_0
from rsocket_trio.rsocket.quirks import QUIRKS, Quirk, all_with_quirks, known_quirks, with_quirks


def test_no_quirk_is_no_change() -> None:
    for dialect in DIALECTS.values():
        assert with_quirks(dialect, ()) is dialect


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.name)
def test_each_changes_its_dialect_in_something_and_keeps_its_name(quirk: Quirk) -> None:
    plain = DIALECTS[quirk.dialect]
    changed = with_quirks(plain, [quirk.name])

    assert changed.name == plain.name
    assert attrs.asdict(changed, recurse=False) != attrs.asdict(plain, recurse=False)
    assert quirk.meaning
    assert quirk.peers


def test_all_of_them_go_together_in_any_order() -> None:
    names = list(known_quirks(REACTIVESOCKET_0_1))
    one, two = (with_quirks(REACTIVESOCKET_0_1, order) for order in (names, reversed(names)))

    assert one.codec is two.codec
    first, second = (attrs.asdict(dialect, recurse=False) | {"layout": None} for dialect in (one, two))
    assert first == second


def test_names_are_found_only_where_they_belong() -> None:
    assert list(known_quirks(REACTIVESOCKET_0_1)) == [
        "version_0_0",
        "low_setup_flags",
        "channel_slot",
        "client_ids_odd",
        "length_on_messages",
        "metadata_push_on_streams",
    ]
    assert list(known_quirks(RSOCKET_1_0)) == ["ignores_credit", "whole_requests"]
    assert known_quirks(REACTIVESOCKET_0_2) == {}


def test_a_name_that_the_dialect_does_not_know_is_refused() -> None:
    known = "channel_slot, client_ids_odd, length_on_messages, low_setup_flags, metadata_push_on_streams, version_0_0"
    with pytest.raises(ValueError, match=rf"^quirk 'odd' of reactivesocket/0.1: the known ones are {known}$"):
        with_quirks(REACTIVESOCKET_0_1, ["channel_slot", "odd"])
    known = "ignores_credit, whole_requests"
    with pytest.raises(ValueError, match=rf"^quirk 'channel_slot' of rsocket/1.0: the known ones are {known}$"):
        with_quirks(RSOCKET_1_0, ["channel_slot"])
    with pytest.raises(ValueError, match=r"^quirk 'channel_slot' of reactivesocket/0.2: there are none$"):
        with_quirks(REACTIVESOCKET_0_2, ["channel_slot"])
    with pytest.raises(TypeError, match="not one text"):
        with_quirks(REACTIVESOCKET_0_1, "channel_slot")


def test_among_several_dialects_those_change_that_know_it() -> None:
    one, two = all_with_quirks([RSOCKET_1_0, REACTIVESOCKET_0_1], ["client_ids_odd"])

    assert one is RSOCKET_1_0
    assert two.client_swaps_ids
    with pytest.raises(ValueError, match=r"quirk 'odd' of rsocket/1.0, reactivesocket/0.1: the known ones are"):
        all_with_quirks([RSOCKET_1_0, REACTIVESOCKET_0_1], ["odd"])
