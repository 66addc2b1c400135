"""The TLS contexts of the schemes that a server listens on."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from rsocket_trio.transports.schemes import REGISTRY, SPELLINGS, Endpoint

OneContext: TypeAlias = ssl.SSLContext | Callable[[], ssl.SSLContext]
SSLContextLike: TypeAlias = OneContext | Mapping[str, OneContext]
"""The context of served TLS, a function that makes one, or such a value for each scheme."""


def server_contexts(endpoints: Iterable[Endpoint], ssl_context: SSLContextLike | None) -> dict[str, ssl.SSLContext]:
    """Return the context of each scheme that uses TLS, with the protocols that it offers by ALPN set.

    A function is called once for each scheme. Raise ``ValueError`` for a scheme without a context, for a mapping with
    other keys than the schemes of TLS, and for one context of two schemes that offer different protocols; ``TypeError``
    for a value that is no context.
    """
    by_scheme = _by_scheme(ssl_context) if isinstance(ssl_context, Mapping) else None
    contexts: dict[str, ssl.SSLContext] = {}
    for endpoint in endpoints:
        scheme = endpoint.scheme
        if not endpoint.uses_tls or scheme in contexts:
            continue
        source = ssl_context if by_scheme is None else by_scheme.get(scheme)
        if source is None:
            missing = "" if by_scheme is None else f" for {scheme!r}"
            raise ValueError(f"{endpoint}: serving TLS needs an ssl_context with a certificate{missing}")
        contexts[scheme] = _context(scheme, source)
    _check_shared(contexts)
    for scheme, context in contexts.items():
        if REGISTRY[scheme].alpn:
            context.set_alpn_protocols(list(REGISTRY[scheme].alpn))
    return contexts


def _by_scheme(contexts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping by the names of schemes. Raise ``ValueError`` for another key."""
    known = {word: name for word, name in SPELLINGS.items() if REGISTRY[name].uses_tls}
    for word in contexts:
        if word not in known:
            raise ValueError(f"ssl_context for {word!r}: the schemes of TLS are {', '.join(known)}")
    return {known[word]: context for word, context in contexts.items()}


def _context(scheme: str, source: Any) -> ssl.SSLContext:
    """Return the context, made by the function if it is one. Raise ``TypeError`` for anything else."""
    context = source() if callable(source) else source
    if not isinstance(context, ssl.SSLContext):
        what = f"{type(context).__name__} of its function" if callable(source) else type(context).__name__
        raise TypeError(f"ssl_context for {scheme!r} is an ssl.SSLContext or a function that makes one, not {what}")
    return context


def _check_shared(contexts: Mapping[str, ssl.SSLContext]) -> None:
    """Raise ``ValueError`` if one context would have to offer the protocols of two schemes."""
    first: dict[int, str] = {}
    for scheme, context in contexts.items():
        other = first.setdefault(id(context), scheme)
        if REGISTRY[other].alpn != REGISTRY[scheme].alpn:
            raise ValueError(
                f"one ssl_context for {other} and {scheme}, which offer different protocols by ALPN: give a mapping "
                f"{{{other!r}: ..., {scheme!r}: ...}} of two contexts, or a function that makes one"
            )
