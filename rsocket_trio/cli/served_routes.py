"""The description that a server gives of its routes, and the route in it that a wrong one was meant to be."""

from __future__ import annotations

import json
from typing import Any

import trio

from rsocket_trio import Connection, Payload
from rsocket_trio.cli.near_misses import with_hint
from rsocket_trio.errors import RSocketError

ROUTE = "$routes"
"""The route on which a responder describes its routes: ``DESCRIPTION_ROUTE``, without the import of services."""
HINT_TIMEOUT = 2.0
"""Seconds that a server gets to describe its routes after it has rejected one."""


async def with_near_route(connection: Connection, route: str, metadata: bytes | None, text: str) -> str:
    """Return the text of a rejection with the route that is like ``route``, if the server does not know ``route``.

    ``metadata`` is that of the request. A server that does not describe its routes leaves the text as it is.
    """
    if f"'{route}'" not in text:
        return text
    try:
        with trio.fail_after(HINT_TIMEOUT):
            answer = await connection.request_response(Payload(b"", metadata), route=ROUTE)
        names = {str(each.get("route") or "") for each in read_description(answer.data)["routes"]} - {""}
    except (RSocketError, trio.TooSlowError, ValueError):
        return text
    # A route that is there was not the reason, or the server has said so.
    return text if route in names else with_hint(text, route, names)


def read_description(data: bytes) -> dict[str, Any]:
    """Return a description of routes. Raise ``ValueError`` for what is none."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("too many levels of JSON") from None
    routes = found.get("routes") if isinstance(found, dict) else None
    if not isinstance(routes, list) or not all(isinstance(each, dict) for each in routes):
        raise ValueError("no list of routes")
    result: dict[str, Any] = found
    return result
