"""Typed handlers: what came is decoded, the function is called, and what it gives is encoded, as its annotations say.

The plan of a signature is made once, when a handler is registered or a contract is first used. The call of a handler,
its description, the methods of a contract, their implementation and their remote object follow it.
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
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, NotRequired

import attrs

from rsocket_trio.codecs import Codec, DecodeError, convert_text, decode_error
from rsocket_trio.connection.hooks import current_call_variable
from rsocket_trio.connection.streams import Channel, Outgoing
from rsocket_trio.connection.typed_streams import Receiving, Stream, TypedChannel
from rsocket_trio.errors import Invalid
from rsocket_trio.formats import check_text_type, hashed_by_type
from rsocket_trio.forms import (
    Function,
    Handler,
    Kind,
    as_items,
    bare,
    drive,
    function_name,
    own_signature,
    shape_of,
    stands_for,
    unfit,
    with_article,
)
from rsocket_trio.payload import PAYLOAD_LIKE, Payload, PayloadLike
from rsocket_trio.services.calls.context import Call
from rsocket_trio.services.codec_choice import (
    CodecChoices,
    NoCodec,
    Read,
    decode_object,
    encoded,
    is_object_type,
    reader_of,
)
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.metadata.routes import RequestMetadata

ABSENT: Any = inspect.Parameter.empty
KEYWORD_ONLY, POSITIONAL_ONLY = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
RAW_NAMES = {"Payload": Payload, "PayloadLike": object, "Channel": Channel, "Outgoing": Outgoing}
"""The types of handlers of bytes, by names that many modules import for the type checker only."""
RESULT = "the result"
ITERATORS = (AsyncIterator, AsyncGenerator, AsyncIterable, Stream)
AWAITABLES = (Awaitable, Coroutine)
UNIONS = (typing.Union, types.UnionType)
WHOLE_REQUEST_NAMES = ("request", "payload", "channel", "out")
"""Names of parameters without an annotation that a route with parameters does not have to name."""
UNARY = ("request_response", "fire_and_forget")
STREAMS = ("request_stream", "request_subscription")
SERVES = dict.fromkeys(STREAMS, "an async generator, or an async function with an Outgoing")
"""The functions that an interaction takes; a channel takes the others."""
NO_KEYWORDS: Mapping[str, object] = {}


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
    required. ``binding`` says whether it is given by position or by keyword.
    """

    name: str
    source: ArgumentSource
    kind: object
    sent: object
    default: object
    binding: inspect._ParameterKind


class SignaturePlan:
    """The types that a function of an ``interaction`` takes and gives, seen from the side that serves it.

    ``body`` is the type of the data, or that of an object whose types are ``members``, by the names of parameters;
    ``ABSENT`` if no parameter takes the data. ``items`` is the type that comes in a channel, ``reply`` that of the
    answer or of each item.

    ``read`` reads the data where no codec has to. ``decodes`` says that an argument needs a codec, ``encodes`` that the
    answer is an object whatever its value, ``needs_data`` that there is no default in place of the data, and
    ``takes_data_alone`` that it is the one argument, and given by position.
    """

    def __init__(
        self, interaction: str, name: str, parameters: Sequence[Parameter], reply: object, items: object = ABSENT
    ) -> None:
        self.interaction = interaction
        self.name = name
        self.parameters = tuple(parameters)
        self.reply = reply
        self.items = items
        bodies = [parameter for parameter in parameters if parameter.source is ArgumentSource.BODY]
        members = {body.name: body.kind if body.default is ABSENT else NotRequired[body.kind] for body in bodies}
        self.members: dict[str, object] = members if len(members) > 1 else {}
        self.body = object_type(name, self.members) if self.members else bodies[0].kind if bodies else ABSENT
        for channel in parameters:
            if channel.source in TYPED_CHANNELS:
                self.items = channel.kind
            if channel.source is ArgumentSource.TYPED_CHANNEL:
                self.reply = channel.sent
        self.read = None if self.members else reader_of(self.body)
        self.kinds = [
            parameter.kind for parameter in parameters if parameter.source in (ArgumentSource.BODY, *TYPED_CHANNELS)
        ]
        self.decodes = bool(self.members) or any(kind is not Payload and reader_of(kind) is None for kind in self.kinds)
        self.encodes = not _is_raw_result(self.reply)
        self.needs_data = any(parameter.default is ABSENT for parameter in bodies)
        self.takes_data_alone = len(parameters) == 1 and self.needs_data and parameters[0].binding is not KEYWORD_ONLY

    def takes(self, *sources: ArgumentSource) -> bool:
        return any(parameter.source in sources for parameter in self.parameters)


