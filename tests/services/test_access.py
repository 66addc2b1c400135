"""Credentials become a user, in the SETUP and on each request; without a right to it, no handler runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import deepcopy
from functools import partial
from typing import Any, Protocol, assert_type

import attrs
import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Backoff,
    Channel,
    Connection,
    Invalid,
    InvalidSetup,
    Outgoing,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    RSocketError,
    Setup,
    UnsupportedSetup,
    connect_forever,
    current_connection,
    open_connection,
    open_connection_over,
    serve,
    serve_stream,
    testing,
)
from rsocket_trio.metadata import (
    AUTHENTICATION,
    ROUTING,
    Entry,
    decode_composite,
    encode_authentication,
    encode_composite,
)
from rsocket_trio.services import Bearer, Call, Service, Simple, current_user, request_response
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.connection.resuming import pair as resuming_pair
from tests.services.interactions import served

COMPOSITE = ("rsocket/1.0", "reactivesocket/0.2", "reactivesocket/0.1", "reactivesocket/0.0", "rsocket/2.0-draft")
"""The dialects whose connections may have composite metadata."""
WITHOUT_COMPOSITE = "auth= needs composite metadata"
every_dialect = pytest.mark.parametrize("dialect", COMPOSITE)


@attrs.frozen
class User:
    name: str
    admin: bool = False


USERS = {"ada-token": User("ada", admin=True), "bob-token": User("bob")}


def guarded(**terms: Any) -> Responder:
    """Return a responder that knows its users, and tells each who it is."""
    responder = Responder(**terms)

    @responder.authenticate
    def find(credentials: object, where: Setup | Call) -> User | None:
        match credentials:
            case Bearer(token=token):
                return USERS.get(token)
            case Simple(username=name, password="sesame"):
                return User(name)
        return None

    @responder.request_response("whoami")
    def whoami(request: Payload) -> str:
        return name_of(current_user())

    @responder.request_response("whoami.async")
    async def whoami_async(request: Payload) -> str:
        await trio.lowlevel.checkpoint()
        return name_of(current_user())

    @responder.request_response("whoami.typed")
    async def whoami_typed(greeting: str) -> str:
        return f"{greeting} {name_of(current_user())}"

    @responder.request_stream("whoami")
    async def whoami_stream(request: Payload) -> AsyncIterator[str]:
        yield name_of(current_user())

    @responder.request_channel("whoami")
    async def whoami_channel(channel: Channel) -> None:
        await channel.send(name_of(current_user()))

    return responder


def name_of(user: User | None) -> str:
    return "nobody" if user is None else user.name


async def whoami(connection: Any, **options: Any) -> str:
    answer: Payload = await connection.request_response(route="whoami", **options)
    return answer.text


async def refused(responder: Responder, route: str | None = "whoami", **options: Any) -> RSocketError:
    """Return the error of the first request of a connection with these options."""
    with pytest.raises(RSocketError) as caught:
        async with testing.connected_pair(responder, **options) as (client, _):
            await client.request_response(route=route)
    return caught.value


# The SETUP


@every_dialect
@pytest.mark.parametrize(("auth", "name"), [(Bearer("ada-token"), "ada"), (Simple("eve", "sesame"), "eve")])
async def test_credentials_of_the_setup_become_the_user_of_the_connection(dialect: str, auth: Any, name: str) -> None:
    async with connected_pair(guarded(), dialect=dialect, auth=auth) as pair:
        assert await whoami(pair.client) == name
        assert pair.server.user.name == name
        assert pair.client.user is None


@every_dialect
async def test_of_several_credentials_the_first_count(dialect: str) -> None:
    tokens = [Entry(AUTHENTICATION, encode_authentication(Bearer(f"{name}-token"))) for name in ("ada", "bob", "eve")]
    async with connected_pair(guarded(), dialect=dialect, setup=Payload(b"", encode_composite(tokens))) as pair:
        assert await whoami(pair.client) == "ada"
        request = Payload(b"", encode_composite([*tokens[1:], Entry(ROUTING, b"\6whoami")]))
        assert (await pair.client.request_response(request)).text == "bob"


async def test_credentials_of_the_setup_stand_in_its_metadata_after_those_of_the_application() -> None:
    own = Payload(b"hello", encode_composite([Entry("application/x.own", b"mine")]))
    async with connected_pair(guarded(), setup=own, auth=Bearer("ada-token")) as pair:
        setup = pair.server.setup.payload

    # 0x7C is message/x.rsocket.authentication.v0, 0x81 the type bearer.
    assert setup.data == b"hello"
    assert own.metadata is not None
    assert setup.metadata == own.metadata + b"\xfc\x00\x00\x0a\x81ada-token"


@every_dialect
async def test_a_token_that_is_nobodys_is_refused_in_the_setup(dialect: str) -> None:
    error = await refused(guarded(), dialect=dialect, auth=Bearer("stolen"))

    assert isinstance(error, RejectedSetup)
    assert error.data == b"not allowed"


@pytest.mark.parametrize("kind", ["plain", "async", "waits"])
async def test_a_function_gives_the_credentials(kind: str) -> None:
    def plain() -> Bearer:
        return Bearer("bob-token")

    async def fresh() -> Bearer:
        await trio.lowlevel.checkpoint()
        return Bearer("bob-token")

    auth: Any = {"plain": plain, "async": fresh, "waits": partial(fresh)}[kind]
    async with connected_pair(guarded(), auth=auth) as pair:
        assert await whoami(pair.client) == "bob"
        assert await whoami(pair.client, auth=auth) == "bob"


async def test_an_error_of_the_function_is_raised_by_the_connection_or_the_request() -> None:
    def locked() -> Bearer:
        raise PermissionError("the keyring is locked")

    with pytest.raises(PermissionError, match="keyring"):
        async with open_connection("memory://nobody", auth=locked):
            pass
    async with connected_pair(guarded()) as pair:
        with pytest.raises(PermissionError, match="keyring"):
            await pair.client.request_response(route="whoami", auth=locked)
        with pytest.raises(PermissionError, match="keyring"):
            async with pair.client.request_stream(route="whoami", auth=locked):
                pass
        await settle()
        assert pair.client_said.names == []


@pytest.mark.parametrize(
    "wrong", ["ada-token", b"ada-token", 7, lambda: "ada-token"], ids=["text", "bytes", "number", "function"]
)
async def test_what_is_no_credentials_is_a_type_error_that_does_not_show_it(wrong: Any) -> None:
    shown = ""
    for opened in open_connection, connect_forever:
        with pytest.raises(TypeError, match="auth is Simple or Bearer") as opening:
            async with opened("memory://nobody", auth=wrong):
                pass
        shown += str(opening.value)
    async with connected_pair(guarded()) as pair:
        with pytest.raises(TypeError, match="auth is Simple or Bearer") as asking:
            await pair.client.request_response(route="whoami", auth=wrong)

    assert "ada-token" not in f"{shown} {asking.value}"


@every_dialect
async def test_without_composite_metadata_credentials_are_a_value_error(dialect: str) -> None:
    with pytest.raises(ValueError, match=f"{WITHOUT_COMPOSITE}.*'text/plain'"):
        async with open_connection("memory://nobody", dialect=dialect, metadata_mime="text/plain", auth=Bearer("t")):
            pass
    async with connected_pair(guarded(), dialect=dialect, metadata_mime="text/plain") as pair:
        with pytest.raises(ValueError, match=f"{WITHOUT_COMPOSITE}.*'text/plain'"):
            await pair.client.request_response(auth=Bearer("t"))
        with pytest.raises(ValueError, match=WITHOUT_COMPOSITE):
            pair.client.request_stream(auth=Bearer("t"))
        with pytest.raises(ValueError, match=WITHOUT_COMPOSITE):
            await pair.client.fire_and_forget(auth=Bearer("t"))


async def test_streamux_has_no_metadata_for_credentials() -> None:
    with pytest.raises(ValueError, match=f"{WITHOUT_COMPOSITE}, and the connection has no metadata"):
        async with open_connection("memory://nobody", dialect="streamux/1", auth=Bearer("t")):
            pass
    async with served(guarded()) as uri, open_connection(uri, dialect="streamux/1") as client:
        with pytest.raises(ValueError, match=f"{WITHOUT_COMPOSITE}, and the connection has no metadata"):
            await client.request_response(auth=Bearer("t"))


# What the function on the server may do


def answering(answer: Callable[[], object]) -> Responder:
    """Return a responder whose function that authenticates does this."""
    responder = Responder()
    ran: list[Payload] = []

    @responder.authenticate
    def find(credentials: object, where: object) -> object:
        return answer()

    @responder.request_response("whoami")
    def whoami(request: Payload) -> str:
        ran.append(request)
        return str(current_user())

    return responder


def raising(error: Exception) -> Callable[[], object]:
    def answer() -> object:
        raise deepcopy(error)  # its traceback keeps a connection alive

    return answer


NOT = "not allowed"
TWO = ExceptionGroup("", [Rejected("a"), KeyError()])
# fmt: off
ANSWERS: dict[str, tuple[Callable[[], object], type[RSocketError], str, type[RSocketError], str]] = {
    # its name           what it does                                     of a SETUP, its text      of a request
    "none":              (lambda: None,                                   RejectedSetup, NOT,       Rejected, NOT),
    "rejected setup":    (raising(RejectedSetup("late")),                 RejectedSetup, "late",    Rejected, "late"),
    "invalid setup":     (raising(InvalidSetup("realm")),                 InvalidSetup, "realm",    Rejected, "realm"),
    "unsupported":       (raising(UnsupportedSetup("no")),                UnsupportedSetup, "no",   Rejected, "no"),
    "rejected":          (raising(Rejected("late")),                      RejectedSetup, "late",    Rejected, "late"),
    "application error": (raising(ApplicationError("x")),                 RejectedSetup, "x",    ApplicationError, "x"),
    "value error":       (raising(ValueError("t")),                       RejectedSetup, NOT,       Rejected, NOT),
    "group of one":      (raising(ExceptionGroup("", [Rejected("why")])), RejectedSetup, "why",     Rejected, "why"),
    "group of two":      (raising(TWO),                                   RejectedSetup, NOT,       Rejected, NOT),
}
# fmt: on


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_refusal_says_what_the_function_says_or_nothing(kind: str) -> None:
    answer, of_setup, text_of_setup, of_request, text_of_request = ANSWERS[kind]
    error = await refused(answering(answer), auth=Bearer("t"))
    assert (type(error), str(error)) == (of_setup, text_of_setup)

    async with connected_pair(answering(answer)) as pair:
        with pytest.raises(of_request) as caught:
            await whoami(pair.client, auth=Bearer("t"))
    assert (type(caught.value), str(caught.value)) == (of_request, text_of_request)


async def test_who_tries_many_tokens_fills_no_log(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    """A function that looks tokens up in a dictionary raises for each that is not there."""
    responder = guarded()
    tokens = Responder()
    tokens.authenticate(lambda credentials, where: {"ada-token": "ada"}[credentials.token])
    tokens.request_response("whoami")(lambda request: b"")
    for made in responder, tokens:
        async with connected_pair(made) as pair:
            for number in range(100):
                with pytest.raises(Rejected, match="not allowed"):
                    await whoami(pair.client, auth=Bearer(f"guess-{number}"))
            await trio.sleep(61)
            with pytest.raises(Rejected, match="not allowed"):
                await whoami(pair.client, auth=Bearer("guess"))
            assert pair.server.faults.handler_errors == 0

    first, repeats = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "raised builtins.KeyError" in first or "raised KeyError" in first
    assert "100 times" in repeats
    assert "guess-" not in caplog.text


async def test_the_function_gets_the_setup_or_the_call() -> None:
    asked: list[tuple[object, object]] = []
    responder = Responder()

    @responder.authenticate
    async def find(credentials: object, where: Setup | Call) -> str:
        asked.append((credentials, where))
        return "ada"

    @responder.request_response("orders.{id}")
    async def order(id: str) -> str:
        return id

    async with connected_pair(responder, auth=Bearer("one")) as pair:
        await pair.client.request_response(route="orders.7", auth=Simple("ada", "two"))

    (first, setup), (second, call) = asked
    assert (first, second) == (Bearer("one"), Simple("ada", "two"))
    assert isinstance(setup, Setup)
    assert setup.dialect == "rsocket/1.0"
    assert isinstance(call, Call)
    assert (call.route, call.parameters, call.side) == ("orders.7", {"id": "7"}, "server")


def test_there_is_one_function_that_authenticates() -> None:
    responder = guarded()
    with pytest.raises(ValueError, match=r"authenticate has a handler already: guarded\.<locals>\.find"):
        responder.authenticate(lambda credentials, where: None)
    of_one_argument: Any = str.lower
    with pytest.raises(TypeError, match="authenticate takes"):
        Responder().authenticate(of_one_argument)


async def test_the_user_is_there_when_the_setup_handler_runs() -> None:
    seen: list[object] = []
    responder = guarded()

    @responder.setup
    async def admit(setup: Setup, connection: Connection) -> None:
        seen.append((name_of(connection.user), name_of(current_user())))
        if connection.user is None:
            raise RejectedSetup("who are you?")

    async with connected_pair(responder, auth=Bearer("ada-token")) as pair:
        assert await whoami(pair.client) == "ada"
    error = await refused(responder)

    assert str(error) == "who are you?"
    assert seen == [("ada", "ada"), ("nobody", "nobody")]


async def test_a_setup_handler_can_name_the_user_itself() -> None:
    responder = Responder()

    @responder.setup
    def by_certificate(setup: Setup, connection: Connection) -> None:
        connection.user = User("ada")

    @responder.request_response("whoami", requires=lambda user, call: user.name == "ada")
    def whoami_(request: Payload) -> str:
        return name_of(current_user())

    async with connected_pair(responder) as pair:
        assert await whoami(pair.client) == "ada"


async def test_malformed_credentials_of_the_setup_are_invalid() -> None:
    broken = encode_composite([Entry(AUTHENTICATION, b"\x80\x00\xffx")])
    error = await refused(guarded(), setup=Payload(b"", broken))
    assert isinstance(error, InvalidSetup)
    assert "user name of 255 bytes" in str(error)

    error = await refused(guarded(), setup=Payload(b"", b"\x7f\x00"))
    assert isinstance(error, InvalidSetup)


# auth_required


@every_dialect
@pytest.mark.parametrize(
    "auth", [None, Bearer("stolen"), Simple("ada", "wrong")], ids=["none", "a stolen token", "a wrong password"]
)
async def test_a_server_that_requires_credentials_refuses_others(dialect: str, auth: Any) -> None:
    responder = guarded(auth_required=True)
    error = await refused(responder, dialect=dialect, auth=auth)

    assert isinstance(error, RejectedSetup)
    assert str(error) == "not allowed"
    async with connected_pair(responder, dialect=dialect, auth=Bearer("ada-token")) as pair:
        assert await whoami(pair.client) == "ada"


@every_dialect
async def test_a_server_that_requires_credentials_and_cannot_check_them_refuses_everybody(dialect: str) -> None:
    for auth in None, Bearer("ada-token"):
        error = await refused(Responder(auth_required=True), dialect=dialect, auth=auth)
        assert isinstance(error, RejectedSetup)


async def test_a_server_that_requires_credentials_serves_no_streamux() -> None:
    async def ask() -> None:
        async with open_connection(uri, dialect="streamux/1") as client:
            await client.request_response(b"?")

    async with served(guarded(auth_required=True)) as uri:
        with pytest.raises(RSocketError, match=r"not allowed|closed"):
            await ask()


async def test_the_credentials_may_be_the_whole_metadata_of_the_setup() -> None:
    """As peers send them that have no composite metadata."""
    whole = Payload(b"", encode_authentication(Bearer("ada-token")))
    responder = guarded(auth_required=True)
    responder.request_response(lambda request: name_of(current_user()))
    async with connected_pair(responder, setup=whole, metadata_mime=AUTHENTICATION) as pair:
        assert (await pair.client.request_response()).text == "ada"


async def test_nothing_is_read_of_a_client_that_is_not_in() -> None:
    ran: list[Payload] = []
    responder = guarded(auth_required=True)
    responder.request_response(ran.append)
    responder.fire_and_forget(ran.append)
    async with raw.bare_server(raw.RS10, responder) as peer:
        await peer.send(raw.setup(), raw.ask(1, b"hello"), raw.forget(3, b"hello"))
        assert await peer.expect_failure(raw.REJECTED_SETUP) == b"not allowed"

    assert ran == []


# Each request


@pytest.mark.parametrize("route", ["whoami", "whoami.async", "whoami.typed"])
async def test_every_form_of_handler_finds_the_user(route: str) -> None:
    async with connected_pair(guarded(), auth=Bearer("ada-token"), data_mime="text/plain") as pair:
        for auth, name in ((None, "ada"), (Bearer("bob-token"), "bob"), (None, "ada")):
            answer = await pair.client.request_response("hello", route=route, auth=auth)
            assert answer.text.removeprefix("hello ") == name
        async with pair.client.request_stream(route="whoami", auth=Bearer("bob-token")) as items:
            assert [item.text async for item in items] == ["bob"]
        async with pair.client.request_stream(route="whoami") as items:
            assert [item.text async for item in items] == ["ada"]
        async with pair.client.request_channel(route="whoami", auth=Bearer("bob-token")) as channel:
            assert [item.text async for item in channel] == ["bob"]


async def test_a_contract_takes_credentials_for_all_of_its_requests() -> None:
    class Names(Service, Protocol, route="names"):
        @request_response
        async def mine(self) -> str: ...

    class MyNames:
        async def mine(self) -> str:
            return name_of(current_user())

    responder = guarded()
    responder.serve_as(Names, MyNames(), requires=lambda user, call: call.route == "names.mine")
    tokens = iter(["ada-token", "bob-token"])
    async with connected_pair(responder) as pair:
        names: Any = pair.client.remote(Names, auth=lambda: Bearer(next(tokens)))
        assert [await names.mine(), await names.mine()] == ["ada", "bob"]
        anonymous: Any = pair.client.remote(Names)
        with pytest.raises(Rejected, match="not allowed"):
            await anonymous.mine()


async def test_credentials_of_a_request_replace_those_in_its_metadata() -> None:
    stolen = Payload(b"", encode_composite([Entry(AUTHENTICATION, encode_authentication(Bearer("stolen")))]))
    async with connected_pair(guarded()) as pair:
        answer = await pair.client.request_response(stolen, route="whoami", auth=Bearer("ada-token"))

    assert answer.text == "ada"


@pytest.mark.parametrize("content", [b"", b"\x80\x00\xffx", b"\x81\xff"], ids=["empty", "cut short", "not UTF-8"])
async def test_malformed_credentials_of_a_request_are_rejected(content: bytes) -> None:
    request = Payload(b"", encode_composite([Entry(AUTHENTICATION, content)]))
    async with connected_pair(guarded(), auth=Bearer("ada-token")) as pair:
        with pytest.raises(Rejected, match="not allowed"):
            await pair.client.request_response(request, route="whoami")


# requires


async def is_admin(user: User, call: Call) -> bool:
    await trio.lowlevel.checkpoint()
    return user.admin


@pytest.mark.parametrize("requires", [lambda user, call: user.admin, is_admin], ids=["plain", "async"])
async def test_only_those_for_whom_requires_is_true_may_call(requires: Any) -> None:
    ran: list[str] = []
    responder = guarded()

    @responder.request_response("secret", requires=requires)
    def respond(request: Payload) -> str:
        ran.append(f"respond {name_of(current_user())}")
        return "gold"

    @responder.fire_and_forget("secret", requires=requires)
    def forget(request: Payload) -> None:
        ran.append(f"forget {name_of(current_user())}")

    @responder.request_stream("secret", requires=requires)
    async def generate(request: Payload) -> AsyncIterator[str]:
        ran.append(f"generate {name_of(current_user())}")
        yield "gold"

    @responder.request_channel("secret", requires=requires)
    async def converse(channel: Channel) -> None:
        ran.append(f"converse {name_of(current_user())}")
        await channel.send("gold")

    async def call_all(auth: Any) -> list[str]:
        said = []
        calls: list[Callable[[], Awaitable[str]]] = [
            lambda: text(pair.client.request_response(route="secret", auth=auth)),
            lambda: all_of(pair.client.request_stream(route="secret", auth=auth)),
            lambda: all_of(pair.client.request_channel(route="secret", auth=auth)),
        ]
        for call in calls:
            try:
                said.append(await call())
            except Rejected as error:
                said.append(str(error))
        await pair.client.fire_and_forget(route="secret", auth=auth)
        await settle()
        return said

    async with connected_pair(responder) as pair:
        assert await call_all(None) == ["not allowed"] * 3
        assert await call_all(Bearer("bob-token")) == ["not allowed"] * 3
        assert ran == []
        assert await call_all(Bearer("ada-token")) == ["gold"] * 3
        assert ran == [f"{name} ada" for name in ("respond", "generate", "converse", "forget")]


async def text(answer: Awaitable[Payload]) -> str:
    return (await answer).text


async def all_of(stream: Any) -> str:
    async with stream as items:
        return "".join([item.text async for item in items])


@pytest.mark.parametrize("wrong", [lambda user: True, lambda user, call, more: True, True], ids=["1", "3", "bool"])
def test_requires_takes_the_user_and_the_call(wrong: Any) -> None:
    for register in (Responder().request_response, Responder().fire_and_forget, Responder().request_channel):
        with pytest.raises(TypeError, match=r"^requires is a function of the user and the call, .*not "):
            register("x", requires=wrong)


async def test_requires_without_anything_that_finds_users_is_refused_where_it_is_served() -> None:
    text = "^request_response handler .*gold of route 'inner.secret' has requires=, and the responder has neither an"
    inner, outer = Responder(), Responder()

    @inner.request_response("secret", requires=lambda user, call: True)
    def gold(request: Payload) -> bytes:
        return b"gold"

    outer.include(inner, "inner.")
    here, _ = trio.testing.memory_stream_pair()
    with pytest.raises(ValueError, match=text):
        await serve(outer, "memory://nobody")
    with pytest.raises(ValueError, match=text):
        await serve_stream(outer, here)
    with pytest.raises(ValueError, match=text):
        async with open_connection_over(here, responder=outer):
            raise AssertionError("not opened")
    for finds in ("authenticate", "setup"):
        responder = Responder()
        responder.include(outer)
        getattr(responder, finds)(lambda one, other: None)
        async with connected_pair(responder) as pair:
            with pytest.raises(Rejected, match=r"^not allowed$"):
                await pair.client.request_response(route="inner.secret")


# Credentials stay with the call


async def test_the_payload_of_a_handler_is_without_the_credentials_that_were_taken() -> None:
    responder = Responder()
    seen: list[Payload] = []
    entries: list[list[Entry]] = []

    @responder.authenticate
    async def find_user(credentials: Any, where: object) -> User | None:
        return USERS.get(credentials.token)

    @responder.around
    async def watch(call: Call) -> AsyncIterator[None]:
        entries.append(call.entries)
        yield

    @responder.request_response("untyped")
    async def untyped(request: Payload) -> Payload:
        seen.append(request)
        return request

    @responder.request_stream("push")
    async def push(request: Payload, out: Outgoing) -> None:
        seen.append(request)
        await out.send(request)

    @responder.request_channel("channel")
    async def channel(channel: Channel) -> None:
        seen.append(channel.request)
        await channel.send(channel.request)

    @responder.fire_and_forget("told")
    def told(request: Payload) -> None:
        seen.append(request)

    own = Entry("x/colour", b"blue")
    async with connected_pair(responder) as pair:
        client, token = pair.client, Bearer("ada-token")
        request = Payload(b"1", encode_composite([own]))
        answer = await client.request_response(request, route="untyped", auth=token)
        assert b"ada-token" not in (answer.metadata or b"")
        async with client.request_stream(request, route="push", auth=token) as stream:
            assert [b"ada-token" in (item.metadata or b"") async for item in stream] == [False]
        async with client.request_channel(request, route="channel", auth=token) as both:
            assert b"ada-token" not in ((await anext(both)).metadata or b"")
        await client.fire_and_forget(request, route="told", auth=token)
        await settle()
    assert [each.data for each in seen] == [b"1"] * 4
    assert [decode_composite(each.metadata or b"")[1:] for each in seen] == [[own]] * 4
    # Interceptors see what the request carried.
    assert [AUTHENTICATION in [entry.mime for entry in each] for each in entries] == [True] * 4


async def test_requires_that_raises_never_lets_the_handler_run(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[Payload] = []
    responder = guarded()

    def broken(user: User, call: Call) -> bool:
        raise LookupError("no such role")

    def polite(user: User, call: Call) -> bool:
        raise Rejected("on Mondays only")

    responder.request_response("broken", requires=broken)(ran.append)
    responder.request_response("polite", requires=polite)(ran.append)
    async with connected_pair(responder, auth=Bearer("ada-token")) as pair:
        with pytest.raises(Rejected, match="on Mondays only"):
            await pair.client.request_response(route="polite")
        assert caplog.records == []
        with pytest.raises(ApplicationError, match="internal error"):
            await pair.client.request_response(route="broken")

    assert ran == []
    assert "no such role" in caplog.text


async def test_a_refused_call_is_not_told_what_the_handler_would_read() -> None:
    responder = guarded()

    @responder.request_response("orders.{id}", requires=lambda user, call: True)
    async def order(id: int, amount: int) -> int:
        return id

    async with connected_pair(responder, data_mime="application/x.unknown") as pair:
        for route in "orders.7", "orders.seven":
            with pytest.raises(Rejected, match="not allowed"):
                await pair.client.request_response(b"{", route=route)
    async with connected_pair(responder, data_mime="application/x.unknown", auth=Bearer("ada-token")) as pair:
        with pytest.raises(Invalid, match=r"no codec for application/x\.unknown"):
            await pair.client.request_response(b"{", route="orders.7")


async def test_interceptors_know_the_user_and_see_the_refusal() -> None:
    seen: list[str] = []
    responder = guarded()

    @responder.around
    async def note(call: Call) -> AsyncIterator[None]:
        try:
            yield
        except Rejected as error:
            seen.append(f"{name_of(call.user)}: {error}")
            raise

    responder.request_response("secret", requires=lambda user, call: user.admin)(lambda request: b"gold")
    async with connected_pair(responder) as pair:
        for auth in None, Bearer("bob-token"), Bearer("stolen"), Bearer("ada-token"):
            try:
                await pair.client.request_response(route="secret", auth=auth)
            except Rejected:
                continue
            seen.append("gold")

    assert seen == ["nobody: not allowed", "bob: not allowed", "nobody: not allowed", "gold"]


# current_user


async def test_outside_of_handlers_there_is_no_current_user() -> None:
    with pytest.raises(LookupError, match=r"current_user\(\) works in handlers only"):
        current_user()
    with pytest.raises(LookupError, match=r"current_user\(\) works in handlers only"):
        current_user(User)


async def test_current_user_has_the_type_that_the_application_says() -> None:
    seen: list[object] = []
    responder = guarded()

    @responder.request_response("typed")
    def typed(request: Payload) -> None:
        user = current_user(User)
        assert_type(user, User)
        seen.append(user)

    @responder.request_response("any")
    def any_user(request: Payload) -> None:
        seen.append(current_user(User | None))

    async with connected_pair(responder) as pair:
        for auth in (Bearer("ada-token"), Bearer("bob-token")):
            await pair.client.request_response(route="typed", auth=auth)
        for given in (Bearer("bob-token"), None):
            await pair.client.request_response(route="any", auth=given)

    assert seen == [USERS["ada-token"], USERS["bob-token"], USERS["bob-token"], None]


async def test_a_user_of_another_type_and_none_are_errors() -> None:
    errors: list[Exception] = []
    responder = guarded()

    @responder.request_response("wrong")
    def wrong(request: Payload) -> None:
        for kind in (str, str | int, User):
            try:
                current_user(kind)
            except (LookupError, TypeError) as error:
                errors.append(error)

    async with connected_pair(responder) as pair:
        for auth in (Bearer("ada-token"), None):
            await pair.client.request_response(route="wrong", auth=auth)

    assert [(type(error), str(error)) for error in errors] == [
        (TypeError, "the user is of type User, not str"),
        (TypeError, "the user is of type User, not str | int"),
        (LookupError, "no user: current_user(str) is for calls with credentials"),
        (LookupError, "no user: current_user(str | int) is for calls with credentials"),
        (LookupError, "no user: current_user(User) is for calls with credentials"),
    ]


async def test_a_connection_that_a_handler_opens_does_not_serve_in_the_name_of_its_user() -> None:
    """The peer of that connection would act as the user of the call in which it was opened."""
    other, inner = guarded(), guarded()

    @other.request_response("back")
    async def back(request: Payload) -> str:
        connection = current_connection()
        names = [await whoami(connection), (await connection.request_response(route="whoami.async")).text]
        return " ".join(names)

    responder = guarded()
    async with served(other) as uri:

        @responder.request_response("forward")
        async def forward(request: Payload) -> str:
            async with open_connection(uri, responder=inner) as onwards:
                return f"{name_of(current_user())}: {(await onwards.request_response(route='back')).text}"

        async with connected_pair(responder) as pair:
            answer = await pair.client.request_response(route="forward", auth=Bearer("ada-token"))

    assert answer.text == "ada: nobody nobody"


async def test_calls_from_the_server_are_authenticated_by_the_responder_of_the_client() -> None:
    async with connected_pair(guarded(), guarded(), auth=Bearer("ada-token")) as pair:
        assert await whoami(pair.server) == "nobody"
        assert await whoami(pair.server, auth=Bearer("bob-token")) == "bob"
        assert await whoami(pair.client) == "ada"


# New connections


async def test_a_function_gives_fresh_credentials_for_each_connection(autojump_clock: MockClock) -> None:
    names = iter(["one", "two", "three"])
    held: list[Connection] = []
    responder = guarded(auth_required=True)
    responder.setup(lambda setup, connection: held.append(connection))

    async def fresh() -> Simple:
        return Simple(next(names), "sesame")

    backoff = Backoff(first_delay=0.01, longest_delay=0.01)
    async with served(responder) as uri, connect_forever(uri, auth=fresh, backoff=backoff) as client:
        for name in "one", "two", "three":
            assert await whoami(client) == name
            await held[-1].drain(grace=0)
            if name != "three":
                await trio.sleep(1)
        assert [name_of(connection.user) for connection in held][:3] == ["one", "two", "three"]


async def test_a_function_that_cannot_connect_counts_as_a_failed_try(autojump_clock: MockClock) -> None:
    answers: list[Exception | Bearer] = [OSError("the token server is down"), Bearer("ada-token")]

    def token() -> Bearer:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async with served(guarded()) as uri, connect_forever(uri, auth=token) as client:
        assert await whoami(client) == "ada"

    assert answers == []


async def test_refused_credentials_are_not_tried_again(autojump_clock: MockClock) -> None:
    async with served(guarded()) as uri, connect_forever(uri, auth=Bearer("stolen")) as client:
        with pytest.raises(RejectedSetup, match="not allowed"):
            await whoami(client)
        await trio.sleep(60)
        with pytest.raises(RejectedSetup, match="not allowed"):
            await whoami(client)


@pytest.mark.parametrize("dialect", ["rsocket/1.0", "reactivesocket/0.2", "rsocket/2.0-draft"])
async def test_a_resumed_session_keeps_its_user_and_sends_no_credentials(
    dialect: str, autojump_clock: MockClock
) -> None:
    asked: list[str] = []

    def token() -> Bearer:
        asked.append("token")
        return Bearer("ada-token")

    async with resuming_pair(guarded(auth_required=True), dialect, auth=token) as pair:
        assert await whoami(pair.client) == "ada"
        await pair.network.cut()
        await trio.sleep(5)
        assert await whoami(pair.client) == "ada"
        assert len(pair.network.links) == 2

    assert asked == ["token"]
