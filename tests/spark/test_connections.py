"""The pool: shared connections, the next URI when one fails, credentials in SETUP, and nothing secret in errors."""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs
import pytest
import trio
import trustme
from trio.testing import MockClock

from rsocket_trio import Connection, ConnectionLost, InvalidSetup, Payload, RejectedSetup, Responder, Setup, serve
from rsocket_trio.errors import SetupError
from rsocket_trio.metadata import AUTHENTICATION, decode_authentication, decode_composite
from rsocket_trio.spark.connections import Tries, target_of
from tests.spark.serving import URI, options, pool, served


def answering(name: str) -> Responder:
    responder = Responder()

    @responder.request_response("who")
    def who(request: Payload) -> str:
        return name

    return responder


async def ask(connection: Connection) -> str:
    return (await connection.request_response(route="who")).text


async def test_a_connection_is_shared_and_ends_when_nobody_uses_it(autojump_clock: MockClock) -> None:
    target = target_of(options(connection_idle_timeout=30.0))
    async with served(answering("a")) as connections:
        async with connections.connection(target) as first, connections.connection(target) as second:
            assert first is second
        await trio.sleep(29)
        async with connections.connection(target) as third:
            assert third is first
            await trio.sleep(100)
            assert first.status == "open"
        await trio.sleep(29)
        assert connections.connections == 1
        await trio.sleep(2)
        assert connections.connections == 0
        assert first.status == "closed"


async def test_other_terms_are_another_connection(autojump_clock: MockClock) -> None:
    async with (
        served(answering("a")) as connections,
        connections.connection(target_of(options())) as first,
        connections.connection(target_of(options(setupData="x"))) as second,
    ):
        assert first is not second


async def test_a_connection_that_is_lost_is_replaced(autojump_clock: MockClock) -> None:
    target = target_of(options())
    async with pool() as connections, trio.open_nursery() as nursery:
        with trio.CancelScope() as first_life:
            async with trio.open_nursery() as life:
                await life.start(serve, answering("first"), [URI])
                async with connections.connection(target) as connection:
                    assert await ask(connection) == "first"
                first_life.cancel()
        await nursery.start(serve, answering("second"), [URI])
        async with connections.connection(target) as connection:
            assert await ask(connection) == "second"
        nursery.cancel_scope.cancel()


async def test_a_distrusted_connection_is_not_given_again_and_ends_with_its_users(autojump_clock: MockClock) -> None:
    target = target_of(options())
    async with served(answering("a")) as connections:
        async with connections.connection(target) as first:
            connections.distrust(first)
            async with connections.connection(target) as second:
                assert second is not first
            assert first.status == "open"
        await trio.sleep(1)
        assert first.status == "closed"


async def test_the_next_uri_is_tried_and_remembered(autojump_clock: MockClock) -> None:
    target = target_of(options(path="memory://nobody,memory://somebody"))
    async with served(answering("somebody"), "memory://somebody") as connections:
        async with connections.connection(target) as connection:
            assert await ask(connection) == "somebody"
            connections.distrust(connection)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, answering("nobody"), ["memory://nobody"])
            async with connections.connection(target) as connection:
                assert await ask(connection) == "somebody"
            nursery.cancel_scope.cancel()


async def test_the_next_uri_is_tried_where_a_server_refuses(autojump_clock: MockClock) -> None:
    refusing = answering("full")

    @refusing.setup
    def refuse(setup: Setup, connection: Connection) -> None:
        raise RejectedSetup("full, come back later")

    target = target_of(options(path="memory://full,memory://somebody"))
    async with served(refusing, "memory://full") as connections, trio.open_nursery() as nursery:
        with pytest.raises(ConnectionLost, match=r"memory://full: full, come back later; memory://somebody"):
            async with connections.connection(target):
                pass
        await nursery.start(serve, answering("somebody"), ["memory://somebody"])
        async with connections.connection(target) as connection:
            assert await ask(connection) == "somebody"
        nursery.cancel_scope.cancel()


