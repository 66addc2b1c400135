"""Contracts: classes whose methods are routes, implemented by a server and called by its clients."""

from __future__ import annotations

import enum
import inspect
import typing
import weakref
from abc import ABCMeta
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from datetime import date, time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import attrs

from rsocket_trio.connection.typed_streams import Receiving, Stream, TypedChannel
from rsocket_trio.forms import Handler, own_signature, shape_of
from rsocket_trio.metadata.composite import entries_of_pairs
from rsocket_trio.payload import Payload
from rsocket_trio.services.codec_choice import CodecChoices
from rsocket_trio.services.payload_types import Encode, reader_of, text_type
from rsocket_trio.services.route_patterns import CATCH_ALL, MethodRoute, RoutePattern, parse
from rsocket_trio.services.typed_handlers import (
    ABSENT,
    Source,
    argument_source,
    item_type,
    read,
    typed_signature,
)
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.connection.hooks import Contract, Exactly, ServiceT
    from rsocket_trio.metadata.authentication import Auth
    from rsocket_trio.metadata.composite import MetadataPair

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Received = TypeVar("Received")
Sent = TypeVar("Sent")
AsyncMethod = TypeVar("AsyncMethod", bound=Callable[..., Awaitable[Any]])

_routes: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
"""The route that each contract begins with."""
_DECLARED = "_rsocket_method"
"""The attribute of a method that a decorator below marked."""
_TYPED = "_rsocket_signature"
"""The attribute of a method that has its signature with types, if its contract was made inside of a function."""
_REMOTE = "_rsocket_remote"
"""The attribute of a contract that has the class of its remote objects: its subclass, so a table would keep both."""


# Not ``__init_subclass__``: the type checker would ask implementations for it.
if TYPE_CHECKING:
    _ProtocolMeta = ABCMeta
else:
    _ProtocolMeta = type(Protocol)


class ServiceMeta(_ProtocolMeta):
    """The class of contracts: it takes the ``route`` of a class statement."""

    if TYPE_CHECKING:

        def _is_contract_of(cls: type[T]) -> Exactly[T]: ...  # noqa: N805 - this is a metaclass

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], route: str | None = None, **keywords: Any
    ) -> Any:
        if bases and bases != (Protocol,) and Service in bases:
            _check_decorated(name, namespace)
        made = super().__new__(cls, name, bases, namespace, **keywords)
        if route is not None:
            _routes[made] = route
        for function in namespace.values():
            if hasattr(function, _DECLARED) and "<locals>" in function.__qualname__:
                _note_local_types(function, namespace)
        return made

    def __init__(
        self, name: str, bases: tuple[type, ...], namespace: dict[str, Any], route: str | None = None, **keywords: Any
    ) -> None:
        super().__init__(name, bases, namespace, **keywords)


def _check_decorated(name: str, namespace: dict[str, Any]) -> None:
    """Raise ``TypeError`` for a public method in the body of a contract that is not decorated as a request."""
    for method, function in namespace.items():
        if inspect.isfunction(function) and not method.startswith("_") and not hasattr(function, _DECLARED):
            raise TypeError(
                f"{name}.{method} is no request: decorate it with request_response, request_stream, request_channel or "
                f"fire_and_forget, or call it _{method} if it is a helper of both ends"
            )


def _note_local_types(function: Any, names: dict[str, Any]) -> None:
    """Look for the types of a method while the local names around its class are there."""
    try:
        setattr(function, _TYPED, typed_signature(function, names))
    except TypeError:
        pass  # types that come later are looked for with the first use


class Service(Protocol, metaclass=ServiceMeta):
    """A contract: a class of methods that are decorated as requests, for the server and for its clients.

    ``class Orders(Service, route="orders")`` begins the route of each method with ``orders.``. For type checkers that
    ask for the bodies of methods, write ``class Orders(Service, Protocol, route="orders")``. An implementation that
    inherits from the contract is checked against it, methods that it lacks included.

    Each public function in the body of a contract, a class that names ``Service`` itself among its bases, is decorated:
    ``TypeError`` for one that is not. Names with an underscore, properties, static and class methods are its own.
    """


@value
class Declared:
    """The request that a method is declared as: ``interaction`` is the decorator's name, ``route`` its argument."""

    interaction: str
    route: str | None


