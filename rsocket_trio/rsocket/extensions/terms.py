"""The extension entries of SETUP and SETUP_OK: a client's requested terms and a server's grants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import attrs

from rsocket_trio.errors import InvalidSetup, RejectedResume, RemoteProtocolError, SetupError, UnsupportedSetup
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.extensions.entries import (
    AT_OK,
    AT_SETUP,
    AT_STREAM,
    REQUESTS_COUNT,
    Address,
    Complexity,
    KeepaliveTerms,
    Point,
    Resumable,
    ResumeGrant,
    ResumeRequest,
    Strategies,
    UnknownExtension,
    encode_block,
    entry_of,
)
from rsocket_trio.rsocket.frames import KEEPALIVE, RESUME, ExtensionEntry, SetupFrame
from rsocket_trio.rsocket.layouts.v2_0_draft import mime_fields
from rsocket_trio.terms import Keepalive

T = TypeVar("T")
TERMS_SIZE: Final = 8
"""Bytes of the keepalive terms, which a grant repeats."""


def as_entries(contents: Iterable[object]) -> tuple[ExtensionEntry, ...]:
    """Return the entries of a user's values: ready-made entries, or payloads of an extension.

    An application's own extension may always be ignored (RSX-TLV-09). Raise ``LocalProtocolError`` for a value of no
    extension.
    """
    entries = (content if isinstance(content, ExtensionEntry) else entry_of(content) for content in contents)
    return tuple(attrs.evolve(entry, ignore=True) if isinstance(entry.ext, str) else entry for entry in entries)


def content_at(point: Point, entries: Iterable[ExtensionEntry], kind: type[T]) -> T | None:
    """Return the first payload of this class among the entries at this point, or ``None``."""
    contents = (point.read(entry) for entry in entries)
    return next((content for content in contents if isinstance(content, kind)), None)


class ExtensionRules:
    """The rules of extension entries. They are loaded when a session of a dialect that has entries first needs them."""

    # The client asks

    def asked(
        self, keepalive: Keepalive, *, lease: bool, token: bytes | None = None, position: int | None = None
    ) -> tuple[ExtensionEntry, ...]:
        """Return the entries of our own SETUP: keepalive needs no answer, leases and resumption ask for a grant.

        ``token`` asks to resume the session later, with ``position`` to resume it now.
        """
        entries = [entry_of(KeepaliveTerms(keepalive.interval, keepalive.max_lifetime), ignore=True)]
        if token is not None:
            entries.append(entry_of(ResumeRequest(token, position), ack=True))  # RSX-RES-04
        if lease:
            entries.append(entry_of(Strategies((REQUESTS_COUNT,)), ack=True))  # RSX-LEASE-06
        return tuple(entries)

    def asked_to_resume(self, frame: SetupFrame) -> tuple[bytes, int] | None:
        """Return the token and the position of a SETUP that resumes a session, ``None`` for any other."""
        request = content_at(AT_SETUP, frame.extensions, ResumeRequest)
        if request is None or request.last_received_server_position is None or not frame.ack:
            return None  # RSX-SETUP-04: without ``ack`` it is refused as any other SETUP
        return request.token, request.last_received_server_position

    def resumed_from(self, granted: Iterable[ExtensionEntry]) -> int | None:
        """Return the position of a server that resumes the session, ``None`` if it does not."""
        grant = content_at(AT_OK, granted, ResumeGrant)
        return grant.last_received_client_position if grant is not None else None

    def resume_grant(self, position: int | None) -> ExtensionEntry:
        """Return a server's grant of resumption, with its position for a client that resumes (RSX-RES-03)."""
        return entry_of(ResumeGrant(position))

    def with_mark(self, entries: tuple[ExtensionEntry, ...]) -> tuple[ExtensionEntry, ...]:
        """Return a request's entries with its stream marked as resumable, unless they carry a mark (RSX-RES-06)."""
        if content_at(AT_STREAM, entries, Resumable) is not None:
            return entries
        return (*entries, entry_of(Resumable(), ignore=True))

    def stated(self, frame: SetupFrame) -> SetupFrame:
        """Return the SETUP with its terms also in the fields that other dialects have for them."""
        terms = content_at(AT_SETUP, frame.extensions, KeepaliveTerms)
        resume = content_at(AT_SETUP, frame.extensions, ResumeRequest)
        return attrs.evolve(
            frame,
            keepalive_interval=terms.interval if terms is not None else 0.0,
            max_lifetime=terms.max_lifetime if terms is not None else 0.0,
            lease=content_at(AT_SETUP, frame.extensions, Strategies) is not None,
            resume_token=resume.token if resume is not None else None,
        )

    # The server grants, or refuses

    def unreadable(self, error: RemoteProtocolError) -> SetupError:
        """Return the refusal of a SETUP that was not understood (RSX-TLV-07, RSX-TLV-08, RSX-GAP-18)."""
        return UnsupportedSetup(str(error)) if isinstance(error, UnknownExtension) else InvalidSetup(str(error))

    def refusal(self, frame: SetupFrame, *, grants_leases: bool, resumes: bool = False) -> SetupError | None:
        """Return a server's refusal of this SETUP, given as received, or ``None`` if it can be accepted."""
        if frame.data_mime == "":
            return InvalidSetup("SETUP without a data MIME type")  # RSX-MIME-03
        for entry in frame.extensions:
            if entry.ack and not frame.ack:  # RSX-SETUP-04
                return InvalidSetup(f"extension {entry.name} asks for an answer, and its SETUP does not")
            refused = self._refused(entry, grants_leases, resumes)
            if refused is not None:
                return refused
        return None

    def _refused(self, entry: ExtensionEntry, grants_leases: bool, resumes: bool) -> SetupError | None:
        content = AT_SETUP.read(entry)
        if isinstance(content, KeepaliveTerms) and not (content.interval and content.max_lifetime):
            return InvalidSetup(  # RSX-KA-02
                f"keepalive interval {content.interval:g} s and lifetime {content.max_lifetime:g} s must be above 0"
            )
        if isinstance(content, ResumeRequest):
            if content.last_received_server_position is not None:
                return RejectedResume("resume: resumption is not offered here")  # RSX-RES-08
            if not (entry.ignore or resumes):
                return UnsupportedSetup("resume: resumption is not offered here")
        if isinstance(content, Strategies) and not entry.ignore:
            if not entry.ack:
                return InvalidSetup("lease: it must ask for an answer")  # RSX-LEASE-06
            if not self._leases(entry, grants_leases):
                return UnsupportedSetup("lease: no lease of a strategy that was offered is granted here")
        return None

    def grants(self, frame: SetupFrame, *, grants_leases: bool, resumes: bool = False) -> tuple[ExtensionEntry, ...]:
        """Return the entries that a server grants by itself; an entry missing here is not granted."""
        granted: list[ExtensionEntry] = []
        for entry in frame.extensions:
            if entry.ack and entry.ext == KEEPALIVE:
                granted.append(ExtensionEntry(KEEPALIVE, entry.ignore, payload=entry.payload[:TERMS_SIZE]))  # RSX-KA-03
            elif resumes and entry.ack and entry.ext == RESUME:
                granted.append(attrs.evolve(self.resume_grant(None), ignore=entry.ignore))
            elif self._leases(entry, grants_leases):
                granted.append(entry_of(Strategies((REQUESTS_COUNT,)), ignore=entry.ignore))
        return tuple(granted)

    def _leases(self, entry: ExtensionEntry, grants_leases: bool) -> bool:
        """Return whether this entry asks for leases of a strategy that is granted."""
        content = AT_SETUP.read(entry)
        return grants_leases and entry.ack and isinstance(content, Strategies) and REQUESTS_COUNT in content.names

    # The client checks the grants

    def check_grants(self, asked_for: Iterable[ExtensionEntry], granted: tuple[ExtensionEntry, ...]) -> None:
        """Check the grants of SETUP_OK against the client's offer.

        Raise ``RemoteProtocolError`` for a strategy that was not offered, ``UnsupportedSetup`` for leases or resumption
        that were not granted.
        """
        offered = content_at(AT_SETUP, asked_for, Strategies)
        selected = content_at(AT_OK, granted, Strategies)
        if selected is not None:
            names = offered.names if offered is not None else ()
            for name in selected.names:
                if name not in names:  # RSX-LEASE-03
                    raise RemoteProtocolError(f"lease strategy {name!r} was selected, and not offered")
        elif offered is not None:
            raise UnsupportedSetup("lease: it was not granted")  # RSX-OK-02
        resume = content_at(AT_SETUP, asked_for, ResumeRequest)
        if resume is not None and content_at(AT_OK, granted, ResumeGrant) is None:
            raise UnsupportedSetup("resume: it was not granted")

    # Requests

    def is_resumable(self, entries: Iterable[ExtensionEntry]) -> bool:
        """Return whether a request with these entries marks its stream as resumable (RSX-RES-07)."""
        mark = content_at(AT_STREAM, entries, Resumable)
        return mark is not None and mark.resumable

    def block_size(self, entries: tuple[ExtensionEntry, ...]) -> int:
        """Return the bytes that a request's entries take."""
        return len(encode_block(entries, AT_STREAM))

    def mime_size(self, payload: Payload) -> int:
        """Return the bytes that a payload's own MIME types take."""
        return len(mime_fields("", payload)[1])

    def cost_of(self, entries: tuple[ExtensionEntry, ...]) -> int:
        """Return the cost in permits of a request with these entries (RSX-LEASE-05)."""
        complexity = content_at(AT_STREAM, entries, Complexity)
        return complexity.permits if complexity is not None else 1

    def misdirected(self, entries: tuple[ExtensionEntry, ...]) -> bool:
        """Return whether a broker's address lacks exactly one of unicast, multicast and shard (RSX-BRK-03)."""
        address = content_at(AT_STREAM, entries, Address)
        return address is not None and not address.has_one_way
