"""The forms of functions that each decorator takes, and how each is called.

A form is read from the function that is registered, not from one that it wraps: what ``functools.wraps`` copies to a
wrapper says nothing of the wrapper. Only what passes everything on as it is, a partial, a static method or a cache, is
looked through.
"""

from __future__ import annotations

import enum
import functools
import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.codecs import Codec
    from rsocket_trio.metadata.composite import Entry
    from rsocket_trio.metadata.routes import RequestMetadata
    from rsocket_trio.payload import Payload
    from rsocket_trio.terms import Setup

Function: TypeAlias = Callable[..., Any]
Requirement: TypeAlias = Callable[[Any, Any], Any]
"""A plain or async function of the user and the ``Call`` that returns whether the user may make the call."""


class Items(Protocol):
    """An async generator, as far as it is driven."""

    def __anext__(self) -> Awaitable[Any]:
        """Return the next item."""
        ...

    def athrow(self, error: BaseException, /) -> Awaitable[Any]:
        """Raise an error at the ``yield``, and return the next item."""
        ...


class Kind(enum.Enum):
    """The ways to call a handler."""

    INLINE = "plain function"
    ASYNC = "async function"
    GENERATOR = "async generator"
    PUSH = "async function with an outgoing side"


class TypedForm(Protocol):
    """The form of a handler by its annotations, which decodes requests and encodes answers for it."""

    def serving(self, call: Any, kind: Kind, request: Payload, metadata: RequestMetadata) -> Function:
        """Return the function of bytes that serves a ``Call``, in the form of this kind."""
        ...


class CodecChoice(Protocol):
    """The codecs of a responder, and the choice among them."""

    def of_call(self, request: Payload, entries: Sequence[Entry], setup: Setup) -> tuple[Codec, Codec]:
        """Return the codecs of a request, whose MIME entries are ``entries``, and of its answers."""
        ...


class RouteMatcher(Protocol):
    """A route with parameters, or a catch-all."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in their order."""
        ...

    @property
    def catches_all(self) -> bool:
        """Return whether it is a catch-all."""
        ...

    def match(self, route: str) -> dict[str, str] | None:
        """Return the values of the parameters in ``route``, that of a request, or ``None`` if it does not match."""
        ...


@value
class Handler:
    """A registered function, and what for: ``interaction`` is the decorator's name, ``route`` that of requests, and
    ``pattern_text`` the route as it was registered: ``""`` without one, ``None`` for a handler of no requests.

    ``credit`` is what a channel's handler grants its requester. ``origin`` is the function that was registered, where
    ``function`` stands for it. ``call`` is the call that ``function`` serves, where it is of one call; with ``counts``
    its payloads are counted. ``typed`` says what annotations ask for, ``pattern`` the parameters of the route,
    ``requires`` who may call, ``around`` are interceptors of this handler alone, ``codecs`` returns those for the
    objects that ``function`` gives. ``plain`` says that nothing has to be done round the function. ``relay``, of a
    handler that looks at nothing of its calls, hands a request on without a task: it takes the engine, the stream and
    the request, and returns whether it did.
    """

    function: Function
    kind: Kind
    credit: int = 256
    refill: bool = True
    interaction: str = ""
    route: str | None = None
    origin: Function | None = None
    call: Any = None
    counts: bool = False
    typed: TypedForm | None = None
    pattern: RouteMatcher | None = None
    requires: Requirement | None = None
    relay: Callable[..., bool] | None = None
    around: tuple[Function, ...] = ()
    plain: bool = True
    codecs: Callable[[], CodecChoice] | None = None
    pattern_text: str | None = None

    @property
    def registered(self) -> Function:
        """The application's function."""
        return self.function if self.origin is None else self.origin


def _async_or_plain(arguments: str) -> dict[tuple[str, str], Kind]:
    return {("async function", arguments): Kind.ASYNC, ("plain function", arguments): Kind.INLINE}


ITEMS = {("async generator", "(request)"): Kind.GENERATOR, ("async function", "(request, out)"): Kind.PUSH}
# What each decorator takes: the kinds by the look of the function.
FORMS: dict[str, dict[tuple[str, str], Kind]] = {
    "request_response": _async_or_plain("(request)"),
    "fire_and_forget": _async_or_plain("(request)"),
    "request_stream": ITEMS,
    "request_subscription": ITEMS,
    "request_channel": {("async function", "(channel)"): Kind.ASYNC},
    "metadata_push": _async_or_plain("(metadata)"),
    "setup": _async_or_plain("(setup, connection)"),
    "lease": {("async generator", "(setup)"): Kind.GENERATOR},
    "extension": {("plain function", "(stream_id, body)"): Kind.INLINE},
    "extension_entry": {("plain function", "(point, content)"): Kind.INLINE},
    "on_error": {("plain function", "(error, call)"): Kind.INLINE},
    "authenticate": _async_or_plain("(credentials, where)"),
    "around": {
        ("async generator", "(call)"): Kind.GENERATOR,
        ("plain function", "(call)"): Kind.INLINE,
        ("class", "(call)"): Kind.INLINE,
    },
}

# What a plain function is annotated to return, to serve where only others do.
STAND_INS = {
    "async generator": ("AsyncIterator", "AsyncGenerator", "AsyncIterable", "AsyncGeneratorType"),
    "async function": ("Awaitable", "Coroutine", "CoroutineType"),
}


