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
    calling,
    texts,
)
from tests.interop.orders_peers import CHECKS, OrdersKind, running
from tests.interop.peers import TransportName
from tests.pairs import by_pairs
from tests.rows import Rows

JSON, CBOR, OCTETS = "application/json", "application/cbor", "application/octet-stream"
KINDS: tuple[OrdersKind, ...] = ("spring", "py", "js")
SPRINGS: tuple[OrdersKind, ...] = ("spring", "fragments") if ALL_CASES else ("spring",)

each_peer = pytest.mark.parametrize("orders", [*SPRINGS, "py", "js"])
each_stranger = pytest.mark.parametrize("orders", ["py", "js"])
each_spring = pytest.mark.parametrize("orders", SPRINGS)

THEIR_MIMES = {"spring": (JSON, CBOR), "py": (JSON, OCTETS, "entry"), "js": (JSON, OCTETS, "entry")}
"""What a connection of a peer's client says that its data is. With "entry" it says octets, and each request that it is
JSON."""
OUR_MIMES = {"spring": (JSON, CBOR), "py": (JSON, OCTETS), "js": (JSON, OCTETS)}
TRANSPORTS: dict[OrdersKind, tuple[TransportName, ...]] = {"spring": ("tcp", "ws"), "py": ("tcp",), "js": ("tcp",)}
OURS_ALONE = {
    "spring": ("mime-entry", "accept-entry", "invalid-field", "not-allowed", "channel-cancelled"),
    "py": ("invalid-field",),
    "js": ("invalid-field",),
}
"""Checks of our server: Spring's reads no such entries, names no field, and refuses in other words."""
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


@pytest.mark.parametrize("orders", ["py"])
async def test_typed_handlers_read_the_mime_entries_of_a_client_with_two_codecs(orders: OrdersKind) -> None:
    peer = await running(orders)
    async with serving("tcp", orders_responder()) as uri:
        await peer.check("mime-entry", uri, JSON)
        await peer.check("accept-entry", uri, JSON)


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


@each_stranger
async def test_a_typed_client_sends_a_foreign_server_a_setup(orders: OrdersKind) -> None:
    [uri] = (await running(orders)).uris
    await call_with_setup(uri, JSON)
    await call_as_user_of_the_setup(uri, JSON)
    await call_with_a_refused_setup(uri, JSON)


@each_spring
@pytest.mark.parametrize("mime", [JSON, CBOR])
async def test_a_typed_client_sends_spring_a_setup(orders: OrdersKind, mime: str) -> None:
    tcp, _, strict = (await running(orders)).uris
    await call_with_setup(tcp, mime)
    await call_as_user_of_the_setup(tcp, mime)
    await call_as_user_of_the_setup(strict, mime)
    await call_with_a_refused_setup(strict, mime)


@each_peer
async def test_a_foreign_server_passes_the_checks_of_its_own_client(orders: OrdersKind) -> None:
    peer = await running(orders)
    kind = of_spring(orders)
    checks = (*CHECKS, "channel-cancelled") if kind == "spring" else CHECKS
    mimes = OUR_MIMES[kind] if ALL_CASES else OUR_MIMES[kind][:1]
    with Rows() as row:
        for check in checks:
            for mime in mimes:
                with row(f"{check}, {mime}"):
                    await peer.check(check, peer.uris[0], mime)


@each_spring
async def test_a_spring_server_for_users_refuses_others(orders: OrdersKind) -> None:
    peer = await running(orders)
    await peer.check("setup-without-user", peer.uris[2], JSON)
    await peer.check("simple-setup", peer.uris[2], JSON)


@each_spring
async def test_typed_handlers_give_and_take_texts_of_spring_whatever_the_mime_type(orders: OrdersKind) -> None:
    peer = await running(orders)
    async with serving("tcp", orders_responder()) as uri:
        for mime in ("text/plain", "default", JSON, CBOR):
            await peer.check("text", uri, mime)
        await peer.check("response", uri, "default")


@each_spring
@pytest.mark.parametrize("mime", ["text/plain", OCTETS, JSON, CBOR])
async def test_a_typed_client_gives_and_takes_texts_of_spring_whatever_the_mime_type(
    orders: OrdersKind, mime: str
) -> None:
    async with calling((await running(orders)).uris[0], mime) as connection:
        await texts(connection)


@each_spring
async def test_spring_writes_a_string_as_its_text_whatever_the_mime_type(orders: OrdersKind) -> None:
    peer = await running(orders)
    await peer.check("text", peer.uris[1], "text/plain")
    await peer.check("text", peer.uris[1], "default")
