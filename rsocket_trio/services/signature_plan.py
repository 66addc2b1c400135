"""The plan of a signature: what a function of requests takes and gives, as its annotations say.

A plan is made once, when a handler is registered or a contract is first used. The call of a handler, its description,
the methods of a contract, their implementation and their remote object follow it.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, NotRequired

import attrs

from rsocket_trio.connection.streams import Channel, Outgoing
from rsocket_trio.connection.typed_streams import Receiving, Stream, TypedChannel
from rsocket_trio.forms import Function, bare, function_name, own_signature, shape_of
from rsocket_trio.payload import PAYLOAD_LIKE, Payload
from rsocket_trio.services.codec_choice import is_object_type, reader_of
from rsocket_trio.services.json_schema import check_text_type

ABSENT: Any = inspect.Parameter.empty
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
RAW_NAMES = {"Payload": Payload, "PayloadLike": object, "Channel": Channel, "Outgoing": Outgoing}
"""The types of handlers of bytes, by names that many modules import for the type checker only."""
RESULT = "the result"
ITERATORS = (AsyncIterator, AsyncGenerator, AsyncIterable, Stream)
AWAITABLES = (Awaitable, Coroutine)
WHOLE_REQUEST_NAMES = ("request", "payload", "channel", "out")
"""Names of parameters without an annotation that a route with parameters does not have to name."""
UNARY = ("request_response", "fire_and_forget")
STREAMS = ("request_stream", "request_subscription")


class ArgumentSource(enum.Enum):
    """The places that arguments come from."""

    ROUTE = enum.auto()
    BODY = enum.auto()
    PAYLOAD = enum.auto()
    RECEIVING = enum.auto()
    TYPED_CHANNEL = enum.auto()
    CHANNEL = enum.auto()
    OUTGOING = enum.auto()


TYPED_CHANNELS = (ArgumentSource.RECEIVING, ArgumentSource.TYPED_CHANNEL)
CHANNELS = (*TYPED_CHANNELS, ArgumentSource.CHANNEL)


@attrs.frozen(eq=False)
class Parameter:
    """One parameter of a plan: ``name``, where its argument comes from, and the type that it is converted to.

    ``kind`` is that type, ``sent`` the type of what a ``TypedChannel`` sends. ``default`` is ``ABSENT`` if it is
    required. ``is_positional`` says that it takes no keyword. ``declared`` is the parameter as it was read.
    """

    name: str
    source: ArgumentSource
    kind: object
    sent: object
    default: object
    is_positional: bool
    declared: inspect.Parameter

    @property
    def is_required(self) -> bool:
        """Return whether there is no default."""
        return self.default is ABSENT


class SignaturePlan:
    """The types that a function of an ``interaction`` takes and gives, seen from the side that serves it.

    ``body`` is the type of the data, or that of an object whose members are ``members``, parameters by name; ``ABSENT``
    if no parameter takes the data. ``items`` is the type that comes in a channel, ``reply`` that of the answer or of
    each item. ``iterates`` says that the result is annotated as one to iterate over.

    ``read`` reads the data where no codec has to. ``decodes`` says that an argument needs a codec, ``encodes`` that the
    answer is an object whatever its value, ``needs_data`` that there is no default in place of the data, and
    ``takes_data_alone`` that it is the one argument, and given by position.
    """

    def __init__(
        self,
        interaction: str,
        name: str,
        parameters: Sequence[Parameter],
        reply: object,
        items: object = ABSENT,
        *,
        iterates: bool = False,
    ) -> None:
        self.interaction = interaction
        self.name = name
        self.parameters = tuple(parameters)
        self.reply = reply
        self.items = items
        self.iterates = iterates
        bodies = [each for each in parameters if each.source is ArgumentSource.BODY]
        self.members = tuple(each.name for each in bodies) if len(bodies) > 1 else ()
        self.body: object = ABSENT
        if bodies:
            self.body = object_type(name, members_of(bodies)) if self.members else bodies[0].kind
        for channel in parameters:
            if channel.source in TYPED_CHANNELS:
                self.items = channel.kind
            if channel.source is ArgumentSource.TYPED_CHANNEL:
                self.reply = channel.sent
        self.read = reader_of(self.body) if bodies and not self.members else None
        kinds = [each.kind for each in parameters if each.source in (ArgumentSource.BODY, *TYPED_CHANNELS)]
        self.decodes = bool(self.members) or any(kind is not Payload and reader_of(kind) is None for kind in kinds)
        self.encodes = not _is_raw_result(self.reply)
        self.needs_data = any(each.is_required for each in bodies)
        self.takes_data_alone = (
            len(self.parameters) == 1 and self.needs_data and parameters[0].declared.kind is not KEYWORD_ONLY
        )

    def takes(self, *sources: ArgumentSource) -> bool:
        """Return whether a parameter has one of these origins."""
        return any(parameter.source in sources for parameter in self.parameters)


def read_parameters(
    interaction: str, where: str, parameters: Sequence[inspect.Parameter], route_parameters: Sequence[str]
) -> list[Parameter]:
    """Return the plan of these parameters, which have types.

    ``where`` names the function. Raise ``TypeError`` for those that do not fit the interaction or its route.
    """
    names = [each.name for each in parameters]
    unknown = [name for name in route_parameters if name not in names]
    if unknown:
        raise TypeError(f"{where}: no parameter {unknown[0]}, which the route names")
    given = [each for each in parameters if each.name not in route_parameters]
    data = [each.name for each in given if each.annotation is Any or source_of(each.annotation) is ArgumentSource.BODY]
    # Beside others ``bytes`` and ``Any`` are members of an object as well.
    members = data if len(data) > 1 else []
    return [_parameter(interaction, where, each, route_parameters, members) for each in parameters]


def _parameter(
    interaction: str,
    where: str,
    parameter: inspect.Parameter,
    route_parameters: Sequence[str],
    members: Sequence[str],
) -> Parameter:
    name, kind, sent = parameter.name, parameter.annotation, None
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"{where}: *{name} has no type to decode")
    if name in route_parameters:
        source, kind = ArgumentSource.ROUTE, str if kind is ABSENT else kind
        try:
            check_text_type(kind)
        except TypeError as error:
            raise TypeError(f"{where}: parameter {name} of the route: {error}") from None
    else:
        source = ArgumentSource.BODY if name in members else source_of(kind)
    if source in CHANNELS and interaction != "request_channel":
        raise TypeError(f"{where}: parameter {name} takes a channel")
    if source is ArgumentSource.OUTGOING and interaction not in STREAMS:
        raise TypeError(f"{where}: parameter {name} takes the items of a stream")
    if source in TYPED_CHANNELS:
        kind, sent = (*typing.get_args(kind), Any, Any)[:2]
    positional = parameter.kind is parameter.POSITIONAL_ONLY
    return Parameter(name, source, kind, sent, parameter.default, positional, parameter)


def members_of(parameters: Iterable[Parameter]) -> dict[str, object]:
    """Return the types of the parameters that take the data, by name; ``NotRequired`` is one with a default."""
    bodies = [each for each in parameters if each.source is ArgumentSource.BODY]
    return {each.name: each.kind if each.is_required else NotRequired[each.kind] for each in bodies}


def object_type(name: str, members: Mapping[str, object]) -> object:
    """Return the type of an object of this name with these members."""
    made: Any = typing.TypedDict  # made of names that are known only here
    return made(name, members)


# Handlers


def plan_of_handler(interaction: str, function: Function, route_parameters: Sequence[str]) -> SignaturePlan | None:
    """Return the plan of a typed handler, or ``None`` for a function that takes and gives bytes.

    Raise ``TypeError`` for parameters or a result that do not fit the interaction.
    """
    shape = shape_of_handler(interaction, function)
    signature = typed_signature(function)
    if signature is None or shape in ("class", "generator"):
        return None
    parameters = list(signature.parameters.values())
    reply = signature.return_annotation
    name = function_name(function)
    where = f"{interaction} handler {name}"
    if _is_untyped(interaction, function, parameters, reply, route_parameters):
        _check_names(where, parameters, route_parameters)
        return None
    if len(parameters) > 1:
        if parameters[0].name == "self" and parameters[0].annotation is ABSENT:
            raise TypeError(f"{where} is a method of a class: register that of an object")
        # ``name=name`` keeps what it had in a loop.
        parameters = [
            each
            for each in parameters
            if each.annotation is not ABSENT or each.default is ABSENT or each.name in route_parameters
        ]
    iterates = (typing.get_origin(reply) or reply) in ITERATORS
    # Nothing is sent for a fire-and-forget, whatever is returned.
    reply = type(None) if interaction == "fire_and_forget" else item_type(reply)
    taken = read_parameters(interaction, where, parameters, route_parameters)
    return SignaturePlan(interaction, name.rpartition(".")[2], taken, reply, iterates=iterates)


def shape_of_handler(interaction: str, function: Function) -> str:
    """Return what a function looks like: for streams a plain wrapper of any arguments as what it wraps."""
    shape = shape_of(function)
    if shape == "plain function" and interaction not in UNARY and _is_wrapper(function):
        return shape_of(inspect.unwrap(bare(function)))
    return shape


def _is_untyped(
    interaction: str,
    function: Function,
    parameters: Sequence[inspect.Parameter],
    reply: object,
    route_parameters: Sequence[str],
) -> bool:
    """Return whether a function is a handler of bytes: it takes and gives payloads as they are."""
    if any(each.name in route_parameters for each in parameters):
        return False
    if not parameters:
        return interaction == "fire_and_forget" or item_type(reply) in (ABSENT, type(None), Any)
    required = [each for each in parameters if each.default is ABSENT and each.kind is not each.VAR_KEYWORD]
    if not all(_is_raw_argument(each.annotation) for each in required or parameters[:1]):
        return False
    return interaction in ("fire_and_forget", "request_channel") or _is_raw_result(item_type(reply))


def _check_names(where: str, parameters: Iterable[inspect.Parameter], route_parameters: Sequence[str]) -> None:
    """Raise ``TypeError`` for a parameter of a handler of bytes that was meant to be one of the route's."""
    for each in parameters if route_parameters else ():
        is_named = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        is_set = each.default is not ABSENT
        if is_named and (is_set != (each.annotation is ABSENT)) and each.name not in WHOLE_REQUEST_NAMES:
            raise TypeError(
                f"{where}: no parameter {route_parameters[0]}, which the route names, but {each.name}: rename it, or "
                "annotate the one that takes the request as Payload"
            )


