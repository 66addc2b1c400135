"""What is said anew at each dial of a client that outlives its connections, and what when it can't be told?"""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    Connection,
    ConnectionLost,
    Payload,
    RejectedSetup,
    Responder,
    ResumeOptions,
    Setup,
    connect_forever,
    serve,
)
from tests.client.reconnecting import EXACT, URI, Told, busy_responder, service
from tests.connection.pairs import settle


def listening(heard: list[Payload]) -> Responder:
    """It writes down what clients say when they connect."""
    responder = busy_responder([])

    @responder.setup
    def hear(setup: Setup, connection: Connection) -> None:
        heard.append(setup.payload)

    return responder


class Tokens:
    """Says another token each time; or raises."""

    def __init__(self, *errors: Exception) -> None:
        self.made = 0
        self.errors = list(errors)

    def now(self) -> Payload:
        if self.errors:
            raise self.errors.pop(0)
        self.made += 1
        return Payload(b"token %d" % self.made, b"metadata %d" % self.made)

    async def soon(self) -> Payload:
        await trio.sleep(0.01)
        return self.now()


@pytest.mark.parametrize("kind", ["now", "soon"])
async def test_a_setup_is_made_for_each_connection(autojump_clock: MockClock, kind: str) -> None:
    heard: list[Payload] = []
    tokens = Tokens()
    async with (
        service(listening(heard)) as running,
        connect_forever(URI, backoff=EXACT, setup=getattr(tokens, kind)) as client,
    ):
        for _ in range(3):
            await client.request_response(b"x")
            running.cut()
            await settle()

    assert heard == [Payload(b"token %d" % number, b"metadata %d" % number) for number in (1, 2, 3)]


async def test_headers_are_made_for_each_connection() -> None:
    heard: list[str | None] = []
    made = iter(range(10))
    responder = busy_responder([])

    @responder.setup
    def hear(setup: Setup, connection: Connection) -> None:
        heard.append(setup.header("authorization"))

    def headers() -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {next(made)}")]

    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["ws://127.0.0.1:0"])
        async with connect_forever(uri, backoff=EXACT, headers=headers) as client:
            for _ in range(2):
                await client.request_response(b"x")
                await (await client.connected()).drain()
            await client.request_response(b"x")
        nursery.cancel_scope.cancel()

    assert heard == ["Bearer 0", "Bearer 1", "Bearer 2"]


@pytest.mark.parametrize("error", [OSError, trio.TooSlowError, trio.BrokenResourceError, ConnectionLost])
async def test_a_token_that_cannot_be_had_now_is_a_try_that_failed(
    autojump_clock: MockClock, error: type[Exception]
) -> None:
    heard: list[Payload] = []
    tokens, told = Tokens(error("nobody there"), error("nobody there")), Told()
    async with (
        service(listening(heard)),
        connect_forever(URI, backoff=EXACT, setup=tokens.now, on_state=told, wait=False) as client,
    ):
        await settle()
        with pytest.raises(ConnectionLost, match=r"no connection: .*nobody there"):
            await client.request_response(b"x")
        await client.connected()
        assert (await client.request_response(b"x")).data == b"done x"

    assert told.pauses == [0.1, 0.2]
    assert len(heard) == 1


@pytest.mark.parametrize("error", [KeyError, ValueError, TypeError, RejectedSetup])
@pytest.mark.parametrize("later", [False, True])
async def test_a_fault_of_the_function_leaves_the_block_as_itself(
    autojump_clock: MockClock, error: type[Exception], later: bool
) -> None:
    own = error("own")
    tokens = Tokens()
    async with service() as running:
        with pytest.raises(error) as caught:  # noqa: PT012
            async with connect_forever(URI, backoff=EXACT, setup=tokens.now) as client:
                if later:
                    await client.connected()
                tokens.errors.append(own)
                running.cut()
                await trio.sleep_forever()

    assert caught.value is own


async def test_a_session_that_is_resumed_says_no_setup(autojump_clock: MockClock) -> None:
    heard: list[Payload] = []
    tokens, options = Tokens(), ResumeOptions(jitter=0)
    async with (
        service(listening(heard), resume=options) as running,
        connect_forever(URI, backoff=EXACT, setup=tokens.now, resume=options) as client,
    ):
        await client.request_response(b"x")
        running.cut()
        await trio.sleep(1)
        await client.request_response(b"y")
        assert running.served == 2

    assert len(heard) == tokens.made == 1
