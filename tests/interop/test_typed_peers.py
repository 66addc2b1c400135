"""rsocket-py's router and rsocket-js's composite metadata against typed handlers and typed clients."""

from __future__ import annotations

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
from tests.interop.peers import KINDS

OCTETS = "application/octet-stream"
THEIR_MIMES = ("application/json", OCTETS, "entry")
"""What a connection says that its data is. With "entry" it says octets, and each request that it is JSON."""
OUR_MIMES = ("application/json", OCTETS)


@pytest.fixture(scope="module", params=KINDS)
def peer(request: pytest.FixtureRequest) -> Iterator[OrdersPeer]:
    with orders_peer(request.param) as running:
        yield running


@pytest.mark.parametrize("check", [*CHECKS, "invalid-field"])
@pytest.mark.parametrize("mime", THEIR_MIMES)
async def test_typed_handlers_pass_the_checks_of_a_foreign_client(peer: OrdersPeer, mime: str, check: str) -> None:
    async with serving("tcp", orders_responder()) as uri:
        await peer.check(check, uri, mime)


@pytest.mark.parametrize("check", ["mime-entry", "accept-entry"])
async def test_typed_handlers_read_the_mime_entries_of_the_asyncio_client(peer: OrdersPeer, check: str) -> None:
    if peer.kind == "js":
        check = "response"  # it has no second codec
    async with serving("tcp", orders_responder()) as uri:
        await peer.check(check, uri, "application/json")


@pytest.mark.parametrize("check", ["setup-without-user", "simple-setup", "bearer-setup", "bearer-setup-refused"])
async def test_a_server_that_requires_users_takes_no_others(peer: OrdersPeer, check: str) -> None:
    async with serving("tcp", orders_responder(auth_required=True)) as uri:
        await peer.check(check, uri, "application/json")


@pytest.mark.parametrize("call", OUR_CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("mime", OUR_MIMES)
async def test_a_typed_client_calls_a_foreign_server(peer: OrdersPeer, mime: str, call: OurCall) -> None:
    async with calling(peer.tcp, mime) as connection:
        await call(connection)


async def test_a_typed_client_sends_a_foreign_server_a_setup(peer: OrdersPeer) -> None:
    await call_with_setup(peer.tcp, "application/json")
    await call_as_user_of_the_setup(peer.tcp, "application/json")
    await call_with_a_refused_setup(peer.tcp, "application/json")


@pytest.mark.parametrize("check", CHECKS)
async def test_a_foreign_server_passes_the_checks_of_its_own_client(peer: OrdersPeer, check: str) -> None:
    await peer.check(check, peer.tcp, "application/json")