async def test_a_refusal_that_may_pass_is_told_before_one_that_does_not(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        for uri, error in (("memory://old", InvalidSetup("too new")), ("memory://full", RejectedSetup("full"))):
            responder = answering(uri)

            def refuse(setup: Setup, connection: Connection, error: SetupError = error) -> None:
                raise error

            responder.setup(refuse)
            await nursery.start(serve, responder, [uri])
        async with pool() as connections:
            for path, kind in (("memory://old,memory://full", RejectedSetup), ("memory://old", InvalidSetup)):
                with pytest.raises(kind):
                    async with connections.connection(target_of(options(path=path))):
                        pass
        nursery.cancel_scope.cancel()


async def test_when_no_uri_answers_each_is_named_with_its_reason(autojump_clock: MockClock) -> None:
    target = target_of(options(path="memory://a,memory://b"))
    async with pool() as connections:
        with pytest.raises(ConnectionLost, match=r"memory://a.*; .*memory://b"):
            async with connections.connection(target):
                pass


async def test_a_server_that_never_answers_is_given_up() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    uri = f"tcp://127.0.0.1:{port}"
    target = target_of(options(path=f"{uri}", connect_timeout=0.05))
    async with pool() as connections, listeners[0]:
        with pytest.raises(ConnectionLost, match=f"{uri}: no answer to a ping within 0.05 s"):
            async with connections.connection(target):
                pass


async def test_the_query_of_a_uri_is_in_no_error() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    async with pool() as connections:
        with pytest.raises(ConnectionLost) as caught:
            async with connections.connection(target_of(options(path=f"ws://127.0.0.1:{port}/x?token=hidden"))):
                pass

    assert "hidden" not in str(caught.value)
    assert "/x?..." in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"auth_type": "simple", "auth_user": "alice", "auth_password": "pass-w"}, ("alice", "pass-w")),
        ({"auth_type": "bearer", "auth_token": "t0k3n"}, ("t0k3n",)),
    ],
)
async def test_credentials_are_said_in_setup(
    given: dict[str, str], said: tuple[str, ...], autojump_clock: MockClock
) -> None:
    setups: list[Setup] = []
    responder = answering("a")

    @responder.setup
    def look(setup: Setup, connection: Connection) -> None:
        setups.append(setup)

    wanted = options(setupData="hello", dataMimeType="text/plain", **given)
    async with served(responder) as connections, connections.connection(target_of(wanted)) as connection:
        assert await ask(connection) == "a"

    [setup] = setups
    [entry] = decode_composite(setup.payload.metadata or b"")
    assert entry.mime == AUTHENTICATION
    found = decode_authentication(entry.content)
    assert attrs.astuple(found) == said
    assert (setup.payload.data, setup.data_mime, setup.keepalive_interval) == (b"hello", "text/plain", 20.0)
    assert all(word not in repr(target_of(wanted)) for word in (*said, "hello"))


async def test_a_refusal_is_raised_to_all_who_wait(autojump_clock: MockClock) -> None:
    responder = answering("a")

    @responder.setup
    def refuse(setup: Setup, connection: Connection) -> None:
        raise RejectedSetup("who are you?")

    async with served(responder) as connections:
        for _ in range(2):
            with pytest.raises(RejectedSetup, match="who are you"):
                async with connections.connection(target_of(options())) as connection:
                    await ask(connection)


async def test_tls_is_as_the_options_say(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    client = authority.issue_cert("client")
    client.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(
            lambda task_status: serve(
                answering("safe"), ["tls://127.0.0.1:0"], ssl_context=context, task_status=task_status
            )
        )
        wanted = options(path=uri, tls_ca=tmp_path / "ca.pem", tls_cert=tmp_path / "client.pem")
        async with pool() as connections, connections.connection(target_of(wanted)) as connection:
            assert await ask(connection) == "safe"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("name", "option"), [("tls_ca", "tls.ca"), ("tls_cert", "tls.cert")])
async def test_a_tls_file_that_is_not_there_is_named_by_its_option(name: str, option: str, tmp_path: Path) -> None:
    wanted = options(path="tls://127.0.0.1:1", **{name: tmp_path / "hidden.pem"})
    async with pool() as connections:
        with pytest.raises(ValueError, match=f"option '{option}' does not work: No such file") as caught:
            async with connections.connection(target_of(wanted)):
                pass

    assert "hidden" not in str(caught.value)


async def test_tries_double_their_pauses_and_end(autojump_clock: MockClock) -> None:
    tries = Tries(options(reconnectMaxAttempts=7), "asking")
    pauses = []
    for _ in range(7):
        began = trio.current_time()
        await tries.failed(ConnectionLost("gone"))
        pauses.append(trio.current_time() - began)
    with pytest.raises(ConnectionLost, match="asking: given up after 8 tries: gone"):
        await tries.failed(ConnectionLost("gone"))

    longest = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert all(0.8 * most <= pause <= most for pause, most in zip(pauses, longest, strict=True))
    tries.succeeded()
    assert tries.number == 0
