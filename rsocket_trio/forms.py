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


class Pattern(Protocol):
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
    objects that ``function`` gives. ``plain`` says that nothing has to be done round the function.
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
    pattern: Pattern | None = None
    requires: Requirement | None = None
    around: tuple[Function, ...] = ()
    plain: bool = True
    codecs: Callable[[], CodecChoice] | None = None
    pattern_text: str | None = None

    @property
    def registered(self) -> Function:
        """The application's function."""
        return self.function if self.origin is None else self.origin


# What each decorator takes: the kinds by their number of arguments.
# fmt: off
FORMS: dict[str, dict[tuple[str, int], Kind]] = {
    "request_response":     {("async function", 1): Kind.ASYNC, ("plain function", 1): Kind.INLINE},
    "fire_and_forget":      {("async function", 1): Kind.ASYNC, ("plain function", 1): Kind.INLINE},
    "request_stream":       {("async generator", 1): Kind.GENERATOR, ("async function", 2): Kind.PUSH},
    "request_subscription": {("async generator", 1): Kind.GENERATOR, ("async function", 2): Kind.PUSH},
    "request_channel":      {("async function", 1): Kind.ASYNC},
    "metadata_push":        {("async function", 1): Kind.ASYNC, ("plain function", 1): Kind.INLINE},
    "setup":                {("async function", 2): Kind.ASYNC, ("plain function", 2): Kind.INLINE},
    "lease":                {("async generator", 1): Kind.GENERATOR},
    "extension":            {("plain function", 2): Kind.INLINE},
    "extension_entry":      {("plain function", 2): Kind.INLINE},
    "on_error":             {("plain function", 2): Kind.INLINE},
    "authenticate":         {("async function", 2): Kind.ASYNC, ("plain function", 2): Kind.INLINE},
    "around":               {("async generator", 1): Kind.GENERATOR, ("plain function", 1): Kind.INLINE,
                             ("class", 1): Kind.INLINE},
}
ARGUMENTS = {
    "request_stream": {1: "(request)", 2: "(request, out)"},
    "request_subscription": {1: "(request)", 2: "(request, out)"},
    "request_channel": {1: "(channel)"},
    "metadata_push": {1: "(metadata)"},
    "setup": {2: "(setup, connection)"},
    "lease": {1: "(setup)"},
    "extension": {2: "(stream_id, body)"},
    "extension_entry": {2: "(point, content)"},
    "on_error": {2: "(error, call)"},
    "authenticate": {2: "(credentials, where)"},
    "around": {1: "(call)"},
}
# fmt: on

# What a plain function may be annotated to return, to serve where only others do.
ITERABLES = ("AsyncIterator", "AsyncGenerator", "AsyncIterable", "AsyncGeneratorType")
AWAITABLES = ("Awaitable", "Coroutine", "CoroutineType")
# The kinds that a plain function can stand in for, by the number of their arguments.
STAND_INS = {
    ("async generator", 1): ITERABLES,
    ("async function", 1): AWAITABLES,
    ("async function", 2): AWAITABLES,
}


def checked(decorator: str, function: object) -> Handler:
    """The function with its kind. Raises ``TypeError`` naming both if the decorator does not take that kind."""
    if not callable(function):
        raise TypeError(f"{decorator} decorates a function, not {type(function).__name__}")
    shape = shape_of(function)
    forms = FORMS[decorator]
    if shape != "cached":
        for (wanted, arguments), kind in forms.items():
            if shape == wanted and takes(function, arguments):
                return Handler(function, kind, interaction=decorator)
        if shape == "plain function" and "plain function" not in {name for name, _ in forms}:
            stand_in = _stand_in(decorator, function)
            if stand_in is not None:
                return stand_in
    hints = ARGUMENTS.get(decorator, {})
    allowed = " or ".join(
        f"a{'n' if name[0] == 'a' else ''} {name} {hints.get(count, '(request)')}" for name, count in forms
    )
    if shape == "cached":
        # The cache hands the same coroutine or generator out again, which works once.
        found = "a cache of coroutines or generators, each of which works once: cache what the function awaits"
    else:
        found = f"a{'n' if shape[0] == 'a' else ''} {shape}"
    raise TypeError(f"{decorator} takes {allowed}; {function_name(function)}{signature_text(function)} is {found}")


# What a plain function stands in for: one that returns what an async one would


def _stand_in(decorator: str, function: Function) -> Handler | None:
    """The handler that a plain function makes which returns a coroutine or an async iterable; ``None`` if it may not.

    It may if it says so by what it is annotated to return, or if its looks can't tell: a lambda, and a wrapper, made
    with ``functools.wraps`` or of any arguments. What it returns is judged when it is called.
    """
    forms = {form: kind for form, kind in FORMS[decorator].items() if form in STAND_INS and takes(function, form[1])}
    said = _returns(function)
    told = {form: kind for form, kind in forms.items() if said in STAND_INS[form]}
    if told:
        forms = told
    elif not forms or not _may_be_anything(function):
        return None
    (form, kind), *others = forms.items()
    if others:
        # It takes any arguments and says nothing: then what it wraps is all that is left to tell.
        inner = inspect.unwrap(function)
        form, kind = next(
            ((one, its) for one, its in forms.items() if one[0] == shape_of(inner) and takes(inner, one[1])),
            (form, kind),
        )
    made = _generating if form[0] == "async generator" else _awaiting
    return Handler(made(decorator, function), kind, interaction=decorator, origin=function)


def _generating(decorator: str, function: Function) -> Function:
    def generate(*args: object) -> AsyncGenerator[Any, None]:
        result: Any = function(*args)
        if isinstance(result, AsyncGenerator):
            return result
        if hasattr(result, "__aiter__"):
            return _generated(result)
        raise unfit(decorator, function, result, "an async generator or another async iterable")

    return generate


async def _generated(items: AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
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
    cached = getattr(function, "__func__", function)
    if isinstance(cached, _CACHE):
        function = cached
        shape = shape_of(function.__wrapped__)
        return shape if shape in ("plain function", "class") else "cached"
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