# Signatures with types


def signature_of(function: Function) -> inspect.Signature | None:
    """Return the signature that names the types of a function, ``None`` if it has none to look at.

    It is that of what is wrapped, for a wrapper of any arguments. What a partial has given by keyword is not in it: it
    is not for the requester to say.
    """
    try:
        signature = inspect.signature(function) if _is_wrapper(function) else own_signature(function)
    except (TypeError, ValueError):
        return None  # some built-in functions have none
    given = {name for each in (function, inspect.unwrap(bare(function))) for name in _given(each)}
    return signature.replace(parameters=[each for each in signature.parameters.values() if each.name not in given])


def _is_wrapper(function: Function) -> bool:
    """Return whether a function hands any arguments on to another one."""
    return hasattr(bare(function), "__wrapped__") and all(
        each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in own_signature(function).parameters.values()
    )


def _given(function: object) -> Iterator[str]:
    """Return the names of the arguments that partials of a function have given by keyword."""
    while isinstance(function, functools.partial):
        yield from function.keywords
        function = function.func


def typed_signature(function: Function, names: Mapping[str, object] | None = None) -> inspect.Signature | None:
    """Return that signature with types in place of their names, which are those of the function's module.

    ``names`` are those of the contract around a method: then the type of its result must be known, too. Raise
    ``TypeError`` for the type of a parameter that can't be found.
    """
    signature = signature_of(function)
    if signature is None:
        return None
    module = getattr(bare(inspect.unwrap(bare(function))), "__globals__", {})
    scope = {**RAW_NAMES, **module, **(names or {})}

    def type_of(annotation: object, what: str) -> object:
        try:
            while isinstance(annotation, str):
                annotation = eval(annotation, scope)
        except Exception as error:
            # A type that is imported for the type checker only, most of the time.
            if what == RESULT and names is None:
                return ABSENT
            text = f"the annotation of {what}, {annotation!r}, can't be read: {error}"
            raise TypeError(f"{function_name(function)}: {text}") from None
        return type(None) if annotation is None else annotation

    parameters = [
        each.replace(annotation=type_of(each.annotation, f"parameter {each.name}"))
        for each in signature.parameters.values()
    ]
    return signature.replace(parameters=parameters, return_annotation=type_of(signature.return_annotation, RESULT))


