"""Leases: the server says how many requests each client may send, and for how long.

The policy is given the SETUP, so that it can differ by user. The client's requests wait for a permit by themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from rsocket_trio import Connection, Lease, Payload, Responder, Setup, open_connection, serve

BUDGETS = {"guest": 2, "friend": 5}
responder = Responder()


@responder.lease
async def permits(setup: Setup) -> AsyncIterator[Lease]:
    while True:
        yield Lease(number_of_requests=BUDGETS[setup.payload.text], time_to_live=0.5)
        await trio.sleep(0.5)


@responder.request_response("work")
def work(request: Payload) -> str:
    return f"done {request.text}"


async def use(connection: Connection, user: str, wanted: int) -> None:
    started = trio.current_time()
    for number in range(1, wanted + 1):
        await connection.request_response(str(number), route="work")  # waits for a permit
    leases = round((trio.current_time() - started) / 0.5) + 1
    print(f"{user}: {wanted} requests needed {leases} leases of {BUDGETS[user]}")


async def run() -> None:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
        for user in BUDGETS:
            async with open_connection(uri, setup=user, lease=True) as connection:
                await use(connection, user, wanted=5)
        nursery.cancel_scope.cancel()


def main() -> None:
    trio.run(run)


if __name__ == "__main__":
    main()
