"""Contracts: classes whose methods are routes, implemented by a server and called by its clients."""

from __future__ import annotations

import inspect
import typing
from abc import ABCMeta
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import date, time
from enum import Enum
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import attrs

from rsocket_trio.connection.typed_streams import Receiving, Stream, TypedChannel
from rsocket_trio.forms import Handler, stands_for
from rsocket_trio.metadata.composite import MetadataPair, entries_of_pairs
from rsocket_trio.metadata.route_patterns import CATCH_ALL, MethodRoute, RoutePattern, parse
from rsocket_trio.payload import Payload
from rsocket_trio.services.codec_choice import CodecChoices, Encode, reader_of
from rsocket_trio.services.typed_handlers import (
    ABSENT,
    CHANNELS,
    KEYWORD_ONLY,
    POSITIONAL_ONLY,
    TYPED_CHANNELS,
    ArgumentSource,
    Parameter,
    SignaturePlan,
    binder,
    item_type,
    read_parameters,
    signature_of,
    source_of,
    typed_handler,
    typed_signature,
)
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.connection.hooks import Contract, Exactly, ServiceT
    from rsocket_trio.metadata.authentication import Auth

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Received = TypeVar("Received")
Sent = TypeVar("Sent")
AsyncMethod = TypeVar("AsyncMethod", bound=Callable[..., Awaitable[object]])

_ROUTE = "_rsocket_route"
"""The attribute of a contract that has the beginning of its routes."""
_DECLARED = "_rsocket_method"
"""The attribute of a method that a decorator below marked."""
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
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, object],
        route: str | None = None,
        **keywords: object,
    ) -> ServiceMeta:
        if bases and bases != (Protocol,) and Service in bases:
            for method, function in namespace.items():
                if inspect.isfunction(function) and not method.startswith("_") and not hasattr(function, _DECLARED):
                    raise TypeError(
                        f"{name}.{method} is no request: decorate it with request_response, request_stream, "
                        f"request_channel or fire_and_forget, or call it _{method} if it is a helper of both ends"
                    )
        made = super().__new__(cls, name, bases, namespace, **keywords)
        if route is not None:
            setattr(made, _ROUTE, route)
        return made


class Service(Protocol, metaclass=ServiceMeta):
    """A contract: a class of methods that are decorated as requests, for the server and for its clients.

    ``class Orders(Service, route="orders")`` begins the route of each method with ``orders.``. For type checkers that
    ask for the bodies of methods, write ``class Orders(Service, Protocol, route="orders")``. An implementation that
    inherits from the contract is checked against it, methods that it lacks included.

    Each public function in the body of a contract, a class that names ``Service`` itself among its bases, is decorated:
    ``TypeError`` for one that is not. Names with an underscore, properties, static and class methods are its own.
    """


class MethodDecorator(Protocol):
    """The type of ``request_response`` and ``fire_and_forget``."""

    @overload
    def __call__(self, method: AsyncMethod, /) -> AsyncMethod: ...
    @overload
    def __call__(self, route: str | None = None) -> MethodDecorator: ...


class StreamDecorator(Protocol):
    """The type of ``request_stream``: for the type checker the method has the client's form, a ``Stream``."""

    @overload
    def __call__(
        self, method: Callable[Concatenate[S, P], AsyncIterator[T] | Stream[T]], /
    ) -> Callable[Concatenate[S, P], Stream[T]]: ...
    @overload
    def __call__(self, route: str | None = None) -> StreamDecorator: ...


class ChannelDecorator(Protocol):
    """The type of ``request_channel``: for the type checker the method has the client's form, a ``TypedChannel`` of
    what it receives and what it sends.
    """

    @overload
    def __call__(
        self, method: Callable[Concatenate[S, Receiving[Sent], P], AsyncIterator[Received]], /
    ) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[S, TypedChannel[Sent, Received], P], Awaitable[None]], /
    ) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[S, P], TypedChannel[Received, Sent]], /
    ) -> Callable[Concatenate[S, P], TypedChannel[Received, Sent]]: ...
    @overload
    def __call__(self, route: str | None = None) -> ChannelDecorator: ...


@value
class Declaration:
    """Declares a method of a contract as a request: ``@request_stream``, or ``@request_stream("route")``.

    The name of the method is its route, unless ``route`` says another. An implementation of a stream or a channel is
    decorated as well, so that it has the client's form, too.
    """

    interaction: str
    route: str | None = None

    def __call__(self, route: object = None) -> Any:
        """Return the function that is decorated, or the decorator with a route."""
        if route is None or isinstance(route, str):
            return Declaration(self.interaction, route)
        if not inspect.isfunction(route):
            raise TypeError(f"{self.interaction} decorates a method of a contract, not {type(route).__name__}")
        setattr(route, _DECLARED, self)
        return route


