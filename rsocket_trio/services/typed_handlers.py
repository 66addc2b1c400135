"""Typed handlers: annotations decide what a handler is given, how its answers are encoded, and what is INVALID."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextvars import Token
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, ForwardRef, NotRequired

import attrs

from rsocket_trio.codecs import Codec, DecodeError, convert_text, decode_error
from rsocket_trio.connection.hooks import current_call_variable
from rsocket_trio.connection.streams import Channel, Outgoing
from rsocket_trio.connection.typed_streams import Receiving, Stream, TypedChannel
from rsocket_trio.errors import Invalid
from rsocket_trio.forms import (
    Function,
    Handler,
    Kind,
    bare,
    checked,
    drive,
    function_name,
    own_signature,
    shape_of,
    unfit,
)
from rsocket_trio.payload import PAYLOAD_LIKE, Payload, PayloadLike
from rsocket_trio.services.answer_payloads import unencodable
from rsocket_trio.services.calls.context import Call
from rsocket_trio.services.codec_choice import CodecChoices, NoCodec
from rsocket_trio.services.json_schema import check_text_type, check_type
from rsocket_trio.services.payload_types import decode_object, is_bytes, is_object_type, reader_of, text_type
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.metadata.routes import RequestMetadata

HERE = str(Path(__file__).parent.parent)
"""The folder of the package: frames outside of it are the application's."""
ABSENT: Any = inspect.Parameter.empty
UNRESOLVED_RAW = ("Payload", "PayloadLike", "Channel", "Outgoing", "object")
ITERATORS = (AsyncIterator, AsyncGenerator, AsyncIterable)
AWAITABLES = (Awaitable, Coroutine)
WHOLE_REQUEST_NAMES = ("request", "payload", "channel", "out")
"""Names of parameters without an annotation that a route with parameters does not have to name."""
NEVER = (typing.NoReturn, typing.Never)
UNARY = ("request_response", "fire_and_forget")
STREAMS = ("request_stream", "request_subscription")


NO_KEYWORDS: Mapping[str, Any] = {}


class Source(enum.Enum):
    """The origin of an argument."""

    ROUTE = enum.auto()
    BODY = enum.auto()
    PAYLOAD = enum.auto()
    RECEIVING = enum.auto()
    TYPED_CHANNEL = enum.auto()
    CHANNEL = enum.auto()
    OUTGOING = enum.auto()


@value
class Parameter:
    """One parameter of a handler: ``name``, where its argument comes from, and the type that it is converted to.

    ``kind`` is that type, ``sent`` the type of what a ``TypedChannel`` sends, ``default`` its default, ``ABSENT`` if it
    is required, and ``positional`` whether it takes no keyword.
    """

    name: str
    source: Source
    kind: Any = None
    sent: Any = None
    default: Any = ABSENT
    positional: bool = False

    @property
    def required(self) -> bool:
        """Return whether there is no default."""
        return self.default is ABSENT


@attrs.frozen(eq=False)
class TypedHandler:
    """The types of a handler's data, items and answer, from its annotations.

    ``function`` is the application's, ``parameters`` its parameters in order. ``body`` is the type of the data, or that
    of an object whose members are ``members``, the parameters by name; ``ABSENT`` if no parameter takes the data.
    ``items`` is the type that comes in a channel, ``reply`` that of the answer or of each item. ``codecs`` are those of
    the responder.

    ``decodes`` says that an argument needs a codec, ``encodes`` that the answer is an object whatever its value.
    ``needs_body`` says that there is no default in place of the data, and ``is_body`` that the one parameter is the
    data, and may be given by position.
    """

    function: Function
    decorator: str
    parameters: tuple[Parameter, ...]
    body: Any
    members: tuple[str, ...]
    items: Any
    reply: Any
    generates: bool
    codecs: CodecChoices
    decodes: bool
    encodes: bool
    needs_body: bool
    is_body: bool

    def serving(self, call: Call, kind: Kind, request: Payload, metadata: RequestMetadata) -> Function:
        """Return the function of bytes that serves ``call``, in the form of ``kind``.

        ``request`` opened the call, ``metadata`` are its MIME entries. Raise ``Invalid`` if no codec covers it.
        """
        decoder, encoder = self.codecs.of_call(request, metadata.mimes, call.connection.setup)
        if self.decodes and isinstance(decoder, NoCodec):
            raise decoder.refusal()
        if self.encodes and isinstance(encoder, NoCodec):
            raise encoder.refusal()
        served = TypedCall(self, call, decoder, encoder)
        if self.decorator == "request_channel":
            return served.converse
        if kind is Kind.GENERATOR:
            return served.generate
        if kind is Kind.PUSH:
            return served.push
        return served.respond if kind is Kind.ASYNC else served.respond_inline

    def takes(self, *sources: Source) -> bool:
        """Return whether a parameter has one of these origins."""
        return any(parameter.source in sources for parameter in self.parameters)