def read_parameters(
    interaction: str, where: str, parameters: Sequence[inspect.Parameter], route_parameters: Sequence[str]
) -> list[Parameter]:
    """Return the plan of these parameters, which have types.

    ``where`` names the function. Raise ``TypeError`` for those that do not fit the interaction or its route.
    """
    for name in route_parameters:
        if name not in [parameter.name for parameter in parameters]:
            raise TypeError(f"{where}: no parameter {name}, which the route names")
    others = [parameter for parameter in parameters if parameter.name not in route_parameters]
    data = [
        parameter
        for parameter in others
        if parameter.annotation is Any or source_of(parameter.annotation) is ArgumentSource.BODY
    ]
    read = []
    for parameter in parameters:
        name, kind, sent = parameter.name, parameter.annotation, None
        # Beside others ``bytes`` and ``Any`` are members of an object as well.
        source = ArgumentSource.BODY if parameter in data and len(data) > 1 else source_of(kind)
        if parameter.kind in VARIABLE:
            raise TypeError(f"{where}: *{name} has no type to decode")
        if name in route_parameters:
            source, kind = ArgumentSource.ROUTE, str if kind is ABSENT else kind
            try:
                check_text_type(kind)
            except TypeError as error:
                raise TypeError(f"{where}: parameter {name} of the route: {error}") from None
        if source in CHANNELS and interaction != "request_channel":
            raise TypeError(f"{where}: parameter {name} takes a channel")
        if source is ArgumentSource.OUTGOING and interaction not in STREAMS:
            raise TypeError(f"{where}: parameter {name} takes the items of a stream")
        if source in TYPED_CHANNELS:
            kind, sent = (*typing.get_args(kind), Any, Any)[:2]
        read.append(Parameter(name, source, kind, sent, parameter.default, parameter.kind))
    return read


def object_type(name: str, members: Mapping[str, object]) -> object:
    made: Any = typing.TypedDict  # made of names that are known only here
    return made(name, members)


def plan_of_handler(interaction: str, function: Function, route_parameters: Sequence[str]) -> SignaturePlan | None:
    """Return the plan of a typed handler, or ``None`` for a function that takes and gives bytes.

    Raise ``TypeError`` for parameters or a result that do not fit the interaction.
    """
    signature = typed_signature(function)
    if signature is None or shape_of(function) in ("class", "generator"):
        return None
    parameters = list(signature.parameters.values())
    reply = signature.return_annotation
    name = function_name(function)
    where = f"{interaction} handler {name}"
    if not any(parameter.name in route_parameters for parameter in parameters) and _is_raw(
        interaction, parameters, reply
    ):
        for parameter in parameters if route_parameters else ():
            is_named = parameter.kind not in (POSITIONAL_ONLY, *VARIABLE) and parameter.name not in WHOLE_REQUEST_NAMES
            if is_named and (parameter.default is ABSENT) == (parameter.annotation is ABSENT):
                raise TypeError(
                    f"{where}: no parameter {route_parameters[0]}, which the route names, but {parameter.name}: "
                    "rename it, or annotate the one that takes the request as Payload"
                )
        return None
    if len(parameters) > 1:
        if parameters[0].name == "self" and parameters[0].annotation is ABSENT:
            raise TypeError(f"{where} is a method of a class: register that of an object")
        # ``name=name`` keeps what it had in a loop.
        parameters = [
            parameter
            for parameter in parameters
            if parameter.annotation is not ABSENT or parameter.default is ABSENT or parameter.name in route_parameters
        ]
    # Nothing is sent for a fire-and-forget, whatever is returned.
    reply = type(None) if interaction == "fire_and_forget" else item_type(reply)
    taken = read_parameters(interaction, where, parameters, route_parameters)
    return SignaturePlan(interaction, name.rpartition(".")[2], taken, reply)


