"""The routes of a responder as records, and their description in JSON, with the JSON Schema of their types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Never, NoReturn, NotRequired, get_args, get_origin

from rsocket_trio.codecs import Codec
from rsocket_trio.data_types import type_name
from rsocket_trio.forms import Handler
from rsocket_trio.payload import Payload
from rsocket_trio.services.json_schema import json_schema
from rsocket_trio.services.payload_types import is_bytes, text_type
from rsocket_trio.services.typed_handlers import ABSENT, Source, TypedHandler
from rsocket_trio.values import value

DESCRIPTION_ROUTE = "$routes"
"""The route on which a responder describes its routes, by request/response."""
BYTES = {"contentMediaType": "application/octet-stream"}
"""The schema of data that no codec reads: JSON Schema's own words for bytes as they are."""
DEFINITIONS = "#/$defs/"


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
    reply: Any = None


def route_record(handler: Handler) -> Route:
    """Return the record of a ``handler`` of requests."""
    text = None if handler.route is None else handler.pattern_text
    names = () if handler.pattern is None else handler.pattern.parameters
    channel = handler.interaction == "request_channel"
    typed = handler.typed
    if not isinstance(typed, TypedHandler):
        return Route(
            route=text,
            interaction=handler.interaction,
            parameters=dict.fromkeys(names, str),
            body=Payload,
            items=Payload if channel else None,
            reply=None if handler.interaction == "fire_and_forget" else Payload,
        )
    return Route(
        route=text,
        interaction=handler.interaction,
        parameters={each.name: each.kind for each in typed.parameters if each.source is Source.ROUTE},
        body=_body(typed),
        items=_items(typed),
        reply=_reply(typed),
    )


def _body(typed: TypedHandler) -> Any:
    if typed.members:
        members = [each for each in typed.parameters if each.source is Source.BODY]
        return {each.name: each.kind if each.required else NotRequired[each.kind] for each in members}
    if typed.body is not ABSENT:
        return typed.body
    return Payload if typed.takes(Source.PAYLOAD, Source.CHANNEL) else None


def _items(typed: TypedHandler) -> Any:
    if typed.takes(Source.CHANNEL):
        return Payload
    return None if typed.items is ABSENT else typed.items


def _reply(typed: TypedHandler) -> Any:
    if typed.takes(Source.CHANNEL, Source.OUTGOING):
        return Payload
    kind = typed.reply
    if kind in (type(None), NoReturn, Never) or typed.decorator == "fire_and_forget":
        return None
    if typed.encodes or text_type(kind) is not None or kind is Payload or is_bytes(kind):
        return kind
    return Any


# As JSON


class Describer:
    """Answers the requests for the description of a responder, which is made anew when it has more routes.

    ``routes`` returns the records, ``codecs`` are those of the responder.
    """

    def __init__(self, routes: Callable[[], Sequence[Route]], codecs: Sequence[Codec]) -> None:
        self._routes = routes
        self._codecs = codecs
        self._described: Sequence[Route] | None = None
        self._answer = Payload()

    def answer(self, request: Payload) -> Payload:
        """Return the description."""
        routes = self._routes()
        if routes != self._described:
            self._answer = Payload(json.dumps(description(routes, self._codecs)))
            self._described = routes
        return self._answer


def description(routes: Iterable[Route], codecs: Sequence[Codec]) -> dict[str, Any]:
    """Return what describes ``routes``, served with ``codecs``, as JSON.

    ``codecs`` of it are their MIME types. Each of its ``routes`` has ``route`` and ``interaction``, the schemas of the
    ``parameters`` by name, and as ``body``, ``items`` and ``reply`` a schema, or ``null`` where there is nothing.
    ``$defs`` has the schemas of the classes.
    """
    definitions: dict[str, Any] = {}
    return {
        "codecs": [codec.mime for codec in codecs],
        "routes": [
            {
                "route": each.route,
                "interaction": each.interaction,
                "parameters": {name: _schema(kind, definitions) for name, kind in each.parameters.items()},
                "body": (_object_schema if isinstance(each.body, dict) else _schema)(each.body, definitions),
                "items": _schema(each.items, definitions),
                "reply": _schema(each.reply, definitions),
            }
            for each in routes
        ],
        "$defs": definitions,
    }


def _object_schema(members: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    optional = {name: get_args(kind)[0] for name, kind in members.items() if get_origin(kind) is NotRequired}
    return {
        "type": "object",
        "properties": {name: _schema(kind, definitions) for name, kind in {**members, **optional}.items()},
        "required": [name for name in members if name not in optional],
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any] | None:
    """Return the JSON Schema of a type; its classes go into ``definitions``. A type without a schema has its name."""
    if kind is None:
        return None
    if kind in (Payload, bytes, bytearray, memoryview):
        return BYTES
    if kind is Any:
        return {}
    if kind is str:
        return {"type": "string"}  # as the parameters of untyped handlers are, without the extra
    try:
        schema = json_schema(kind)
    except TypeError:
        return {"title": type_name(kind)}  # of a codec of the application's own
    classes = schema.pop("$defs", {})
    # Two classes of the same name: the one that comes later gets a number.
    names = {name: _free_name(name, schema, definitions) for name, schema in classes.items()}
    for name, definition in classes.items():
        definitions[names[name]] = _renamed(definition, names)
    result: dict[str, Any] = _renamed(schema, names)
    return result


def _free_name(name: str, schema: Any, definitions: Mapping[str, Any]) -> str:
    free, number = name, 1
    while free in definitions and definitions[free] != schema:
        number += 1
        free = f"{name}_{number}"
    return free


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """Return a schema with other names of classes."""
    if isinstance(schema, list):
        return [_renamed(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: DEFINITIONS + names.get(name := each.removeprefix(DEFINITIONS), name)
        if key == "$ref" and isinstance(each, str)
        else _renamed(each, names)
        for key, each in schema.items()
    }
