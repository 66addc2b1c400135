"""Spring's @MessageMapping and RSocketRequester against typed handlers and typed clients, in JSON and CBOR.

One Java process plays both sides. ``make test`` plays each check over TCP; with ``RSOCKET_TRIO_WHOLE_SPRING`` in the
environment, as ``make peers`` sets it, also over WebSocket, and with all that is large in fragments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interop.both_ways import serving
from tests.interop.orders import orders_responder
from tests.interop.orders_calls import (
    OUR_CALLS,
    OurCall,
    call_as_user_of_the_setup,
    call_with_a_refused_setup,
    call_with_setup,
    calling,
)
from tests.interop.orders_peers import CHECKS, OrdersPeer, orders_peer
from tests.interop.peers import TransportName

WHOLE = "RSOCKET_TRIO_WHOLE_SPRING" in os.environ
MIMES = ("application/json", "application/cbor")
FRAGMENTS = (0, 1000) if WHOLE else (0,)
TRANSPORTS: tuple[TransportName, ...] = ("tcp", "ws") if WHOLE else ("tcp",)
OURS_ALONE = ("mime-entry", "accept-entry", "invalid-field", "not-allowed", "channel-cancelled")
"""Checks of our server: Spring's reads no such entries, names no field, and refuses in other words."""


@pytest.fixture(scope="module", params=FRAGMENTS, ids=lambda size: f"fragments of {size}" if size else "whole frames")
def spring(request: pytest.FixtureRequest) -> Iterator[OrdersPeer]:
    with orders_peer("spring", str(request.param)) as peer:
        yield peer


def server_of(spring: OrdersPeer, transport: TransportName) -> str:
    return spring.ws if transport == "ws" else spring.tcp


@pytest.mark.parametrize("check", [*CHECKS, *OURS_ALONE])
@pytest.mark.parametrize("mime", MIMES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_typed_handlers_pass_the_checks_of_a_spring_client(
    spring: OrdersPeer, transport: TransportName, mime: str, check: str
) -> None:
    async with serving(transport, orders_responder()) as uri:
        await spring.check(check, uri, mime)


@pytest.mark.parametrize("check", ["setup-without-user", "simple-setup", "bearer-setup", "bearer-setup-refused"])
async def test_a_server_that_requires_users_takes_no_others_from_spring(spring: OrdersPeer, check: str) -> None:
    async with serving("tcp", orders_responder(auth_required=True)) as uri:
        await spring.check(check, uri, "application/json")


@pytest.mark.parametrize("mime", ["text/plain", "default"])
async def test_typed_handlers_give_spring_its_texts_and_what_it_chooses(spring: OrdersPeer, mime: str) -> None:
    async with serving("tcp", orders_responder()) as uri:
        await spring.check("text", uri, mime)
        if mime == "default":
            await spring.check("response", uri, mime)


@pytest.mark.parametrize("call", OUR_CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("mime", MIMES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_typed_client_calls_a_spring_server(
    spring: OrdersPeer, transport: TransportName, mime: str, call: OurCall
) -> None:
    async with calling(server_of(spring, transport), mime) as connection:
        await call(connection)


@pytest.mark.parametrize("mime", MIMES)
async def test_a_typed_client_sends_spring_a_setup(spring: OrdersPeer, mime: str) -> None:
    await call_with_setup(spring.tcp, mime)
    await call_as_user_of_the_setup(spring.tcp, mime)
    await call_as_user_of_the_setup(spring.strict, mime)
    await call_with_a_refused_setup(spring.strict, mime)


@pytest.mark.parametrize("check", [*CHECKS, "channel-cancelled"])
@pytest.mark.parametrize("mime", MIMES)
async def test_a_spring_server_passes_the_checks_of_a_spring_client(spring: OrdersPeer, mime: str, check: str) -> None:
    await spring.check(check, spring.tcp, mime)


async def test_a_spring_server_for_users_refuses_others(spring: OrdersPeer) -> None:
    await spring.check("setup-without-user", spring.strict, "application/json")
    await spring.check("simple-setup", spring.strict, "application/json")


@pytest.mark.parametrize("mime", ["text/plain", "default"])
async def test_spring_writes_a_string_as_its_text_whatever_the_mime_type(spring: OrdersPeer, mime: str) -> None:
    await spring.check("text", spring.ws, mime)
