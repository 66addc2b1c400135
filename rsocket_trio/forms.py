"""The forms of functions that each decorator takes, and how each is called.

A form is read from the function that is registered, not from one that it wraps: what ``functools.wraps`` copies to a
wrapper says nothing of the wrapper. Only what passes everything on as it is, a partial, a static method or a cache, is
looked through, and a plain wrapper where plain functions do not serve.
"""

from __future__ import annotations

import enum
import functools
import inspect
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.codecs import Codec
    from rsocket_trio.metadata.composite import Entry
    from rsocket_trio.metadata.route_patterns import RoutePattern
    from rsocket_trio.metadata.routes import RequestMetadata
    from rsocket_trio.payload import Payload
    from rsocket_trio.terms import Setup

Function: TypeAlias = Callable[..., Any]
Items: TypeAlias = AsyncGenerator[Any, None]
Requirement: TypeAlias = Callable[[Any, Any], object]
"""A plain or async function of the user and the ``Call`` that returns whether the user may make the call."""
TypedForm: TypeAlias = Callable[[Any, "Kind", "Payload", "RequestMetadata"], Function]
"""Returns the function of bytes that serves a ``Call`` by a typed handler, in the form of the kind."""
CodecChoice: TypeAlias = "Callable[[Payload, Sequence[Entry], Setup], tuple[Codec, Codec]]"
"""Returns the codecs of a request, whose MIME entries these are, and of its answers."""


class Kind(enum.Enum):
    """The ways to call a handler."""

    INLINE = "plain function"
    ASYNC = "async function"
    GENERATOR = "async generator"
    PUSH = "async function with an outgoing side"


class CallObserver(Protocol):
    """An object in the place of an interceptor that only hears how calls ended."""

    def call_ended(self, call: Any) -> None:
        """Hear of the end of a ``Call``. What it raises is logged."""


@value
class Handler:
    """A registered function, and what for: ``interaction`` is the decorator's name, ``route`` that of requests, and
    ``pattern_text`` the route as it was registered: ``""`` without one, ``None`` for a handler of no requests.

    ``credit`` is what a channel's handler grants its requester. ``origin`` is the function that was registered, where
    ``function`` stands for it. ``call`` is the call that ``function`` serves, where it is of one call; with ``counts``
    its payloads are counted, and ``observers`` hear of its end. ``typed`` says what annotations ask for, ``pattern``
    the parameters of the route, ``requires`` who may call, ``around`` are interceptors of this handler alone,
    ``codecs`` chooses those for the objects that ``function`` gives. ``plain`` says that nothing has to be done round
    the function. ``relay``, of a handler that looks at nothing of its calls, hands a request on without a task: it
    takes the engine, the stream and the request, and returns whether it did. With ``credentials`` it gets those that
    ``authenticate`` takes, too.
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
    observers: tuple[CallObserver, ...] = ()
    codecs: CodecChoice | None = None
    typed: TypedForm | None = None
    pattern: RoutePattern | None = None
    requires: Requirement | None = None
    relay: Callable[..., bool] | None = None
    credentials: bool = False
    around: tuple[Function | CallObserver, ...] = ()
    plain: bool = True
    pattern_text: str | None = None

    @property
    def registered(self) -> Function:
        """The application's function."""
        return self.function if self.origin is None else self.origin

    @property
    def name(self) -> str:
        """The name of the application's function in errors."""
        return function_name(self.registered)


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
    "call_ended": {("plain function", "(call)"): Kind.INLINE},
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
    for form in dict.fromkeys((shape, stands_for(function))):
        for (name, arguments), kind in forms.items():
            if form == name and takes(function, arguments.count(",") + 1):
                if kind is Kind.GENERATOR and shape == "plain function":
                    return Handler(_generating(decorator, function), kind, interaction=decorator, origin=function)
                return Handler(function, kind, interaction=decorator)
    allowed = " or ".join(f"{with_article(name)} {arguments}" for name, arguments in forms)
    raise TypeError(f"{decorator} takes {allowed}; {function_text(function)} is {with_article(shape)}")


def with_article(shape: str) -> str:
    return f"a{'n' if shape[0].lower() in 'aeiou' else ''} {shape}"


# Plain functions that return what an async one would


def stands_for(function: Function) -> str:
    """Return what a plain function looks like by the result that it is annotated with, or else by what it wraps.

    What it returns is judged when it is called.
    """
    shape = shape_of(function)
    if shape != "plain function":
        return shape
    reply: object = getattr(bare(function), "__annotations__", {}).get("return", "")
    if not isinstance(reply, str):
        reply = getattr(typing.get_origin(reply) or reply, "__name__", "")
    name = str(reply).partition("[")[0].rpartition(".")[2].strip()
    inner = shape_of(inspect.unwrap(bare(function)))
    return next((shape for shape, names in STAND_INS.items() if name in names), inner)


def _generating(decorator: str, function: Function) -> Function:
    def generate(*args: object) -> Items:
        result: object = function(*args)
        if hasattr(result, "__aiter__"):
            return as_items(result)
        raise unfit(decorator, function, result, "an async generator or another async iterable")

    return generate


def as_items(iterable: Any) -> Items:
    async def generate() -> Items:
        async for item in iterable:
            yield item

    return iterable if hasattr(iterable, "athrow") else generate()


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


def unfit(decorator: str, function: Function, result: object, expected: str) -> TypeError:
    """Return the error for a function whose result shows that it is of the wrong kind. Close a coroutine."""
    if inspect.iscoroutine(result):
        result.close()
    name = type(result).__name__
    return TypeError(f"{decorator} handler {function_name(function)} returned {name}, not {expected}")


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


def function_text(function: Function) -> str:
    """Return the name of a function with those of its parameters in parentheses."""
    try:
        return f"{function_name(function)}({', '.join(own_signature(function).parameters)})"
    except (TypeError, ValueError):
        return f"{function_name(function)}(...)"


def function_name(function: object) -> str:
    """Return the name of a function in errors and the log; for an object that can be called, that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__