class TypedCall:
    """One call of a typed handler: decodes what came, calls the function, encodes what it gives."""

    __slots__ = ("_answer", "_call", "_codec", "_handler")

    def __init__(self, handler: TypedHandler, call: Call, codec: Codec, answer: Codec) -> None:
        self._handler = handler
        self._call = call
        self._codec = codec
        self._answer = answer

    async def respond(self, request: Payload) -> PayloadLike:
        """Await the handler of one ``request``, and return its answer."""
        # Reset afterwards: a worker goes on with the next call if its context is as it was.
        token = current_call_variable.set(self._call)
        try:
            args, keywords = self._arguments(request)
            return self._encoded(await self._handler.function(*args, **keywords))
        finally:
            current_call_variable.reset(token)

    def respond_inline(self, request: Payload) -> Any:
        """Call the plain handler of one ``request``; return its answer, or an awaitable of it."""
        current_call_variable.set(self._call)
        args, keywords = self._arguments(request)
        result = self._handler.function(*args, **keywords)
        return self._awaited(result) if inspect.isawaitable(result) else self._encoded(result)

    def generate(self, request: Payload) -> EncodedItems:
        """Return the items of a handler that is an async generator, encoded."""
        token = current_call_variable.set(self._call)
        try:
            args, keywords = self._arguments(request)
            return self._items(self._handler.function(*args, **keywords), token)
        except BaseException:
            current_call_variable.reset(token)
            raise

    def _items(self, items: Any, token: Token[Call | None] | None = None) -> EncodedItems:
        if not hasattr(items, "__aiter__"):
            raise unfit(self._handler.decorator, self._handler.function, items, "an async generator or iterable")
        return EncodedItems(items if hasattr(items, "__anext__") else aiter(items), self._encoded, token)

    async def push(self, request: Payload, out: object) -> None:
        """Await a handler that sends the items of ``request`` to ``out`` itself."""
        token = current_call_variable.set(self._call)
        try:
            args, keywords = self._arguments(request, out=out)
            await self._handler.function(*args, **keywords)
        finally:
            current_call_variable.reset(token)

    async def converse(self, channel: Channel) -> None:
        """Await the handler of a ``channel``, or send the items that it yields."""
        token = current_call_variable.set(self._call)
        try:
            args, keywords = self._arguments(channel.request, channel=channel)
            result = self._handler.function(*args, **keywords)
            if self._handler.generates:
                await drive(self._items(result), channel.send)
            else:
                await result
        finally:
            current_call_variable.reset(token)

    async def _awaited(self, result: Awaitable[Any]) -> PayloadLike:
        return self._encoded(await result)

    def _decode(self, payload: Payload, kind: Any) -> Any:
        read = reader_of(kind)
        try:
            return decode_object(self._codec, payload.data, kind) if read is None else read(payload.data)
        except ValueError as error:
            raise Invalid(str(decode_error(error))) from None

    def _encoded(self, result: Any) -> PayloadLike:
        handler = self._handler
        if result is None or handler.decorator == "fire_and_forget":
            return b""
        if isinstance(result, Payload) or (not handler.encodes and isinstance(result, PAYLOAD_LIKE)):
            data: PayloadLike = result
            return data
        codec = self._answer
        try:
            return codec.encode(result)
        except (TypeError, ValueError) as error:
            raise unencodable(codec, handler.decorator, handler.function, result, error) from error

    def _arguments(
        self, request: Payload, channel: Channel | None = None, out: object | None = None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of the function, by position and by name. Raise ``Invalid`` for what does not fit."""
        handler = self._handler
        if handler.is_body:
            return (self._body(request),), NO_KEYWORDS
        args: list[Any] = []
        keywords: dict[str, Any] = {}
        body = self._body(request) if handler.body is not ABSENT else ABSENT
        for parameter in handler.parameters:
            argument = self._argument(parameter, request, body, channel, out)
            if argument is ABSENT:
                argument = parameter.default
            if parameter.positional:
                args.append(argument)
            else:
                keywords[parameter.name] = argument
        return args, keywords

    def _body(self, request: Payload) -> Any:
        """Return the decoded data, ``ABSENT`` for none if the parameter has a default."""
        handler = self._handler
        if not request.data:
            if handler.members:
                return {}
            if not handler.needs_body:
                return ABSENT
        return self._decode(request, handler.body)

    def _argument(
        self, parameter: Parameter, request: Payload, body: Any, channel: Channel | None, out: object | None
    ) -> Any:
        source = parameter.source
        if source is Source.BODY:
            if not self._handler.members:
                return body
            if parameter.name in body:
                return body[parameter.name]
            if parameter.required:
                raise Invalid(f"$: missing required field `{parameter.name}`")
            return ABSENT
        if source is Source.ROUTE:
            text = self._call.parameters[parameter.name]
            try:
                return convert_text(text, parameter.kind)
            except DecodeError as error:
                raise Invalid(f"route parameter {parameter.name}: {str(error).removeprefix('$: ')}") from None
        if source is Source.PAYLOAD:
            return request
        if source is Source.OUTGOING:
            return out
        assert channel is not None
        if source is Source.CHANNEL:
            return channel
        first = self._handler.body is ABSENT and not self._handler.takes(Source.PAYLOAD)

        def decode(payload: Payload) -> Any:
            return payload if parameter.kind is Payload else self._decode(payload, parameter.kind)

        if source is Source.RECEIVING:
            return Receiving[Any](channel, decode, with_request=first)
        return TypedChannel[Any, Any](None, decode, channel=channel, encode=self._encoded, with_request=first)


class EncodedItems:
    """The items of an async generator, encoded; what the driver raises at the ``yield`` is passed on to it.

    At their end the variable of the current call is reset by ``token``.
    """

    __slots__ = ("_encode", "_items", "_token")

    def __init__(self, items: Any, encode: Callable[[Any], PayloadLike], token: Token[Call | None] | None) -> None:
        self._items = items
        self._encode = encode
        self._token = token

    async def __anext__(self) -> PayloadLike:
        try:
            return await self._encoded(await self._items.__anext__())
        except BaseException:
            self._end()
            raise

    async def athrow(self, error: BaseException) -> PayloadLike:
        """Raise ``error`` at the ``yield``, and return the next item. Another async iterable just ends with it."""
        try:
            if not hasattr(self._items, "athrow"):
                raise error
            return await self._encoded(await self._items.athrow(error))
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            current_call_variable.reset(token)

    async def _encoded(self, item: Any) -> PayloadLike:
        while True:
            try:
                return self._encode(item)
            except Exception as error:
                # As if the send had failed: the generator learns of it where it yielded.
                item = await self.athrow(error)


# What the annotations say


def read(
    decorator: str,
    function: object,
    route_parameters: Sequence[str],
    codecs: CodecChoices,
    *,
    contract: inspect.Signature | None = None,
) -> Handler | None:
    """Return a typed handler, or ``None`` for a function that takes and gives bytes.

    ``decorator`` names the interaction, ``route_parameters`` are those of the route, ``codecs`` those of the responder.
    ``contract`` is the signature that counts, with types, instead of the function's own. Raise ``TypeError`` for a
    function that does not fit, and for types that no built-in codec can read or write; both are named.
    """
    if decorator not in (*UNARY, *STREAMS, "request_channel") or not callable(function):
        return None
    shape = _shape(decorator, function)
    signature = typed_signature(function) if contract is None else contract
    if signature is None or shape in ("cached", "class", "generator"):
        return None
    parameters = list(signature.parameters.values())
    hints = {each.name: each.annotation for each in parameters}
    reply = signature.return_annotation
    name = function_name(function)
    if contract is None and _is_untyped(decorator, function, parameters, hints, reply, route_parameters):
        if route_parameters:
            _check_names(decorator, function, route_parameters)
        return None
    data = [name for name, kind in hints.items() if name not in route_parameters and is_data(kind)]
    # Beside others ``bytes`` and ``Any`` are members of an object as well.
    member_names = data if len(data) > 1 else []
    if len(parameters) > 1 and parameters[0].name == "self" and parameters[0].annotation is ABSENT:
        raise TypeError(f"{decorator} handler {name} is a method of a class: register that of an object")
    given = _unsaid(decorator, shape, parameters, hints, (*route_parameters, *member_names))
    taken: list[Parameter] = []
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise TypeError(f"{decorator} handler {name}: *{each.name} has no type to decode")
        is_set = each.annotation is ABSENT and each.default is not ABSENT and contract is None
        if is_set and len(parameters) > 1 and each.name not in route_parameters:
            continue  # ``name=name`` keeps what it had in a loop
        is_member = each.name in member_names
        taken.append(
            given.get(each.name)
            or _parameter(decorator, name, each, hints[each.name], route_parameters, is_member=is_member)
        )
    unknown = [each for each in route_parameters if each not in hints]
    if unknown:
        raise TypeError(f"{decorator} handler {name}: no parameter {unknown[0]}, which the route names")
    generates, result_kind = _result(decorator, name, shape, reply)
    bodies = [each for each in taken if each.source is Source.BODY]
    body, members = _body_of(name, bodies)
    channels = [each for each in taken if each.source in (Source.RECEIVING, Source.TYPED_CHANNEL)]
    if channels and channels[0].source is Source.TYPED_CHANNEL:
        result_kind = channels[0].sent
    typed = TypedHandler(
        function=function,
        decorator=decorator,
        parameters=tuple(taken),
        body=body,
        members=members,
        items=channels[0].kind if channels else ABSENT,
        reply=result_kind,
        generates=generates,
        codecs=codecs,
        decodes=bool(members) or any(_needs_codec(each.kind) for each in (*bodies, *channels)),
        encodes=not _is_raw_result(result_kind),
        needs_body=any(each.required for each in bodies),
        is_body=_is_body(function, taken, members),
    )
    kind = _kind(decorator, name, shape, taken, generates)
    _check_types(typed, bodies, channels)
    return Handler(function, kind, interaction=decorator, typed=typed)


def _check_types(typed: TypedHandler, bodies: Sequence[Parameter], channels: Sequence[Parameter]) -> None:
    """Raise ``TypeError`` for types that the built-in codecs can't read or write; others may take anything."""
    if not all(type(codec).__module__.startswith("rsocket_trio.") for codec in typed.codecs.codecs):
        return
    kinds = [each.kind for each in (*bodies, *channels)]
    if typed.encodes:
        kinds.append(typed.reply)
    for kind in kinds:
        if is_bytes(kind) or text_type(kind) is str:
            continue  # no codec is asked, and none may be installed
        if kind is Payload or (typing.get_origin(kind) is Annotated and typing.get_args(kind)[0] is Payload):
            continue
        try:
            check_type(kind)
        except TypeError as error:
            raise TypeError(f"{typed.decorator} handler {function_name(typed.function)}: {error}") from None


def typed_signature(function: Function, names: Mapping[str, Any] | None = None) -> inspect.Signature | None:
    """Return the signature of a function with types in place of their names, ``None`` if it has none to look at.

    ``names`` are those of the contract around a method: then the type of its result must be known, too. Raise
    ``TypeError`` for the type of a parameter that can't be found.
    """
    signature = _signature(function)
    if signature is None:
        return None
    scope = _Scope(function, names or {})
    return signature.replace(
        parameters=[
            each.replace(annotation=scope.resolved(each.annotation, f"parameter {each.name}"))
            for each in signature.parameters.values()
        ],
        return_annotation=scope.resolved(signature.return_annotation, None if names is None else "the result"),
    )


def _shape(decorator: str, function: Function) -> str:
    """Return what a function looks like: for streams a plain wrapper of any arguments as what it wraps."""
    shape = shape_of(function)
    if shape == "plain function" and decorator not in UNARY and _is_wrapper(function):
        return shape_of(inspect.unwrap(bare(function)))
    return shape


def _is_wrapper(function: Function) -> bool:
    """Return whether a function hands any arguments on to another one."""
    return hasattr(bare(function), "__wrapped__") and all(
        each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in own_signature(function).parameters.values()
    )


def _given(function: Any) -> set[str]:
    """Return the names of the arguments that partials of a function have given by keyword."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names.update(function.keywords)
        function = function.func
    return names


def _signature(function: Function) -> inspect.Signature | None:
    """Return the signature that names types: that of what is wrapped, for a wrapper of any arguments.

    What a partial has given by keyword is not in it: it is not for the requester to say.
    """
    try:
        own = inspect.signature(function) if _is_wrapper(function) else own_signature(function)
    except (TypeError, ValueError):
        return None  # some built-in functions have none
    given = _given(function) | _given(inspect.unwrap(bare(function)))
    return own.replace(parameters=[each for each in own.parameters.values() if each.name not in given])


class _Scope:
    """The names that the annotations of a function may use: those of its module, and of the places around it."""

    def __init__(self, function: Function, names: Mapping[str, Any]) -> None:
        inner = bare(inspect.unwrap(bare(function)))
        self._globals = getattr(inner, "__globals__", {})
        self._name = function_name(function)
        self._names = names
        self._locals: Mapping[str, Any] | None = None

    def resolved(self, annotation: Any, what: str | None) -> Any:
        """Return the type of an annotation, ``ABSENT`` for none. ``None`` for ``what`` forgives one that is unknown."""
        if isinstance(annotation, ForwardRef):
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            return type(None) if annotation is None else annotation
        try:
            return self.resolved(self._evaluated(annotation), what)
        except Exception as error:
            # A type that is imported for the type checker only, most of the time.
            if what is None or annotation.split("[")[0].rpartition(".")[2].strip("'\" ") in UNRESOLVED_RAW:
                return ABSENT
            text = f"{self._name}: the annotation of {what}, {annotation!r}, can't be read: {error}"
            raise TypeError(text) from None

    def _evaluated(self, annotation: str) -> Any:
        try:
            return eval(annotation, dict(self._globals))
        except NameError:
            if self._locals is None:
                self._locals = _locals_around()
            return eval(annotation, {**self._globals, **self._locals, **self._names})


def _locals_around() -> dict[str, Any]:
    """Return the local names of the functions in which the application decorates right now, inner ones first."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(HERE) and frame.f_locals is not frame.f_globals:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


def _is_untyped(
    decorator: str,
    function: Function,
    parameters: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    reply: Any,
    route_parameters: Sequence[str],
) -> bool:
    """Return whether a function is a handler of bytes: it takes and gives payloads as they are."""
    if any(each.name in route_parameters for each in parameters):
        return False
    required = [each for each in parameters if each.default is ABSENT and each.kind is not each.VAR_KEYWORD]
    if not parameters:
        return decorator == "fire_and_forget" or item_type(reply) in (ABSENT, type(None), Any)
    if not all(_is_raw_argument(hints[each.name]) for each in required or parameters[:1]):
        return False
    try:
        checked(decorator, function)
    except TypeError:
        return not _has_types(decorator, hints, reply)
    inner = item_type(reply)
    return decorator in ("fire_and_forget", "request_channel") or inner is ABSENT or _is_raw_result(inner)


def _check_names(decorator: str, function: Function, route_parameters: Sequence[str]) -> None:
    """Raise ``TypeError`` for a parameter of a handler of bytes that was meant to be one of the route's."""
    signature = _signature(function)
    for each in () if signature is None else signature.parameters.values():
        is_named = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        is_set = each.default is not ABSENT
        if is_named and (is_set != (each.annotation is ABSENT)) and each.name not in WHOLE_REQUEST_NAMES:
            raise TypeError(
                f"{decorator} handler {function_name(function)}: no parameter {route_parameters[0]}, which the route "
                f"names, but {each.name}: rename it, or annotate the one that takes the request as Payload"
            )


def _needs_codec(kind: Any) -> bool:
    """Return whether whole data of this type is read by a codec."""
    return kind is not Payload and reader_of(kind) is None


def _has_types(decorator: str, hints: Mapping[str, Any], reply: Any) -> bool:
    """Return whether any annotation is one that only a typed handler has."""
    if decorator != "request_response":
        reply = ABSENT
    return any(not _is_raw_argument(each) for each in hints.values()) or not (
        reply is ABSENT or _is_raw_result(item_type(reply))
    )


def _is_raw_argument(kind: Any) -> bool:
    if kind is ABSENT or kind is Any or _is_channel(kind) or _is_outgoing(kind):
        return True
    if isinstance(kind, type):
        return kind is object or issubclass(kind, Payload)
    return _is_union(kind) and all(each is object or each in PAYLOAD_LIKE for each in typing.get_args(kind))


def _is_raw_result(kind: Any) -> bool:
    """Return whether answers of this type, or what is awaited for them, are data as it is."""
    if _is_union(kind):
        return all(_is_raw_result(item_type(each)) for each in typing.get_args(kind))
    return not is_object_type(kind)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _is_channel(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Channel)


def _is_outgoing(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Outgoing)


def item_type(reply: Any) -> Any:
    """Return the type inside of what is iterated or awaited, or ``reply`` itself if it is neither."""
    if isinstance(reply, type) and reply in (*ITERATORS, *AWAITABLES, Stream):
        return ABSENT
    origin = typing.get_origin(reply)
    if origin in ITERATORS or origin is Stream:
        inner = typing.get_args(reply)[0]
    elif origin in AWAITABLES:
        inner = typing.get_args(reply)[-1]
    else:
        return reply
    return type(None) if inner is None else inner


def is_data(kind: Any) -> bool:
    """Return whether a parameter of this type takes the data, or a member of it if there are several."""
    return argument_source(kind) is Source.BODY or kind is Any


def argument_source(kind: Any) -> Source:
    """Return the origin of an argument of this type, if the route does not name it."""
    origin = typing.get_origin(kind) or kind
    if origin is Receiving:
        return Source.RECEIVING
    if origin is TypedChannel:
        return Source.TYPED_CHANNEL
    if _is_channel(kind):
        return Source.CHANNEL
    if _is_outgoing(kind):
        return Source.OUTGOING
    return Source.PAYLOAD if _is_raw_argument(kind) else Source.BODY


def _parameter(
    decorator: str,
    name: str,
    parameter: inspect.Parameter,
    kind: Any,
    route_parameters: Sequence[str],
    *,
    is_member: bool,
) -> Parameter:
    positional = parameter.kind is parameter.POSITIONAL_ONLY

    def taking(source: Source, kind: Any = None, sent: Any = None) -> Parameter:
        return Parameter(parameter.name, source, kind, sent, parameter.default, positional)

    if parameter.name in route_parameters:
        kind = str if kind is ABSENT else kind
        try:
            check_text_type(kind)
        except TypeError as error:
            raise TypeError(f"{decorator} handler {name}: parameter {parameter.name} of the route: {error}") from None
        return taking(Source.ROUTE, kind)
    source = Source.BODY if is_member else argument_source(kind)
    if source in (Source.RECEIVING, Source.TYPED_CHANNEL, Source.CHANNEL) and decorator != "request_channel":
        raise TypeError(f"{decorator} handler {name}: parameter {parameter.name} takes a channel")
    if source is Source.OUTGOING and decorator not in STREAMS:
        raise TypeError(f"{decorator} handler {name}: parameter {parameter.name} takes the items of a stream")
    if source is Source.RECEIVING:
        return taking(source, *typing.get_args(kind) or (Any,))
    if source is Source.TYPED_CHANNEL:
        return taking(source, *typing.get_args(kind) or (Any, Any))
    return taking(source, kind)


def _unsaid(
    decorator: str,
    shape: str,
    parameters: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    named: Sequence[str],
) -> dict[str, Parameter]:
    """Return the parameter without a type that takes the channel, or the sending side, as in a handler of bytes.

    ``named`` are parameters of the route, and members of the data.
    """
    source = Source.CHANNEL if decorator == "request_channel" else Source.OUTGOING
    taken = {argument_source(kind) for name, kind in hints.items() if name not in named}
    is_needed = source is Source.CHANNEL or (decorator in STREAMS and shape == "async function")
    if not is_needed or taken & {source, Source.RECEIVING, Source.TYPED_CHANNEL}:
        return {}
    unsaid = [
        each
        for each in parameters
        if hints[each.name] in (ABSENT, Any) and each.default is ABSENT and each.name not in named
    ]
    if not unsaid:
        return {}
    found = unsaid[0 if source is Source.CHANNEL else -1]
    return {found.name: Parameter(found.name, source, positional=found.kind is found.POSITIONAL_ONLY)}


def _body_of(name: str, bodies: Sequence[Parameter]) -> tuple[Any, tuple[str, ...]]:
    """Return the type of the data, and the names of its members if it is an object of several parameters."""
    if not bodies:
        return ABSENT, ()
    if len(bodies) == 1:
        return bodies[0].kind, ()
    members = {each.name: each.kind if each.required else NotRequired[each.kind] for each in bodies}
    made: Any = typing.TypedDict  # made of names that are known only here
    return made(name.rpartition(".")[2], members), tuple(members)


def _is_body(function: Function, taken: Sequence[Parameter], members: Sequence[str]) -> bool:
    if len(taken) != 1 or members or taken[0].source is not Source.BODY or not taken[0].required:
        return False
    # A contract names its parameters, and an implementation may order its own in another way.
    signature = _signature(function)
    first = next(iter(signature.parameters.values()), None) if signature is not None else None
    return first is not None and first.name == taken[0].name and first.kind is not first.KEYWORD_ONLY


def _result(decorator: str, name: str, shape: str, reply: Any) -> tuple[bool, Any]:
    """Return whether a handler yields, and the type of its answer or of each item."""
    origin = typing.get_origin(reply) or reply
    iterates = shape == "async generator" or (isinstance(origin, type) and origin in ITERATORS)
    if decorator in UNARY:
        if iterates:
            raise TypeError(f"{decorator} takes one answer; {name} yields items: that is request_stream")
        if decorator == "fire_and_forget":
            return False, type(None)  # nothing is sent, whatever is returned
        return False, item_type(reply) if isinstance(origin, type) and origin in AWAITABLES else reply
    if not iterates or (decorator in STREAMS and shape == "async function"):
        return False, ABSENT
    return True, item_type(reply)


def _kind(decorator: str, name: str, shape: str, parameters: Sequence[Parameter], generates: bool) -> Kind:
    """Return how the handler is called. Raise ``TypeError`` for a function of the wrong kind."""
    sources = {each.source for each in parameters}
    if decorator == "request_channel":
        if not sources & {Source.RECEIVING, Source.TYPED_CHANNEL, Source.CHANNEL}:
            raise TypeError(f"{decorator} takes a parameter of Receiving, TypedChannel or Channel; {name} has none")
        if shape == "plain function" and not generates:
            raise TypeError(f"{decorator} takes an async function or an async generator; {name} is a plain function")
        return Kind.ASYNC
    if decorator in STREAMS:
        if generates:
            return Kind.GENERATOR
        if shape == "async function" and Source.OUTGOING in sources:
            return Kind.PUSH
        found = f"a{'n' if shape[0] == 'a' else ''} {shape}"
        raise TypeError(
            f"{decorator} takes an async generator, or an async function with an Outgoing; {name} is {found}"
        )
    return Kind.ASYNC if shape == "async function" else Kind.INLINE
