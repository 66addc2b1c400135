"""Peers that know types against typed handlers and typed clients.

They are Spring with ``@MessageMapping`` and ``RSocketRequester`` in JSON and CBOR, rsocket-py's router and rsocket-js's
composite metadata. Checks and calls are played by pairs with the peers, MIME types and transports; with
``RSOCKET_TRIO_ALL_CASES`` in the environment, as ``make peers`` sets it, all are, and with all that Spring sends in
fragments, too.
"""

from __future__ import annotations

import pytest

from tests.each_row import ALL_CASES
from tests.interop.both_ways import serving
from tests.interop.orders import orders_responder
from tests.interop.orders_calls import (
    OUR_CALLS,
    call_as_user_of_the_setup,
    call_with_a_refused_setup,
    call_with_setup,
    callback,
    calling,
    channel_variable,
    contract_of_streams,
    details_of_channel,
    details_of_stream,
    requirement,
)
from tests.interop.orders_peers import CHECKS, MORE_CHECKS, OrdersKind, running
from tests.interop.peers import TransportName
from tests.pairs import by_pairs
from tests.rows import Rows

JSON, CBOR, OCTETS = "application/json", "application/cbor", "application/octet-stream"
KINDS: tuple[OrdersKind, ...] = ("spring", "py", "js")
SPRINGS: tuple[OrdersKind, ...] = ("spring", "fragments") if ALL_CASES else ("spring",)

each_peer = pytest.mark.parametrize("orders", [*SPRINGS, "py", "js"])
each_spring = pytest.mark.parametrize("orders", SPRINGS)

THEIR_MIMES = {"spring": (JSON, CBOR), "py": (JSON, OCTETS, "entry"), "js": (JSON, OCTETS, "entry")}
"""What a connection of a peer's client says that its data is. With "entry" it says octets, and each request that it is
JSON."""
OUR_MIMES = {"spring": (JSON, CBOR), "py": (JSON, OCTETS), "js": (JSON, OCTETS)}
TRANSPORTS: dict[OrdersKind, tuple[TransportName, ...]] = {"spring": ("tcp", "ws"), "py": ("tcp",), "js": ("tcp",)}
OURS_ALONE = {
    "spring": (*MORE_CHECKS, "mime-entry", "accept-entry", "invalid-field", "not-allowed", "channel-cancelled"),
    "py": ("invalid-field", "mime-entry", "accept-entry"),
    "js": (*MORE_CHECKS, "invalid-field"),
}
"""Checks of our server: Spring's reads no such entries, names no field, and refuses in other words."""
NOT_OF_PY = (channel_variable, details_of_stream, details_of_channel, requirement, contract_of_streams, callback)
"""Calls of routes that rsocket-py does not serve."""
OF_SETUPS = ("setup-without-user", "simple-setup", "bearer-setup", "bearer-setup-refused")

CHECKED = by_pairs(
    (kind, transport, mime, check)
    for kind in KINDS
    for transport in TRANSPORTS[kind]
    for mime in THEIR_MIMES[kind]
    for check in (*CHECKS, *OURS_ALONE[kind])
)
CALLED = by_pairs(
    (kind, transport, mime, call)
    for kind in KINDS
    for transport in TRANSPORTS[kind]
    for mime in OUR_MIMES[kind]
    for call in OUR_CALLS
    if kind != "py" or call not in NOT_OF_PY
)


def of_spring(kind: OrdersKind) -> OrdersKind:
    """Return the kind whose rows a peer plays."""
    return "spring" if kind == "fragments" else kind


@each_peer
async def test_typed_handlers_pass_the_checks_of_a_foreign_client(orders: OrdersKind) -> None:
    peer = await running(orders)
    with Rows() as row:
        for kind, transport, mime, check in CHECKED:
            if kind == of_spring(orders):
                with row(f"{check}, {mime} over {transport}"):
                    async with serving(transport, orders_responder()) as uri:
                        await peer.check(check, uri, mime)


@each_peer
async def test_a_server_that_requires_users_takes_no_others(orders: OrdersKind) -> None:
    peer = await running(orders)
    async with serving("tcp", orders_responder(auth_required=True)) as uri:
        with Rows() as row:
            for check in OF_SETUPS:
                with row(check):
                    await peer.check(check, uri, JSON)


@each_peer
async def test_a_typed_client_calls_a_foreign_server(orders: OrdersKind) -> None:
    peer = await running(orders)
    with Rows() as row:
        for kind, transport, mime, call in CALLED:
            if kind == of_spring(orders):
                with row(f"{call.__name__}, {mime} over {transport}"):
                    async with calling(peer.uris[TRANSPORTS[kind].index(transport)], mime) as connection:
                        await call(connection)


@each_peer
async def test_a_typed_client_sends_a_foreign_server_a_setup(orders: OrdersKind) -> None:
    uris = (await running(orders)).uris
    for mime in OUR_MIMES[of_spring(orders)]:
        await call_with_setup(uris[0], mime)
        await call_as_user_of_the_setup(uris[-1], mime)
        await call_with_a_refused_setup(uris[-1], mime)


@each_spring
async def test_typed_handlers_give_and_take_texts_of_spring_whatever_the_mime_type(orders: OrdersKind) -> None:
    peer = await running(orders)
    async with serving("tcp", orders_responder()) as uri:
        for mime in ("text/plain", "default", JSON, CBOR):
            await peer.check("text", uri, mime)
        await peer.check("response", uri, "default")
