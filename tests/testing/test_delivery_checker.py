"""The checker: each kind of wrong is told from the others, and what is right is not accused."""

from __future__ import annotations

import pytest

from rsocket_trio.testing import DeliveryChecker, Verdict


def offered(checker: DeliveryChecker, sizes: list[int]) -> list[bytes]:
    return [checker.offer("talk", "down", size) for size in sizes]


def after(order: list[int], *, sizes: list[int], complete: bool = True) -> Verdict:
    """The verdict on items that came in this order."""
    checker = DeliveryChecker()
    items = offered(checker, sizes)
    for number in order:
        checker.received("talk", "down", items[number])
    if complete:
        checker.completed("talk", "down")
    return checker.verdict()


def counts(verdict: Verdict) -> dict[str, int]:
    return {line.partition(":")[0]: 1 for line in str(verdict).splitlines()} if not verdict.is_clean else {}


@pytest.mark.parametrize("sizes", [[50] * 4, [8] * 4, [70_000, 0, 0, 1]])
def test_items_in_order_are_clean(sizes: list[int]) -> None:
    verdict = after([0, 1, 2, 3], sizes=sizes)

    assert verdict.is_clean
    assert str(verdict) == "clean"


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ([0, 1, 3], {"lost"}),
        ([0, 1, 2], {"lost"}),
        ([0, 1, 1, 2, 3], {"duplicated"}),
        ([0, 2, 1, 3], {"reordered"}),
        ([3, 0, 0, 1, 2], {"reordered", "duplicated"}),
    ],
)
def test_each_kind_of_wrong_has_its_name(order: list[int], found: set[str]) -> None:
    verdict = after(order, sizes=[50, 60, 8, 9])

    assert set(counts(verdict)) == found
    assert not verdict.is_clean


def test_a_line_says_which_item_it_was() -> None:
    assert str(after([0, 2], sizes=[50, 60, 70])) == "lost: talk down item 1 of 60 bytes"


def test_an_empty_item_that_is_missing_shows_in_the_count() -> None:
    assert after([0, 1], sizes=[0, 0, 0]).lost == ("talk down item 2 of 0 bytes",)


def test_what_did_not_come_to_its_good_end_need_not_be_whole() -> None:
    assert after([0, 1], sizes=[50] * 4, complete=False).is_clean


def test_what_nobody_sent_is_unexpected() -> None:
    checker = DeliveryChecker()
    (item,) = offered(checker, [50])
    checker.received("talk", "up", item)
    checker.received("talk", "down", item[:-1] + b"?")

    assert len(checker.verdict().unexpected) == 2


def test_a_send_that_failed_must_not_arrive() -> None:
    checker = DeliveryChecker()
    first = checker.offer("talk", "down", 50)
    checker.refused("talk", "down")
    second = checker.offer("talk", "down", 50)
    checker.received("talk", "down", second)
    checker.completed("talk", "down")
    assert checker.verdict().is_clean

    checker.received("talk", "down", first)
    assert len(checker.verdict().unexpected) == 1


def test_a_send_that_fails_after_its_item_arrived_is_found() -> None:
    checker = DeliveryChecker()
    checker.received("talk", "down", checker.offer("talk", "down", 50))
    checker.refused("talk", "down")

    assert checker.verdict().unexpected == ("talk down item 0 of 50 bytes, whose send failed",)


def test_who_works_on_and_who_worked_twice_is_found() -> None:
    checker = DeliveryChecker()
    with checker.call("talk"), checker.handler("talk"):
        assert checker.verdict().unfinished == ("call of talk", "handler of talk")
    assert checker.verdict().is_clean

    with pytest.raises(KeyError), checker.handler("talk"):
        raise KeyError
    assert checker.verdict().restarted == ("handler of talk, 2 times",)