def _is_raw(interaction: str, parameters: Sequence[inspect.Parameter], reply: object) -> bool:
    """Return whether a function is a handler of bytes: it takes and gives payloads as they are."""
    if not parameters:
        return interaction == "fire_and_forget" or item_type(reply) in (ABSENT, type(None), Any)
    required = [
        parameter
        for parameter in parameters
        if parameter.default is ABSENT and parameter.kind is not parameter.VAR_KEYWORD
    ]
    if not all(_is_raw_argument(parameter.annotation) for parameter in required or parameters[:1]):
        return False
    return interaction in ("fire_and_forget", "request_channel") or _is_raw_result(item_type(reply))


def signature_of(function: Function) -> inspect.Signature | None:
    """Return the signature that names the types of a function, ``None`` if it has none to look at.

    It is that of what is wrapped, for a wrapper of any arguments. What a partial has given by keyword is not in it: it
    is not for the requester to say.
    """
    try:
        signature = inspect.signature(function) if _is_wrapper(function) else own_signature(function)
    except (TypeError, ValueError):
        return None  # some built-in functions have none
    filled = {name for layer in (function, inspect.unwrap(bare(function))) for name in _keywords_of_partials(layer)}
    return signature.replace(
        parameters=[parameter for parameter in signature.parameters.values() if parameter.name not in filled]
    )


def _is_wrapper(function: Function) -> bool:
    """Return whether a function hands any arguments on to another one."""
    parameters = own_signature(function).parameters.values() if hasattr(bare(function), "__wrapped__") else ()
    return bool(parameters) and all(parameter.kind in VARIABLE for parameter in parameters)


def _keywords_of_partials(function: object) -> Iterator[str]:
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

    parameters = list(signature.parameters.values())
    typed = [
        parameter.replace(annotation=type_of(parameter.annotation, f"parameter {parameter.name}"))
        for parameter in parameters
    ]
    return signature.replace(parameters=typed, return_annotation=type_of(signature.return_annotation, RESULT))


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
    origin, inner = typing.get_origin(reply), typing.get_args(reply)
    if origin not in ITERATORS and origin not in AWAITABLES:
        return reply
    item = inner[0 if origin in ITERATORS else -1]
    return type(None) if item is None else item


def _is_raw_argument(kind: object) -> bool:
    if kind is ABSENT or kind is Any or kind is object:
        return True
    if isinstance(kind, type):
        return issubclass(kind, Payload | Channel | Outgoing)
    is_union = typing.get_origin(kind) in UNIONS
    return is_union and all(member is object or member in PAYLOAD_LIKE for member in typing.get_args(kind))


def _is_raw_result(kind: object) -> bool:
    """Return whether answers of this type, or what is awaited for them, are data as it is."""
    if typing.get_origin(kind) in UNIONS:
        return all(_is_raw_result(item_type(member)) for member in typing.get_args(kind))
    return not is_object_type(kind)


def binder(parameters: Sequence[Parameter], name: str) -> Callable[..., dict[str, object]]:
    """Return a function of this name that takes these parameters, and returns its arguments by their names.

    One that was not given is ``ABSENT``. The function is compiled, so that Python itself binds the arguments, and
    refuses those that do not fit in the words of its version.
    """
    declared = [
        inspect.Parameter(parameter.name, parameter.binding, default=ABSENT if parameter.default is ABSENT else ...)
        for parameter in parameters
    ]
    scope: dict[str, Callable[..., dict[str, object]]] = {"Ellipsis": ABSENT}  # as the signature shows the default
    exec(f"def {name}{inspect.Signature(declared)}: return locals()", scope)
    return scope[name]


