"""A broadcast: every item to every subscriber, with a bounded mailbox and a policy for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from rsocket_trio import ApplicationError, Canceled, Payload, Responder
from rsocket_trio.services import Broadcast, Policy, Subscription, TooSlow
from rsocket_trio.testing import simulate
from tests.connection.pairs import connected_pair
from tests.each_row import ALL_CASES

DROPPING: tuple[Policy, ...] = ("drop_oldest", "drop_newest")
NEVER_WAITING: tuple[Policy, ...] = (*DROPPING, "disconnect")


async def read(items: Subscription[int], count: int) -> list[int]:
    return [await anext(items) for _ in range(count)]


async def rest_of(items: Subscription[int]) -> list[int]:
    return [item async for item in items]


# Everybody gets everything


@pytest.mark.parametrize("policy", ["wait", *NEVER_WAITING])
async def test_every_async_step_is_a_checkpoint(policy: Policy) -> None:
    with assert_checkpoints():
        async with Broadcast[int](1, policy) as room:
            pass
    room = Broadcast[int](1, policy)
    items = room.subscribe()
    with assert_checkpoints():
        await items.__aenter__()
    async with room.subscribe(policy="drop_newest") as others:
        with assert_checkpoints():
            await room.send(1)
        for one in (items, others):
            with assert_checkpoints():
                await anext(one)
        room.close()
        with assert_checkpoints():
            assert await rest_of(others) == []
    await items.__aexit__(None, None, None)


async def test_a_subscription_is_read_inside_its_block_only() -> None:
    items = Broadcast[int]().subscribe()
    with pytest.raises(trio.ClosedResourceError, match="async with"):
        await anext(items)
    async with items:
        items.put_nowait(1)
    assert items.waiting == 0
    with pytest.raises(trio.ClosedResourceError):
        await anext(items)


async def test_one_task_reads_a_subscription() -> None:
    async with Broadcast[int]().subscribe() as items, trio.open_nursery() as nursery:
        nursery.start_soon(anext, items)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await anext(items)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [0, -1])
def test_a_mailbox_holds_an_item_at_least(size: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Broadcast(size)
    with pytest.raises(ValueError, match="1 or more"):
        Broadcast().subscribe(size=size)


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="policy 'hope': must be one of wait, drop_oldest"):
        Broadcast(policy="hope")  # type: ignore[arg-type]


# Waiting


async def test_a_sender_waits_for_the_slowest_subscriber(autojump_clock: MockClock) -> None:
    room = Broadcast[int](2)
    async with room.subscribe() as slow, room.subscribe(size=9) as fast:
        with trio.move_on_after(1) as scope:
            for number in range(9):
                await room.send(number)

        assert scope.cancelled_caught
        assert await read(fast, 2) == [0, 1]
        assert fast.waiting == 0, "the third item went to nobody, because its sender was cancelled"
        assert await read(slow, 2) == [0, 1]


async def test_a_reader_that_makes_room_has_the_waiting_items_delivered_in_order() -> None:
    room = Broadcast[int](1)
    async with room.subscribe() as items, trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(room.send, number)
            await wait_all_tasks_blocked()

        assert await read(items, 5) == [0, 1, 2, 3, 4]


async def test_a_sender_goes_on_when_the_slow_subscriber_leaves(autojump_clock: MockClock) -> None:
    room = Broadcast[int](1)
    async with room.subscribe() as other, trio.open_nursery() as nursery:
        async with room.subscribe():
            await room.send(0)
            assert await anext(other) == 0
            nursery.start_soon(room.send, 1)
            await wait_all_tasks_blocked()
            assert other.waiting == 0

        with trio.fail_after(1):
            assert await anext(other) == 1


async def test_a_cancelled_reader_loses_no_item() -> None:
    room = Broadcast[int]()
    got = []

    async def reader(items: Subscription[int]) -> None:
        got.append(await anext(items))

    async with room.subscribe() as items:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader, items)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        room.send_nowait(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(items)
        assert got == []
        assert await anext(items) == 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader, items)
            await wait_all_tasks_blocked()
            room.send_nowait(2)
            nursery.cancel_scope.cancel()
        assert got == [2], "it was woken with the item before the cancel"


# Dropping


# Disconnecting


async def test_a_subscriber_that_does_not_keep_up_is_disconnected_behind_its_items() -> None:
    room = Broadcast[int](2, "disconnect")
    async with room.subscribe() as slow, room.subscribe(size=9) as fast:
        for number in range(4):
            await room.send(number)
        assert room.subscribers == 1
        assert await read(slow, 2) == [0, 1]
        for _ in range(2):
            with pytest.raises(TooSlow, match="disconnected: 2 items waited when one more came"):
                await anext(slow)
        assert not slow.put_nowait(5)

        assert await read(fast, 4) == [0, 1, 2, 3]


# One subscriber alone


async def test_an_item_for_one_subscriber_goes_by_its_policy() -> None:
    room = Broadcast[int](1)
    async with (
        room.subscribe() as waiting,
        room.subscribe(policy="drop_newest") as newest,
        room.subscribe(policy="drop_oldest") as oldest,
        room.subscribe(policy="disconnect") as strict,
    ):
        every = (waiting, newest, oldest, strict)
        assert [one.put_nowait(1) for one in every] == [True] * 4
        with pytest.raises(trio.WouldBlock):
            waiting.put_nowait(2)
        assert [one.put_nowait(2) for one in every[1:]] == [False, True, False]
        assert [await anext(one) for one in every] == [1, 1, 2, 1]
        assert (newest.missed, oldest.missed) == (1, 1)
        with pytest.raises(TooSlow):
            await anext(strict)
        assert room.subscribers == 3


# Moving


async def test_a_subscription_moves_to_another_broadcast_with_what_waits() -> None:
    lobby, kitchen = Broadcast[int](), Broadcast[int]()
    async with lobby.subscribe() as items:
        await lobby.send(1)
        items.move_to(kitchen)
        await lobby.send(2)
        await kitchen.send(3)

        assert (lobby.subscribers, kitchen.subscribers) == (0, 1)
        assert await read(items, 2) == [1, 3]
    assert kitchen.subscribers == 0


async def test_a_subscription_that_moves_to_a_closed_broadcast_ends() -> None:
    lobby, kitchen = Broadcast[int](), Broadcast[int]()
    kitchen.close()
    async with lobby.subscribe() as items:
        await lobby.send(1)
        items.move_to(kitchen)
        items.move_to(lobby)

        assert await rest_of(items) == [1]


async def test_a_closed_subscription_ends_behind_the_items_that_wait() -> None:
    broadcast = Broadcast[int](1)
    async with broadcast.subscribe() as items, broadcast.subscribe() as other, trio.open_nursery() as nursery:
        await broadcast.send(1)
        nursery.start_soon(broadcast.send, 2)
        await wait_all_tasks_blocked()
        assert await anext(other) == 1
        items.close()
        items.close()

        assert (await anext(other), broadcast.subscribers) == (2, 1)
        assert items.put_nowait(3) is False
        assert await rest_of(items) == [1]


# The end


async def test_the_end_of_a_broadcast_ends_every_subscription_behind_its_items() -> None:
    async with Broadcast[int]() as room:
        async with room.subscribe() as items, room.subscribe() as others, trio.open_nursery() as nursery:
            await room.send(1)
            assert await anext(others) == 1
            nursery.start_soon(rest_of, others)
            await wait_all_tasks_blocked()
            room.close()

            assert await rest_of(items) == [1]
            assert room.subscribers == 0
            assert not items.put_nowait(2)
        async with room.subscribe() as late:
            assert await rest_of(late) == []
        with pytest.raises(trio.ClosedResourceError, match="the broadcast is closed"):
            await room.send(2)
        with pytest.raises(trio.ClosedResourceError):
            room.send_nowait(2)


async def test_a_sender_that_waits_hears_that_the_broadcast_was_closed() -> None:
    room = Broadcast[int](1)

    async def send() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await room.send(1)

    async with room.subscribe() as items, trio.open_nursery() as nursery:
        await room.send(0)
        nursery.start_soon(send)
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        room.close()
        room.close()

        assert await rest_of(items) == [0]


async def test_a_broadcast_may_end_with_an_error_for_all() -> None:
    room = Broadcast[int]()
    async with room.subscribe() as first, room.subscribe() as second:
        await room.send(1)
        room.close(ApplicationError("the exchange is closed", code=0x301))
        errors = []
        for items in (first, second):
            assert await anext(items) == 1
            with pytest.raises(ApplicationError, match="the exchange is closed") as caught:
                await anext(items)
            errors.append(caught.value)

    async with room.subscribe() as late:
        with pytest.raises(ApplicationError, match="the exchange is closed"):
            await anext(late)
    assert errors[0] is not errors[1], "each task has its own traceback"
    assert errors[0].code == 0x301


async def fail_while(room: Broadcast[int]) -> None:
    async with room:
        await room.send(1)
        raise ZeroDivisionError


async def test_subscribers_do_not_take_the_failure_of_the_source_for_its_end() -> None:
    room = Broadcast[int]()
    async with room.subscribe() as items:
        with pytest.raises(ZeroDivisionError):
            await fail_while(room)

        assert await anext(items) == 1
        with pytest.raises(Canceled, match="the broadcast ended early"):
            await anext(items)


# Any order of events


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    policies=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["wait", *NEVER_WAITING])), min_size=1, max_size=5),
    senders=st.integers(1, 4),
)
def test_items_keep_their_order_and_come_once_whoever_is_cancelled(
    seed: int, policies: list[tuple[int, Policy]], senders: int
) -> None:
    simulate(storm, Random(seed), policies, senders, seed=seed)


async def storm(random: Random, policies: list[tuple[int, Policy]], senders: int) -> None:
    """Senders that are cancelled at times, subscribers that come, read at their pace, are cancelled and go."""
    room = Broadcast[int]()
    numbers = iter(range(1_000_000))
    returned: list[int] = []
    cancelled: set[int] = set()
    logs: list[tuple[Policy, list[int], int]] = []

    async def send() -> None:
        for _ in range(20):
            number = next(numbers)
            with trio.move_on_after(random.choice((0, 0.5, 1, 60))) as scope:
                await room.send(number)
                returned.append(number)
            if scope.cancelled_caught:
                cancelled.add(number)
            if random.random() < 0.3:
                await trio.sleep(random.random())

    async def subscribe(size: int, policy: Policy) -> None:
        for _ in range(3):
            seen: list[int] = []
            await trio.sleep(random.random())
            try:
                async with room.subscribe(size=size, policy=policy, gap=lambda count: -count) as items:
                    for _ in range(random.randrange(12)):
                        with trio.move_on_after(random.choice((0, 0.1, 2))):
                            seen.append(await anext(items))
                        if random.random() < 0.5:
                            await trio.sleep(random.random())
                    with trio.move_on_after(0.5):
                        while items.waiting:
                            seen.append(await anext(items))
                    missed = items.missed
            except TooSlow:
                missed = 0
            logs.append((policy, seen, missed))

    async with trio.open_nursery() as nursery:
        for _ in range(senders):
            nursery.start_soon(send)
        for size, policy in policies:
            nursery.start_soon(subscribe, size, policy)

    assert room.subscribers == 0
    for _, seen, _ in logs:
        items = [one for one in seen if one >= 0]
        assert len(set(items)) == len(items), "no item twice"
        assert not cancelled & set(items), "a cancelled send reached nobody"
        assert set(items) <= set(returned)
    for policy, seen, missed in logs:
        gaps = sum(-one for one in seen if one < 0)
        assert gaps <= missed
        if policy in ("wait", "disconnect"):
            assert gaps == missed == 0
    assert_one_order([[one for one in seen if one >= 0] for _, seen, _ in logs])


def assert_one_order(lists: list[list[int]]) -> None:
    """Two subscribers saw the items that both saw in the same order."""
    for first in lists:
        place = {item: index for index, item in enumerate(first)}
        for second in lists:
            common = [place[item] for item in second if item in place]
            assert common == sorted(common)


@settings(max_examples=200 if ALL_CASES else 40)
@given(
    size=st.integers(1, 4),
    policy=st.sampled_from(DROPPING),
    steps=st.lists(st.sampled_from(["send", "send", "read"]), max_size=60),
)
def test_gaps_stand_where_items_are_missing(size: int, policy: Policy, steps: list[str]) -> None:
    seen: list[int] = []
    sent = 0

    async def main() -> None:
        nonlocal sent
        room = Broadcast[int](size, policy)
        async with room.subscribe(gap=lambda count: -count) as items:
            for step in steps:
                if step == "send":
                    room.send_nowait(sent)
                    sent += 1
                elif items.waiting:
                    seen.append(await anext(items))
                assert items.waiting <= size
            room.close()
            seen.extend(await rest_of(items))
            assert items.missed == -sum(one for one in seen if one < 0)

    trio.run(main)
    expected = 0
    for one in seen:
        if one < 0:
            expected -= one
        elif one > 0 or expected == 0:
            assert one == expected
            expected += 1
    assert expected == sent


# As the body of a handler


def price_responder(room: Broadcast[str], **options: object) -> Responder:
    responder = Responder()

    @responder.request_stream("prices")
    async def prices(request: Payload) -> AsyncIterator[str]:
        async with room.subscribe(**options) as items:  # type: ignore[arg-type]
            async for item in items:
                yield item

    return responder


async def test_a_peer_that_cancels_is_no_subscriber_any_more(autojump_clock: MockClock) -> None:
    room = Broadcast[str](1)
    async with connected_pair(price_responder(room)) as pair, trio.open_nursery() as nursery:
        async with pair.client.request_stream(route="prices", initial_request_n=1, refill=False):
            await wait_all_tasks_blocked()
            for number in range(4):  # one on its way, one in the handler, one in the mailbox, one too many
                nursery.start_soon(room.send, str(number))
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
        with trio.fail_after(1):
            while nursery.child_tasks:
                await wait_all_tasks_blocked()

        assert room.subscribers == 0


async def test_a_peer_that_is_disconnected_is_told_why_and_nothing_has_failed(autojump_clock: MockClock) -> None:
    room = Broadcast[str](1, "disconnect")
    async with connected_pair(price_responder(room)) as pair:
        async with pair.client.request_stream(route="prices", initial_request_n=1, refill=False) as items:
            await wait_all_tasks_blocked()
            for number in range(4):
                await room.send(str(number))
                await wait_all_tasks_blocked()
            items.request_n(10)
            with pytest.raises(ApplicationError, match="disconnected: 1 items waited when one more came"):
                async for _ in items:
                    pass

        assert pair.server.faults.handler_errors == 0