def checked(decorator: str, function: object) -> Handler:
    """Return the function with its kind. Raise ``TypeError`` naming both if the decorator does not take that kind."""
    if not callable(function):
        raise TypeError(f"{decorator} decorates a function, not {type(function).__name__}")
    shape, forms = shape_of(function), FORMS[decorator]
    for (name, arguments), kind in forms.items():
        if shape == name and takes(function, arguments.count(",") + 1):
            return Handler(function, kind, interaction=decorator)
    if shape == "plain function":
        stand_in = _stand_in(decorator, function)
        if stand_in is not None:
            return stand_in
    allowed = " or ".join(f"{with_article(name)} {arguments}" for name, arguments in forms)
    given = f"{function_name(function)}{signature_text(function)} is {with_article(shape)}"
    raise TypeError(f"{decorator} takes {allowed}; {given}")


def with_article(shape: str) -> str:
    """Return what a function looks like behind its article."""
    return f"a{'n' if shape[0] == 'a' else ''} {shape}"


# Plain functions that return what an async one would


def _stand_in(decorator: str, function: Function) -> Handler | None:
    """Return the handler for a plain function that returns a coroutine or an async iterable; ``None`` if it may not.

    It may if it is annotated so, or if its looks can't tell: a lambda, and a wrapper, made with ``functools.wraps`` or
    of any arguments. What it returns is judged when it is called.
    """
    forms = {
        name: (arguments.count(",") + 1, kind)
        for (name, arguments), kind in FORMS[decorator].items()
        if name in STAND_INS and takes(function, arguments.count(",") + 1)
    }
    returns = _returns(function)
    names = [name for name in forms if returns in STAND_INS[name]]
    if not names and forms and _may_be_anything(function):
        # A wrapper of any arguments may stand in for several: then what it wraps is all that is left to tell.
        inner = inspect.unwrap(function)
        names = [name for name in forms if name == shape_of(inner) and takes(inner, forms[name][0])] or [*forms]
    if not names:
        return None
    made = _generating if names[0] == "async generator" else _awaiting
    return Handler(made(decorator, function), forms[names[0]][1], interaction=decorator, origin=function)


def _generating(decorator: str, function: Function) -> Function:
    def generate(*args: object) -> AsyncGenerator[Any, None]:
        result: Any = function(*args)
        if isinstance(result, AsyncGenerator):
            return result
        if hasattr(result, "__aiter__"):
            return generated(result)
        raise unfit(decorator, function, result, "an async generator or another async iterable")

    return generate


async def generated(items: AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    """Yield the items of an async iterable."""
    async for item in items:
        yield item


def _awaiting(decorator: str, function: Function) -> Function:
    async def call(*args: object) -> Any:
        result = function(*args)
        if not inspect.isawaitable(result):
            raise unfit(decorator, function, result, "an awaitable")
        return await result

    return call


async def drive(items: Items, send: Callable[[Any], Awaitable[None]]) -> None:
    """Send the items that a handler yields; the error or cancellation of a send is raised at the yield.

    So ``yield x`` means ``await out.send(x)``, and scopes and nurseries around a yield work.
    """
    try:
        item = await items.__anext__()
        while True:
            try:
                await send(item)
            except BaseException as error:
                item = await items.athrow(error)
            else:
                item = await items.__anext__()
    except StopAsyncIteration:
        return


def unfit(decorator: str, function: Function, result: object, wanted: str) -> TypeError:
    """Return the error for a function whose result shows that it is of the wrong kind. Close a coroutine."""
    if inspect.iscoroutine(result):
        result.close()
    name = type(result).__name__
    return TypeError(f"{decorator} handler {function_name(function)} returned {name}, not {wanted}")


def _may_be_anything(function: Function) -> bool:
    """Return whether the result of a plain function is unknown: a lambda, or a wrapper with copied annotations."""
    function = bare(function)
    if hasattr(function, "__wrapped__") or getattr(function, "__name__", "") == "<lambda>":
        return True
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return False
    return _returns(function) == "" and any(one.kind is one.VAR_POSITIONAL for one in parameters)


def _returns(function: Function) -> str:
    """The name of the class that a function is annotated to return, without its module and parameters; or nothing."""
    said = getattr(bare(function), "__annotations__", {}).get("return", "")
    if not isinstance(said, str):
        said = getattr(typing.get_origin(said) or said, "__name__", "")
    return str(said).partition("[")[0].rpartition(".")[2].strip()


# What a function looks like


def bare(function: Any) -> Any:
    """Return the function inside of what passes arguments and result on as they are."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, staticmethod):
            function = function.__func__
        elif not inspect.isroutine(function) and not inspect.isclass(function):
            function = function.__call__
            if not inspect.ismethod(function):
                return function
        else:
            return function


def shape_of(function: Function) -> str:
    """Return what a function looks like: ``"async generator"``, ``"async function"``, ``"plain function"``..."""
    function = bare(function)
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.iscoroutinefunction(function):
        return "async function"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "class" if inspect.isclass(function) else "plain function"


_CACHE = type(functools.cache(shape_of))


def takes(function: Function, arguments: int) -> bool:
    """Return whether a function can be called with so many arguments by position."""
    try:
        signature = own_signature(function)
    except (TypeError, ValueError):
        # Some built-in functions, and mocks in some versions of Python, have no signature: their call will tell.
        return True
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def own_signature(function: Function) -> inspect.Signature:
    """Return the signature of the function itself, whatever it wraps."""
    while isinstance(function, staticmethod | _CACHE):
        function = function.__wrapped__
    return inspect.signature(function, follow_wrapped=False)


def signature_text(function: Function) -> str:
    """Return the names of the parameters of a function in parentheses."""
    try:
        return f"({', '.join(own_signature(function).parameters)})"
    except (TypeError, ValueError):
        return "(...)"


def function_name(function: object) -> str:
    """Return the name of a function in errors and the log; for an object that can be called, that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def name_of_function(handler: Handler) -> str:
    """Return the name of a handler's function in errors."""
    return function_name(handler.registered)