class StreamDecorator(Protocol):
    """The decorator that ``request_stream`` returns for a route."""

    def __call__(
        self, function: Callable[Concatenate[S, P], AsyncIterator[T] | Stream[T]], /
    ) -> Callable[Concatenate[S, P], Stream[T]]: ...


class ChannelDecorator(Protocol):
    """The decorator that ``request_channel`` returns for a route."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[S, Receiving[Sent], P], AsyncIterator[Received]], /
    ) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, TypedChannel[Sent, Received], P], Coroutine[Any, Any, None]], /
    ) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, P], TypedChannel[Received, Sent]], /
    ) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...


@overload
def request_response(route: AsyncMethod, /) -> AsyncMethod: ...
@overload
def request_response(route: str | None = None) -> Callable[[AsyncMethod], AsyncMethod]: ...
def request_response(route: Any = None) -> Any:
    """Declare a method of a contract as request/response; its name is its route, unless ``route`` says another."""
    return _declare("request_response", route)


@overload
def fire_and_forget(route: AsyncMethod, /) -> AsyncMethod: ...
@overload
def fire_and_forget(route: str | None = None) -> Callable[[AsyncMethod], AsyncMethod]: ...
def fire_and_forget(route: Any = None) -> Any:
    """Declare a method of a contract as fire-and-forget; its name is its route, unless ``route`` says another."""
    return _declare("fire_and_forget", route)


@overload
def request_stream(
    route: Callable[Concatenate[S, P], AsyncIterator[T] | Stream[T]], /
) -> Callable[Concatenate[S, P], Stream[T]]: ...
@overload
def request_stream(route: str | None = None) -> StreamDecorator: ...
def request_stream(route: Any = None) -> Any:
    """Declare a method of a contract as a stream; its name is its route, unless ``route`` says another.

    For the type checker the method has the client's form, which returns a ``Stream``. An implementation is decorated as
    well, so that it has this form, too.
    """
    return _declare("request_stream", route)


@overload
def request_channel(
    route: Callable[Concatenate[S, Receiving[Sent], P], AsyncIterator[Received]], /
) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...
@overload
def request_channel(
    route: Callable[Concatenate[S, TypedChannel[Sent, Received], P], Coroutine[Any, Any, None]], /
) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...
@overload
def request_channel(
    route: Callable[Concatenate[S, P], TypedChannel[Received, Sent]], /
) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...
@overload
def request_channel(route: str | None = None) -> ChannelDecorator: ...
def request_channel(route: Any = None) -> Any:
    """Declare a method of a contract as a channel; its name is its route, unless ``route`` says another.

    For the type checker the method has the client's form, which returns a ``TypedChannel`` of what it receives and what
    it sends. An implementation is decorated as well, so that it has this form, too.
    """
    return _declare("request_channel", route)


def _declare(interaction: str, route: Any) -> Any:
    def mark(function: Any, said: str | None = None) -> Any:
        if not inspect.isfunction(function):
            raise TypeError(f"{interaction} decorates a method of a contract, not {type(function).__name__}")
        setattr(function, _DECLARED, Declared(interaction, said))
        return function

    if route is None or isinstance(route, str):
        return lambda function: mark(function, route)
    return mark(route)


# What a contract says


@attrs.frozen(eq=False)
class Method:
    """One method of a contract.

    ``pattern`` is its whole route. ``signature`` has its parameters without ``self`` and the channel, with types.
    ``received`` is the type of the answer, or of the items that the client gets, and ``sent`` that of the items that it
    sends in a channel; ``ABSENT`` where there is none.
    """

    name: str
    interaction: str
    pattern: RoutePattern
    signature: inspect.Signature
    received: Any
    sent: Any
    function: Any

    @property
    def bodies(self) -> tuple[str, ...]:
        """The names of the parameters that travel as data."""
        return tuple(name for name in self.signature.parameters if name not in self.pattern.parameters)


def methods_of(contract: object) -> tuple[Method, ...]:
    """Return the methods of a contract. Raise ``TypeError`` for a class without any, and for types that don't fit."""
    if not isinstance(contract, type):
        raise TypeError(f"a contract is a class, not {type(contract).__name__}")
    prefix = next((_routes[each] for each in contract.__mro__ if each in _routes), "")
    found: dict[str, Method] = {}
    for each in contract.__mro__:
        for name, function in vars(each).items():
            declared = getattr(function, _DECLARED, None)
            if isinstance(declared, Declared) and name not in found:
                found[name] = _method(contract, name, function, declared, prefix)
    if not found:
        raise TypeError(f"{contract.__qualname__} has no method that is decorated as a request: no contract")
    return tuple(found.values())