request_response: MethodDecorator = Declaration("request_response")
fire_and_forget: MethodDecorator = Declaration("fire_and_forget")
request_stream: StreamDecorator = Declaration("request_stream")
request_channel: ChannelDecorator = Declaration("request_channel")


@attrs.frozen(eq=False)
class Method:
    """One method of a contract: its whole route, ``pattern``, and its ``plan``, without ``self`` and the channel."""

    name: str
    pattern: RoutePattern
    plan: SignaturePlan
    function: Callable[..., object]


def methods_of(contract: object) -> tuple[Method, ...]:
    """Return the methods of a contract. Raise ``TypeError`` for a class without any, and for types that don't fit."""
    if not isinstance(contract, type):
        raise TypeError(f"a contract is a class, not {type(contract).__name__}")
    members = [member for parent in reversed(contract.__mro__) for member in vars(parent).items()]
    functions = {name: its for name, its in members if isinstance(getattr(its, _DECLARED, None), Declaration)}
    if not functions:
        raise TypeError(f"{contract.__qualname__} has no method that is decorated as a request: no contract")
    return tuple(_method(contract, name, function, dict(members)) for name, function in functions.items())


def _method(contract: type, name: str, function: Callable[..., object], names: Mapping[str, object]) -> Method:
    declared: Declaration = getattr(function, _DECLARED)
    where, interaction = f"{contract.__qualname__}.{name}", declared.interaction
    signature = typed_signature(function, names)
    assert signature is not None
    parameters = list(signature.parameters.values())[1:]  # without self
    reply = signature.return_annotation
    received, sent = item_type(reply), ABSENT
    if interaction == "request_channel":
        channel = next(
            (parameter for parameter in parameters if source_of(parameter.annotation) in TYPED_CHANNELS), None
        )
        if channel is not None:
            parameters.remove(channel)
            sent, received = (*(typing.get_args(channel.annotation) or (Any, Any)), received)[:2]
        elif (typing.get_origin(reply) or reply) is TypedChannel:
            received, sent = typing.get_args(reply) or (Any, Any)
        else:
            raise TypeError(f"{where} is a channel: it takes Receiving or TypedChannel, or returns TypedChannel")
    elif interaction == "request_stream" and received is reply:
        raise TypeError(f"{where} is a stream: it returns Stream or AsyncIterator, not {reply!r}")
    route = (getattr(contract, _ROUTE, ""), name if declared.route is None else declared.route)
    pattern = parse(".".join(filter(None, route)))
    if pattern.catches_all:
        raise ValueError(f"{where}: a contract has no route '{CATCH_ALL}', which stands for any number of routes")
    if len(parameters) > len(pattern.parameters) + 1:
        for index, parameter in enumerate(parameters):
            kind = Any if parameter.annotation is ABSENT else parameter.annotation
            if parameter.name not in pattern.parameters:
                if kind is not Any and source_of(kind) is ArgumentSource.PAYLOAD:
                    raise TypeError(
                        f"{where}: parameter {parameter.name} takes the whole payload, and there are others"
                    )
                parameters[index] = parameter.replace(annotation=kind)
    taken = read_parameters(interaction, where, parameters, pattern.parameters)
    return Method(name, pattern, SignaturePlan(interaction, name, taken, received, sent), function)


def implemented(contract: object, implementation: object, codecs: CodecChoices) -> list[tuple[Method, Handler]]:
    """Return the handlers of ``implementation``, an object with the methods of ``contract``, by method.

    ``codecs`` are those of the responder. Raise ``TypeError``, which names them, for methods that are missing or do not
    fit.
    """
    kind = implementation if isinstance(implementation, type) else type(implementation)
    title = getattr(contract, "__qualname__", "")
    missing, handlers = [], []
    for method in methods_of(contract):
        function, where = getattr(implementation, method.name, None), f"{kind.__qualname__}.{method.name}"
        if function is None or getattr(kind, method.name, None) is method.function:
            missing.append(method.name)
            continue
        if not callable(function):
            raise TypeError(f"{where} is no method")
        plan = _plan_of(method.plan, function)
        positional = [parameter.name for parameter in plan.parameters if parameter.binding is POSITIONAL_ONLY]
        keywords = {parameter.name: None for parameter in plan.parameters if parameter.binding is not POSITIONAL_ONLY}
        try:
            inspect.signature(function).bind(*positional, **keywords)
        except TypeError as error:
            raise TypeError(f"{where} does not fit {title}: {error}") from None
        handlers.append((method, typed_handler(plan, function, codecs)))
    if missing:
        raise TypeError(f"{kind.__qualname__} lacks {', '.join(missing)} of {title}")
    return handlers


