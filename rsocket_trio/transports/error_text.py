"""Turns the exceptions of sockets, TLS and WebSocket into one line that says why a connection failed."""

from __future__ import annotations

import os
import ssl

import trio

NO_FRAME = "no frame ever came"
"""The text of a lost connection whose peer sent no frame of RSocket at all."""


TLS_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The exceptions of an end of the stream during the handshake: it depends on the version of Python."""


class HandshakeFailed(trio.BrokenResourceError):
    """The handshake of TLS or WebSocket failed, or ended before it was done. The text gives the reason."""


class PeerLeft(HandshakeFailed):
    """The peer closed the connection, or the system reset it, during the handshake."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}, and {NO_FRAME}")


class WrongProtocol(HandshakeFailed):
    """A server answered in another protocol. The text names it, and the schemes of its URIs."""


class NoTls(HandshakeFailed):
    """The ``first`` bytes of the peer are not those of TLS."""

    def __init__(self, text: str, first: bytes) -> None:
        super().__init__(text)
        self.first = first


class NoAlpn(HandshakeFailed):
    """The peer did the TLS handshake, and agreed on no protocol that is spoken here."""


class OriginRefused(HandshakeFailed):
    """A page asked for a WebSocket, and its origin is not allowed."""


def reason(exc: BaseException) -> str:
    """Return the reason in plain words, without class names and numbers; looks into causes and groups."""
    if isinstance(exc, BaseExceptionGroup):
        # A name with several addresses: mostly all failed for the same reason.
        return "; ".join(dict.fromkeys(reason(cause) for cause in exc.exceptions))
    if isinstance(exc, WrongProtocol):
        return str(exc)
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {exc.verify_message}"
    if isinstance(exc, TLS_ENDS):
        return "the peer closed the connection during the TLS handshake"
    if isinstance(exc, ssl.SSLError):
        return f"TLS: {(exc.reason or str(exc)).lower().replace('_', ' ')}"
    if exc.__cause__ is not None and (not str(exc) or isinstance(exc, OSError)):
        return reason(exc.__cause__)
    text = str(exc) or type(exc).__name__
    if isinstance(exc, OSError) and exc.strerror:
        text = exc.strerror
        plain = os.strerror(exc.errno or 0)
        if text.endswith(plain):
            text = plain  # Trio puts the address before it, which our line names already
    # The system writes "Connection refused", which stands in the middle of our line.
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
