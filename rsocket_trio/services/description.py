"""The routes of a responder as records, and their description in JSON, with the JSON Schema of their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never, NoReturn, TypeAlias

import msgspec

from rsocket_trio.codecs import Codec
from rsocket_trio.formats import hashed_by_type, holds_model, is_model, schema_of_model, type_name
from rsocket_trio.forms import Handler
from rsocket_trio.payload import Payload
from rsocket_trio.services.codec_choice import reader_of
from rsocket_trio.services.typed_handlers import ABSENT, ArgumentSource, TypedHandler, object_type
from rsocket_trio.values import value

Schema: TypeAlias = dict[str, Any]

DESCRIPTION_ROUTE = "$routes"
"""The route on which a responder describes its routes, by request/response."""
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
    parameters: Mapping[str, object]
    body: object = None
    items: object = None
    reply: object = None


def route_record(handler: Handler) -> Route:
    text, interaction = None if handler.route is None else handler.pattern_text, handler.interaction
    if not isinstance(handler.typed, TypedHandler):
        names = () if handler.pattern is None else handler.pattern.parameters
        items = Payload if interaction == "request_channel" else None
        reply = None if interaction == "fire_and_forget" else Payload
        return Route(text, interaction, dict.fromkeys(names, str), Payload, items, reply)
    plan = handler.typed.plan
    parameters = {
        parameter.name: parameter.kind for parameter in plan.parameters if parameter.source is ArgumentSource.ROUTE
    }
    whole = Payload if plan.takes(ArgumentSource.PAYLOAD, ArgumentSource.CHANNEL) else None
    body = plan.members or (whole if plan.body is ABSENT else plan.body)
    received = Payload if plan.takes(ArgumentSource.CHANNEL) else plan.items
    sent: object = Payload if plan.takes(ArgumentSource.CHANNEL, ArgumentSource.OUTGOING) else plan.reply
    if sent in (type(None), NoReturn, Never):
        sent = None
    elif not plan.encodes and sent is not Payload and reader_of(sent) is None:
        sent = Any
    return Route(text, interaction, parameters, body, None if received is ABSENT else received, sent)


def description(routes: Iterable[Route], codecs: Sequence[Codec]) -> Schema:
    """Return what describes ``routes``, served with ``codecs``, as JSON.

    ``codecs`` of it are their MIME types. Each of its ``routes`` has ``route`` and ``interaction``, the schemas of the
    ``parameters`` by name, and as ``body``, ``items`` and ``reply`` a schema, or ``null`` where there is nothing.
    """
    described = []
    for route in routes:
        parameters = {name: _schema(kind) for name, kind in route.parameters.items()}
        types = {name: _schema(getattr(route, name)) for name in ("body", "items", "reply")}
        described.append({"route": route.route, "interaction": route.interaction, "parameters": parameters, **types})
    return {"codecs": [codec.mime for codec in codecs], "routes": described}


def _schema(kind: object) -> Schema | None:
    """Return the JSON Schema of a type, with those of its classes. A type without a schema has its name."""
    if kind is None:
        return None
    if kind in (Payload, bytes, bytearray, memoryview):
        return {"contentMediaType": "application/octet-stream"}  # JSON Schema's own words for bytes as they are
    if kind is Any:
        return {}
    if not isinstance(kind, dict):
        try:
            return json_schema(kind)
        except TypeError:
            return {"title": type_name(kind)}  # of a codec of the application's own
    schema = _schema(object_type(MEMBERS, kind)) or {}
    definitions = schema.get("$defs", {})
    if MEMBERS not in definitions:
        return schema
    members = definitions.pop(MEMBERS)
    return {**members, "properties": {name: members["properties"][name] for name in kind}, "$defs": definitions}


def json_schema(kind: object) -> Schema:
    """Return the JSON Schema of a type as JSON shows it, with the classes that it is made of in ``$defs``.

    ``kind`` is an annotation. Raise ``TypeError`` for a type that no built-in codec takes, and for a model of pydantic
    that has no schema.
    """
    hashed_by_type(kind)
    definitions: Schema = {}

    def of_model(kind: object) -> Schema:
        """Return the schema of a model: its references begin at the top, so its definitions go there."""
        schema = schema_of_model(kind)
        definitions.update(schema.pop("$defs", {}))
        return schema

    def of_custom(kind: type) -> Schema:
        return of_model(kind) if is_model(kind) else {"description": "anything"}

    schema = of_model(kind) if holds_model(kind) else msgspec.json.schema(kind, schema_hook=of_custom)
    definitions.update(schema.pop("$defs", {}))
    return {**schema, "$defs": definitions} if definitions else schema