def _plan_of(plan: SignaturePlan, function: Callable[..., object]) -> SignaturePlan:
    """Return the plan of a method as its implementation serves it: with its own defaults, its channel, and by
    name: its order may be another one."""
    signature = signature_of(function)
    own = {} if signature is None else dict(signature.parameters)
    parameters = []
    for parameter in plan.parameters:
        default = own.pop(parameter.name).default if parameter.name in own else ABSENT
        if default is ABSENT and parameter.default is not Ellipsis:  # by which a protocol says only that there is one
            default = parameter.default
        binding = POSITIONAL_ONLY if parameter.binding is POSITIONAL_ONLY else KEYWORD_ONLY
        parameters.append(attrs.evolve(parameter, default=default, binding=binding))
    if plan.interaction == "request_channel" and own:
        # It is the parameter that the contract does not name.
        channel = next(iter(own.values()))
        try:
            annotated = typed_signature(function)
            source = None if annotated is None else source_of(annotated.parameters[channel.name].annotation)
        except TypeError:
            source = None  # of types that are local names elsewhere: the contract has them
        if source not in CHANNELS:
            generates = stands_for(function) == "async generator"
            source = ArgumentSource.RECEIVING if generates else ArgumentSource.TYPED_CHANNEL
        parameters.append(Parameter(channel.name, source, plan.items, plan.reply, ABSENT, channel.kind))
    return SignaturePlan(plan.interaction, plan.name, parameters, plan.reply, plan.items)


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
        methods: dict[str, object] = {method.name: _caller(method) for method in methods_of(contract)}
        methods["__repr__"] = lambda self: f"<remote {contract.__qualname__} of {self._rsocket_requester!r}>"
        methods["__init__"] = object.__init__
        made = type(f"Remote{contract.__name__}", (contract,), methods)
        setattr(contract, _REMOTE, made)
    remote: ServiceT = made()
    vars(remote).update(_rsocket_requester=requester, _rsocket_auth=auth, _rsocket_metadata=pairs)
    return remote


def _caller(method: Method) -> Callable[..., object]:
    plan, pattern = method.plan, method.pattern
    bind = binder(plan.parameters, method.name)
    literal = None if pattern.literal is None else MethodRoute(pattern.literal, pattern.text)
    routed = [parameter for parameter in plan.parameters if parameter.source is ArgumentSource.ROUTE]
    bodies = [parameter for parameter in plan.parameters if parameter.source is not ArgumentSource.ROUTE]
    has_defaults = any(parameter.default is not ABSENT for parameter in bodies)
    is_nothing = plan.interaction == "request_response" and plan.reply is type(None)
    decoded: dict[str, object] = {} if plan.interaction == "fire_and_forget" else {"items": plan.reply}
    if plan.interaction == "request_response":
        decoded = {"reply": Payload if is_nothing or plan.reply is ABSENT else plan.reply}
    whole = bodies[0] if len(bodies) == 1 else None
    encode = Encode if whole is None else _sent_as(whole)

    def call(self: Any, *args: object, **keywords: object) -> object:
        arguments = bind(*args, **keywords)
        route = literal
        if route is None:
            texts = {}
            for parameter in routed:
                argument = arguments.pop(parameter.name)
                texts[parameter.name] = as_text(parameter.default if argument is ABSENT else argument)
            route = MethodRoute(pattern.format(**texts), pattern.text)
        if has_defaults:
            arguments = {name: argument for name, argument in arguments.items() if argument is not ABSENT}
        if whole is not None:
            payload = encode(arguments[whole.name]) if arguments else b""
        else:
            payload = encode(arguments) if bodies else b""
        make = getattr(self._rsocket_requester, plan.interaction)
        request = make(payload, route=route, auth=self._rsocket_auth, metadata=self._rsocket_metadata, **decoded)
        if plan.interaction == "request_channel" and hasattr(request, "_sends"):
            request._sends(plan.items)
        return _without_answer(request) if is_nothing else request

    call.__name__, call.__qualname__ = method.name, method.function.__qualname__
    call.__doc__ = method.function.__doc__
    return call


async def _without_answer(request: Awaitable[object]) -> None:
    await request


def _sent_as(parameter: Parameter) -> Callable[[object], object]:
    """Return the function that makes an argument that is the whole data what is sent, as its type says."""
    if parameter.source is not ArgumentSource.BODY:
        return lambda argument: argument
    if reader_of(parameter.kind) is None:
        return Encode
    # An enum of texts is sent as its text where the type is ``str``.
    return lambda argument: argument.value if isinstance(argument, Enum) else argument


def as_text(argument: object) -> str:
    """Return an argument as it stands in a route. Raise ``TypeError`` for what has no such form."""
    while isinstance(argument, Enum):
        argument = argument.value
    if isinstance(argument, bool):
        return "true" if argument else "false"
    if isinstance(argument, date | time):
        return argument.isoformat()
    if argument is None or isinstance(argument, bytes | dict | list | tuple | set):
        raise TypeError(f"{type(argument).__name__} can't be a parameter of a route")
    return str(argument)