def _method(contract: type, name: str, function: Any, declared: Declared, prefix: str) -> Method:
    where = f"{contract.__qualname__}.{name}"
    names = {known: its for each in reversed(contract.__mro__) for known, its in vars(each).items()}
    signature = getattr(function, _TYPED, None) or typed_signature(function, names)
    assert signature is not None
    parameters = list(signature.parameters.values())[1:]  # without self
    reply, sent = signature.return_annotation, ABSENT
    if declared.interaction == "request_channel":
        channels = [each for each in parameters if argument_source(each.annotation) in CHANNELS]
        if channels:
            parameters.remove(channels[0])
            given = typing.get_args(channels[0].annotation) or (Any, Any)
            sent = given[0]
            received = given[1] if len(given) > 1 else item_type(reply)
        elif (typing.get_origin(reply) or reply) is TypedChannel:
            received, sent = typing.get_args(reply) or (Any, Any)
        else:
            raise TypeError(f"{where} is a channel: it takes Receiving or TypedChannel, or returns TypedChannel")
    else:
        received = item_type(reply)
        if declared.interaction == "request_stream" and received is reply:
            raise TypeError(f"{where} is a stream: it returns Stream or AsyncIterator, not {reply!r}")
    wrong = next((each for each in parameters if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)), None)
    if wrong is not None:
        raise TypeError(f"{where}: *{wrong.name} has no type to decode")
    pattern = parse(".".join(part for part in (prefix, name if declared.route is None else declared.route) if part))
    if pattern.catches_all:
        raise ValueError(f"{where}: a contract has no route '{CATCH_ALL}', which stands for any number of routes")
    unknown = [each for each in pattern.parameters if each not in {one.name for one in parameters}]
    if unknown:
        raise TypeError(f"{where}: no parameter {unknown[0]}, which the route '{pattern.text}' names")
    if len(parameters) > len(pattern.parameters) + 1:
        parameters = [each if each.name in pattern.parameters else _member(where, each) for each in parameters]
    return Method(
        name, declared.interaction, pattern, signature.replace(parameters=parameters), received, sent, function
    )


