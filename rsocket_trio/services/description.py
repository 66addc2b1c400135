"""The routes of a responder as records, and their description in JSON, with the JSON Schema of their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never, NoReturn

from rsocket_trio.codecs import Codec
from rsocket_trio.data_types import type_name
from rsocket_trio.forms import Handler
from rsocket_trio.payload import Payload
from rsocket_trio.services.codec_choice import is_bytes, text_type
from rsocket_trio.services.json_schema import json_schema
from rsocket_trio.services.signature_plan import ABSENT, ArgumentSource, SignaturePlan, members_of, object_type
from rsocket_trio.services.typed_handlers import TypedHandler
from rsocket_trio.values import value

DESCRIPTION_ROUTE = "$routes"
"""The route on which a responder describes its routes, by request/response."""
BYTES = {"contentMediaType": "application/octet-stream"}
"""The schema of data that no codec reads: JSON Schema's own words for bytes as they are."""
MEMBERS = "BodyOfMembers"
"""The name of an object of several parameters in a schema."""


@value
class Route:
    """A handler of requests: ``route``, ``interaction``, and the types of what comes and goes.

    ``route`` is the text of the registration with its parameters, ``None`` for the handler of requests without a route;
    ``interaction`` the name of the decorator. ``parameters`` are the types of the route's parameters, by name. ``body``
    is the type of the request's data, or a dictionary of the types of an object's members, by name; ``NotRequired`` is
    one with a default. ``items`` is the type of the items that a channel receives, and ``reply`` that of the answer, or
    of each item that is sent. A type is ``None`` where there is nothing, ``Payload`` or ``bytes`` for data as it is,
    and ``Any`` where the handler does not say.
    """

    route: str | None
    interaction: str
    parameters: Mapping[str, Any]
    body: Any = None
    items: Any = None
    reply: object = None


def route_record(handler: Handler) -> Route:
    """Return the record of a ``handler`` of requests."""
    text = None if handler.route is None else handler.pattern_text
    if not isinstance(handler.typed, TypedHandler):
        names = () if handler.pattern is None else handler.pattern.parameters
        return Route(
            text,
            handler.interaction,
            dict.fromkeys(names, str),
            body=Payload,
            items=Payload if handler.interaction == "request_channel" else None,
            reply=None if handler.interaction == "fire_and_forget" else Payload,
        )
    plan = handler.typed.plan
    parameters = {each.name: each.kind for each in plan.parameters if each.source is ArgumentSource.ROUTE}
    items = Payload if plan.takes(ArgumentSource.CHANNEL) else plan.items
    return Route(text, plan.interaction, parameters, _body(plan), None if items is ABSENT else items, _reply(plan))


def _body(plan: SignaturePlan) -> object:
    if plan.members:
        return members_of(plan.parameters)
    if plan.body is not ABSENT:
        return plan.body
    return Payload if plan.takes(ArgumentSource.PAYLOAD, ArgumentSource.CHANNEL) else None


def _reply(plan: SignaturePlan) -> object:
    kind = Payload if plan.takes(ArgumentSource.CHANNEL, ArgumentSource.OUTGOING) else plan.reply
    if kind in (type(None), NoReturn, Never):
        return None
    return kind if plan.encodes or text_type(kind) is not None or kind is Payload or is_bytes(kind) else Any


def description(routes: Iterable[Route], codecs: Sequence[Codec]) -> dict[str, Any]:
    """Return what describes ``routes``, served with ``codecs``, as JSON.

    ``codecs`` of it are their MIME types. Each of its ``routes`` has ``route`` and ``interaction``, the schemas of the
    ``parameters`` by name, and as ``body``, ``items`` and ``reply`` a schema, or ``null`` where there is nothing.
    """
    return {
        "codecs": [codec.mime for codec in codecs],
        "routes": [
            {
                "route": each.route,
                "interaction": each.interaction,
                "parameters": {name: _schema(kind) for name, kind in each.parameters.items()},
                "body": _schema(each.body),
                "items": _schema(each.items),
                "reply": _schema(each.reply),
            }
            for each in routes
        ],
    }


def _schema(kind: object) -> dict[str, Any] | None:
    """Return the JSON Schema of a type, with those of its classes. A type without a schema has its name."""
    if kind is None:
        return None
    if kind in (Payload, bytes, bytearray, memoryview):
        return BYTES
    if kind is Any:
        return {}
    if kind is str:
        return {"type": "string"}  # as the parameters of untyped handlers are, without the extra
    try:
        schema = json_schema(object_type(MEMBERS, kind) if isinstance(kind, dict) else kind)
    except TypeError:
        return {"title": type_name(kind)}  # of a codec of the application's own
    definitions = schema.get("$defs", {})
    if not isinstance(kind, dict) or MEMBERS not in definitions:
        return schema
    members = definitions.pop(MEMBERS)
    properties = {name: members["properties"][name] for name in kind}
    return {**members, "properties": properties, "$defs": definitions}