# Types


def source_of(kind: object) -> ArgumentSource:
    """Return the origin of an argument of this type, if the route does not name it."""
    origin = typing.get_origin(kind) or kind
    if origin is Receiving:
        return ArgumentSource.RECEIVING
    if origin is TypedChannel:
        return ArgumentSource.TYPED_CHANNEL
    if isinstance(kind, type) and issubclass(kind, Channel):
        return ArgumentSource.CHANNEL
    if isinstance(kind, type) and issubclass(kind, Outgoing):
        return ArgumentSource.OUTGOING
    return ArgumentSource.PAYLOAD if _is_raw_argument(kind) else ArgumentSource.BODY


def item_type(reply: object) -> object:
    """Return the type inside of what is iterated or awaited, or ``reply`` itself if it is neither."""
    if reply in ITERATORS or reply in AWAITABLES:
        return ABSENT
    origin = typing.get_origin(reply)
    if origin in ITERATORS:
        return typing.get_args(reply)[0]
    return typing.get_args(reply)[-1] if origin in AWAITABLES else reply


def _is_raw_argument(kind: object) -> bool:
    if kind is ABSENT or kind is Any or kind is object:
        return True
    if isinstance(kind, type):
        return issubclass(kind, Payload | Channel | Outgoing)
    return _is_union(kind) and all(each is object or each in PAYLOAD_LIKE for each in typing.get_args(kind))


def _is_raw_result(kind: object) -> bool:
    """Return whether answers of this type, or what is awaited for them, are data as it is."""
    if _is_union(kind):
        return all(_is_raw_result(item_type(each)) for each in typing.get_args(kind))
    return not is_object_type(kind)


def _is_union(kind: object) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def binder(parameters: Iterable[Parameter], name: str) -> Callable[..., dict[str, object]]:
    """Return a function of this name that takes these parameters, and returns its arguments by their names.

    One that was not given is ``ABSENT``. The function is compiled, so that Python itself binds the arguments, and
    refuses those that do not fit in the words of its version.
    """
    declared = [
        inspect.Parameter(each.name, each.declared.kind, default=ABSENT if each.is_required else _Word("absent"))
        for each in parameters
    ]
    scope: dict[str, Any] = {"absent": ABSENT}
    exec(f"def {name}{inspect.Signature(declared)}: return locals()", scope)
    function: Callable[..., dict[str, object]] = scope[name]
    return function


class _Word(str):
    """A name in the text of a signature, which shows defaults as they represent themselves."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