def _member(where: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter that travels beside others as the member of an object."""
    kind = Any if parameter.annotation is ABSENT else parameter.annotation
    if kind is not Any and argument_source(kind) is Source.PAYLOAD:
        raise TypeError(f"{where}: parameter {parameter.name} takes the whole payload, and there are others")
    return parameter.replace(annotation=kind)


CHANNELS = (Source.RECEIVING, Source.TYPED_CHANNEL)


# The server's side


def implemented(contract: object, implementation: object, codecs: CodecChoices) -> list[tuple[Method, Handler]]:
    """Return the handlers of ``implementation``, an object with the methods of ``contract``, by method.

    ``codecs`` are those of the responder. Raise ``TypeError``, which names them, for methods that are missing or do not
    fit.
    """
    kind = implementation if isinstance(implementation, type) else type(implementation)
    missing, found = [], []
    for method in methods_of(contract):
        function = getattr(implementation, method.name, None)
        if function is None or getattr(kind, method.name, None) is method.function:
            missing.append(method.name)
            continue
        where, said = f"{kind.__qualname__}.{method.name}", getattr(contract, "__qualname__", "")
        if not callable(function):
            raise TypeError(f"{where} is no method")
        try:
            positional, keywords = _taken(method, function)
            inspect.signature(function).bind(*positional, **dict.fromkeys(keywords))
        except TypeError as error:
            raise TypeError(f"{where} does not fit {said}: {error}") from None
        handler = read(
            method.interaction, function, method.pattern.parameters, codecs, contract=_served(method, function)
        )
        if handler is None:
            raise TypeError(f"{where} can't serve {method.interaction}: it is a {shape_of(function)}")
        found.append((method, handler))
    if missing:
        raise TypeError(f"{kind.__qualname__} lacks {', '.join(missing)} of {getattr(contract, '__qualname__', '')}")
    return found


def _channel_parameter(method: Method, function: Any) -> inspect.Parameter | None:
    """Return the parameter of an implementation that takes the channel."""
    if method.interaction != "request_channel":
        return None
    parameters: list[inspect.Parameter] = []
    try:
        signature = typed_signature(function)
        parameters = [] if signature is None else list(signature.parameters.values())
    except TypeError:
        # Of types that are local names elsewhere: the contract says them.
        parameters = [each.replace(annotation=ABSENT) for each in own_signature(function).parameters.values()]
    for each in parameters:
        if argument_source(each.annotation) in (*CHANNELS, Source.CHANNEL):
            return each
    return next((each for each in parameters if each.name not in method.signature.parameters), None)


def _taken(method: Method, function: Any) -> tuple[list[str], list[str]]:
    """Return the names of the arguments that an implementation is given by position, and by name."""
    channel = _channel_parameter(method, function)
    kinds = {each.name: each.kind for each in method.signature.parameters.values()}
    positional = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
    keywords = [name for name in kinds if name not in positional]
    return positional, [*keywords, *([] if channel is None else [channel.name])]


def _served(method: Method, function: Any) -> inspect.Signature:
    """Return the signature of an implementation, with the types of its contract."""
    own = own_signature(function).parameters
    parameters = [_by_name(each, own.get(each.name)) for each in method.signature.parameters.values()]
    signature = method.signature.replace(parameters=parameters)
    if method.interaction == "request_response" or method.interaction == "fire_and_forget":
        return signature.replace(return_annotation=method.received)
    items = _of(AsyncIterator, method.received)
    if method.interaction == "request_stream":
        return signature.replace(return_annotation=items)
    channel = _channel_parameter(method, function)
    shape = shape_of(function)
    if channel is not None:
        yields = shape == "async generator"
        kind = channel.annotation
        if kind is ABSENT:
            kind = _of(Receiving, method.sent) if yields else _of(TypedChannel, method.sent, method.received)
        by_name = inspect.Parameter(channel.name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
        parameters.append(by_name)
    # An async function sends, and returns nothing.
    return inspect.Signature(parameters, return_annotation=None if shape == "async function" else items)


def _by_name(parameter: inspect.Parameter, own: inspect.Parameter | None) -> inspect.Parameter:
    """Return a parameter of a contract as its implementation is given it: ``own`` is the implementation's."""
    default = parameter.default
    if own is not None and own.default is not ABSENT:
        default = own.default
    elif default is Ellipsis:
        default = ABSENT  # a protocol says by it that there is one
    if parameter.kind is parameter.POSITIONAL_ONLY:
        return parameter.replace(default=default)
    return parameter.replace(default=default, kind=parameter.KEYWORD_ONLY)


def _of(kind: Any, *arguments: Any) -> Any:
    """Return a generic type of arguments that are known only here."""
    return kind[arguments if len(arguments) > 1 else arguments[0]]


# The client's side


def remote_of(
    contract: Contract[ServiceT], requester: object, auth: Auth | None, metadata: Iterable[MetadataPair]
) -> ServiceT:
    """Return an object with the methods of ``contract``, which makes each call a request of ``requester``.

    ``auth`` are credentials for each of its requests, ``metadata`` are entries of each.
    """
    pairs = tuple((entry.mime, entry.content) for entry in entries_of_pairs(metadata))
    if not isinstance(contract, type):
        raise TypeError(f"a contract is a class, not {type(contract).__name__}")
    made = vars(contract).get(_REMOTE)
    if made is None:
        methods: dict[str, Any] = {method.name: _caller(method) for method in methods_of(contract)}
        methods["__repr__"] = lambda self: f"<remote {contract.__qualname__} of {self._rsocket_requester!r}>"
        methods["__init__"] = object.__init__
        made = type(f"Remote{contract.__name__}", (contract,), methods)
        setattr(contract, _REMOTE, made)
    found: Any = made()
    found._rsocket_requester = requester
    found._rsocket_auth = auth
    found._rsocket_metadata = pairs
    remote: ServiceT = found
    return remote


def _caller(method: Method) -> Callable[..., Any]:
    """Return the function that makes a call of a method a request."""
    prepare, received = _Arguments(method), method.received
    if method.interaction == "request_response":
        nothing = received is type(None)
        kind = Payload if nothing or received is ABSENT else received

        async def respond(self: Any, *args: Any, **keywords: Any) -> Any:
            route, payload = prepare(args, keywords)
            answer = await self._rsocket_requester.request_response(
                payload, route=route, reply=kind, auth=self._rsocket_auth, metadata=self._rsocket_metadata
            )
            return None if nothing else answer

        return _named(respond, method)
    if method.interaction == "fire_and_forget":

        async def forget(self: Any, *args: Any, **keywords: Any) -> None:
            route, payload = prepare(args, keywords)
            await self._rsocket_requester.fire_and_forget(
                payload, route=route, auth=self._rsocket_auth, metadata=self._rsocket_metadata
            )

        return _named(forget, method)
    name = method.interaction

    def open_stream(self: Any, *args: Any, **keywords: Any) -> Any:
        route, payload = prepare(args, keywords)
        request = getattr(self._rsocket_requester, name)
        stream = request(payload, route=route, items=received, auth=self._rsocket_auth, metadata=self._rsocket_metadata)
        if isinstance(stream, TypedChannel):
            stream._sends(method.sent)
        return stream

    return _named(open_stream, method)


def _named(function: Callable[..., Any], method: Method) -> Callable[..., Any]:
    function.__name__, function.__qualname__ = method.name, method.function.__qualname__
    function.__doc__ = method.function.__doc__
    return function


class _Arguments:
    """Turns the arguments of a method into the route and the payload of its request."""

    __slots__ = ("_bodies", "_is_data_alone", "_kind", "_literal", "_pattern", "_signature")

    def __init__(self, method: Method) -> None:
        self._pattern = method.pattern
        literal = method.pattern.literal
        self._literal = None if literal is None else MethodRoute(literal, method.pattern.text)
        self._signature = method.signature
        self._bodies = method.bodies
        self._kind = method.signature.parameters[self._bodies[0]].annotation if len(self._bodies) == 1 else ABSENT
        parameters = list(method.signature.parameters.values())
        # Then there is nothing to bind, which would take longer than all the rest.
        self._is_data_alone = (
            len(parameters) == len(self._bodies) == 1
            and parameters[0].kind is not parameters[0].KEYWORD_ONLY
            and self._literal is not None
        )

    def __call__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[str, object]:
        """Return the route and what is sent. Raise ``TypeError`` for arguments that do not fit the method."""
        route = self._literal
        if self._is_data_alone and route is not None and len(args) == 1 and not keywords:
            return route, self._data(args[0])
        given = self._signature.bind(*args, **keywords).arguments
        if route is None:
            for name in self._pattern.parameters:
                if name not in given:
                    given[name] = self._signature.parameters[name].default
            text = self._pattern.format(**{name: as_text(given[name]) for name in self._pattern.parameters})
            route = MethodRoute(text, self._pattern.text)
        if not self._bodies:
            return route, b""
        if len(self._bodies) > 1:
            return route, Encode({name: given[name] for name in self._bodies if name in given})
        name = self._bodies[0]
        return route, self._data(given[name]) if name in given else b""

    def _data(self, argument: Any) -> object:
        """Return the argument that is the whole data, as its type says that it is sent."""
        kind = self._kind
        if argument_source(kind) is not Source.BODY:
            return argument
        if reader_of(kind) is None:
            return Encode(argument)
        # An enum of texts is sent as its text where the type is ``str``.
        return argument.value if isinstance(argument, enum.Enum) and text_type(kind) is not None else argument


def as_text(argument: object) -> str:
    """Return an argument as it stands in a route. Raise ``TypeError`` for what has no such form."""
    if isinstance(argument, str):
        return str(argument.value) if isinstance(argument, enum.Enum) else argument
    if isinstance(argument, enum.Enum):
        return as_text(argument.value)
    if isinstance(argument, bool):
        return "true" if argument else "false"
    if isinstance(argument, date | time):
        return argument.isoformat()
    if argument is None or isinstance(argument, bytes | dict | list | tuple | set):
        raise TypeError(f"{type(argument).__name__} can't be a parameter of a route")
    return str(argument)