def typed_handler(plan: SignaturePlan, function: Function, codecs: CodecChoices) -> Handler:
    """Return the handler that serves ``plan`` by ``function``, with the ``codecs`` of the responder.

    Raise ``TypeError`` for a function that does not fit, and for types that no built-in codec can read or write; both
    are named.
    """
    interaction, name = plan.interaction, function_name(function)
    shape, stand_in = shape_of(function), stands_for(function)
    generates = stand_in == "async generator"
    if interaction in UNARY:
        if generates:
            raise TypeError(f"{interaction} takes one answer; {name} yields items: that is request_stream")
        kind = Kind.ASYNC if shape == "async function" else Kind.INLINE
    else:
        kind = Kind.PUSH if interaction in STREAMS else Kind.ASYNC
        if kind is Kind.ASYNC and not plan.takes(*CHANNELS):
            raise TypeError(f"{interaction} takes a parameter of Receiving, TypedChannel or Channel; {name} has none")
        sends = stand_in == "async function" and plan.takes(ArgumentSource.OUTGOING, *CHANNELS)
        if not generates and not sends:
            serves = SERVES.get(interaction, "an async function or an async generator")
            raise TypeError(f"{interaction} takes {serves}; {name} is {with_article(shape)}")
    if all(type(codec).__module__.startswith("rsocket_trio.") for codec in codecs.codecs):
        for item in (*plan.kinds, plan.reply) if plan.encodes else plan.kinds:
            if item is not Payload and getattr(item, "__origin__", None) is not Payload:
                try:
                    hashed_by_type(item)
                except TypeError as error:
                    raise TypeError(f"{interaction} handler {name}: {error}") from None
    return Handler(function, kind, interaction=interaction, typed=TypedHandler(plan, function, codecs, generates))


@attrs.frozen(eq=False)
class TypedHandler:
    """A ``function`` of the application that serves by its ``plan``, with the ``codecs`` of the responder.

    ``generates`` says that the items of a stream or channel are those that it yields.
    """

    plan: SignaturePlan
    function: Function
    codecs: CodecChoices
    generates: bool

    def __call__(self, call: Call, kind: Kind, request: Payload, metadata: RequestMetadata) -> Function:
        """Return the function of bytes that serves ``call``, in the form of ``kind``.

        ``request`` opened the call, ``metadata`` are its MIME entries. Raise ``Invalid`` if no codec covers it.
        """
        decoder, encoder = self.codecs.of_call(request, metadata.mimes, call.connection.setup)
        plan = self.plan
        if plan.decodes and isinstance(decoder, NoCodec):
            raise Invalid(decoder.reason)
        if plan.encodes and isinstance(encoder, NoCodec):
            raise Invalid(encoder.reason)
        served = TypedCall(self, call, decoder, encoder)
        if plan.interaction == "request_channel":
            return served.converse
        if kind is Kind.PUSH:
            return served.push
        return served.respond if kind is Kind.ASYNC else served.respond_inline


