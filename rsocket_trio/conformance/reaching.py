"""Names the transport over which a server answers that does not answer over that of its URI."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from rsocket_trio.conformance.catalogue import chapters
from rsocket_trio.conformance.run import Target, WrongServer, check_server, dial_to, speaks
from rsocket_trio.errors import ConnectionLost
from rsocket_trio.transports.error_text import UpgradeRefused, WrongProtocol
from rsocket_trio.transports.first_bytes import HTTP_1, RSOCKET, STREAMUX, TLS, TRY_TLS
from rsocket_trio.transports.schemes import Endpoint, parse_uri

SCHEMES: Final = {
    #       protocol of the transport  over TLS
    "tcp": ("",     False),
    "tls": ("",     True),
    "ws":  (HTTP_1, False),
    "wss": (HTTP_1, True),
}  # fmt: skip
"""The transports over which a server is asked, each with its protocol; an empty text is that of the dialect."""
HESITATION: Final = 0.4
"""Seconds in which a server may answer over the transport of its URI before it is asked over others."""
ANSWERING: Final = 0.5
"""Seconds in which a server that speaks the dialect over another transport is named by that, and not by less."""
ASKING: Final = 2.0
"""Seconds after which nothing is asked any more."""


async def check_reached(uri: str, target: Target, dialect: str) -> None:
    """Do as ``check_server``, and name the transport over which the server answers, if it is another one.

    Raise ``WrongServer`` then, as soon as it has answered there and not over that of the URI.
    """
    endpoint = parse_uri(uri)
    if not endpoint.port:
        await check_server(target, dialect)
        return
    fault: WrongServer | ConnectionLost | None = None
    failed = trio.Event()
    other = ""
    # A server that does not answer at all takes all patience: it is asked over other transports meanwhile.
    async with trio.open_nursery() as nursery:

        async def check() -> None:
            nonlocal fault
            try:
                await check_server(target, dialect)
            except (WrongServer, ConnectionLost) as error:
                fault = error
                failed.set()
            else:
                nursery.cancel_scope.cancel()

        nursery.start_soon(check)
        with trio.move_on_after(HESITATION):
            await failed.wait()
        if other := await _other_transport(endpoint, target, dialect):
            nursery.cancel_scope.cancel()
    if other:
        raise WrongServer(other)
    if fault is not None:
        raise fault


@attrs.define(eq=False)
class _Answers:
    """The answers of a server over other transports."""

    speaks: list[str] = attrs.field(factory=list)
    """The transports over which it speaks the dialect, each with the scheme to try."""
    others: list[str] = attrs.field(factory=list)
    """The protocols that it has shown otherwise, each with the schemes to try."""
    settled: trio.Event = attrs.field(factory=trio.Event)
    """Set once it speaks the dialect over one, or over none."""


async def _other_transport(endpoint: Endpoint, target: Target, dialect: str) -> str:
    """Return the transport over which the server answers, and the scheme to try; an empty text if there is none."""
    answers = _Answers()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host

    async def ask(scheme: str) -> None:
        protocol, over_tls = SCHEMES[scheme]
        path = endpoint.path if protocol == HTTP_1 else ""
        uri = f"{scheme}://{host}:{endpoint.port}{path}"
        dial = dial_to(uri, context if over_tls else None)
        quick = attrs.evolve(target, dial=dial, patience=ASKING, connect_timeout=ASKING)
        protocol = protocol or (STREAMUX if chapters()[dialect].notation.negotiates else RSOCKET)
        named = f"{protocol} {'over' if over_tls else 'without'} TLS answered: try {scheme}://"
        try:
            if (await speaks(quick, dialect))[0]:
                answers.speaks.append(named)
                answers.settled.set()
            elif over_tls:
                answers.others.append(f"{TLS} answered: {TRY_TLS}")
        except WrongServer as error:
            answers.others.append(str(error).removeprefix(f"{uri}: "))
        except ConnectionLost as error:
            if isinstance(error.__cause__, WrongProtocol):
                answers.others.append(str(error.__cause__))
            elif isinstance(error.__cause__, UpgradeRefused):
                answers.others.append(named)

    async def ask_all() -> None:
        async with trio.open_nursery() as asking:
            for scheme in SCHEMES:
                if scheme != endpoint.scheme:
                    asking.start_soon(ask, scheme)
        answers.settled.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_all)
        with trio.move_on_after(ANSWERING):
            await answers.settled.wait()
        if not (answers.speaks or _new(answers.others, endpoint)):
            with trio.move_on_after(ASKING - ANSWERING):
                await answers.settled.wait()
        nursery.cancel_scope.cancel()
    return next(iter([*answers.speaks, *_new(answers.others, endpoint)]), "")


def _new(answers: Sequence[str], endpoint: Endpoint) -> list[str]:
    """Return the answers that advise another scheme than that of the URI."""
    return [one for one in answers if f"{endpoint.scheme}://" not in one.rpartition(": ")[2]]