@value
class TypedCall:
    """One call of a typed handler: decodes what came by ``codec``, calls the function, encodes by ``answers``."""

    handler: TypedHandler
    call: Call
    codec: Codec
    answers: Codec

    async def respond(self, request: Payload) -> PayloadLike:
        # Reset afterwards: a worker goes on with the next call if its context is as it was.
        token = current_call_variable.set(self.call)
        try:
            args, keywords = self._arguments(request)
            return self._encoded(await self.handler.function(*args, **keywords))
        finally:
            current_call_variable.reset(token)

    def respond_inline(self, request: Payload) -> PayloadLike | Awaitable[PayloadLike]:
        """Call the plain handler of one ``request``; return its answer, or an awaitable of it."""
        current_call_variable.set(self.call)
        args, keywords = self._arguments(request)
        result = self.handler.function(*args, **keywords)
        return self._awaited(result) if inspect.isawaitable(result) else self._encoded(result)

    async def _awaited(self, result: Awaitable[object]) -> PayloadLike:
        return self._encoded(await result)

    async def push(self, request: Payload, carrier: Any) -> None:
        """Await the handler of a stream or channel, or send the items that it yields.

        ``carrier`` is the sending side of the stream, or the channel.
        """
        handler = self.handler
        token = current_call_variable.set(self.call)
        try:
            args, keywords = self._arguments(request, carrier)
            result = handler.function(*args, **keywords)
            if not handler.generates:
                await result
                return
            if not hasattr(result, "__aiter__"):
                raise unfit(handler.plan.interaction, handler.function, result, "an async generator or iterable")
            # An item that can't be encoded is raised at the ``yield``, as if the send had failed.
            await drive(as_items(result), lambda item: carrier.send(self._encoded(item)))
        finally:
            current_call_variable.reset(token)

    def converse(self, channel: Channel) -> Awaitable[None]:
        return self.push(channel.request, channel)

    def _encoded(self, result: object) -> PayloadLike:
        plan = self.handler.plan
        if result is None or plan.interaction == "fire_and_forget":
            return b""
        if isinstance(result, Payload) or (not plan.encodes and isinstance(result, PAYLOAD_LIKE)):
            data: PayloadLike = result
            return data
        return encoded(self.answers, result, f"{plan.interaction} handler {function_name(self.handler.function)}")

    def _arguments(self, request: Payload, carrier: object = None) -> tuple[Sequence[object], Mapping[str, object]]:
        """Return the arguments of the function, by position and by name. Raise ``Invalid`` for what does not fit.

        ``carrier`` is the channel, or the sending side of a stream.
        """
        plan = self.handler.plan
        if plan.takes_data_alone:
            return (self._decode(request, plan.body, plan.read),), NO_KEYWORDS
        args: list[object] = []
        keywords: dict[str, object] = {}
        body: Any = {} if plan.members else ABSENT
        if plan.body is not ABSENT and (request.data or (plan.needs_data and not plan.members)):
            body = self._decode(request, plan.body, plan.read)
        for parameter in plan.parameters:
            if parameter.source is not ArgumentSource.BODY:
                argument = self._argument(parameter, request, carrier)
            else:
                argument = body.get(parameter.name, ABSENT) if plan.members else body
            if argument is ABSENT:
                argument = parameter.default
                if argument is ABSENT:
                    raise Invalid(f"$: missing required field `{parameter.name}`")
            if parameter.binding is POSITIONAL_ONLY:
                args.append(argument)
            else:
                keywords[parameter.name] = argument
        return args, keywords

    def _decode(self, payload: Payload, kind: object, read: Read | None) -> object:
        data = payload.data
        try:
            if read is not None:
                return read(data)
            return self.codec.decode(data, kind) if data else decode_object(self.codec, data, kind)
        except ValueError as error:
            raise Invalid(str(decode_error(error))) from None

    def _argument(self, parameter: Parameter, request: Payload, carrier: Any) -> object:
        source, plan = parameter.source, self.handler.plan
        if source is ArgumentSource.ROUTE:
            try:
                return convert_text(self.call.parameters[parameter.name], parameter.kind)
            except DecodeError as error:
                raise Invalid(f"route parameter {parameter.name}: {str(error).removeprefix('$: ')}") from None
        if source is ArgumentSource.PAYLOAD:
            return request
        if source not in TYPED_CHANNELS:
            return carrier
        kind, read = parameter.kind, reader_of(parameter.kind)

        def decode(payload: Payload) -> object:
            return payload if kind is Payload else self._decode(payload, kind, read)

        first = plan.body is ABSENT and not plan.takes(ArgumentSource.PAYLOAD)
        if source is ArgumentSource.RECEIVING:
            return Receiving[object](carrier, decode, with_request=first)
        return TypedChannel[object, object](carrier, decode, encode=self._encoded, with_request=first)
