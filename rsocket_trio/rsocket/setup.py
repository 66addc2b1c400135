"""The first frame: what a client says, and whether a server can take it before its application is asked."""

from __future__ import annotations

import attrs

from rsocket_trio.errors import (
    InvalidSetup,
    RejectedResume,
    RejectedSetup,
    RemoteProtocolError,
    SetupError,
    UnsupportedSetup,
)
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.extensions import terms as extension_terms
from rsocket_trio.rsocket.extensions.blocks import LEASE, Entry
from rsocket_trio.rsocket.extensions.payloads import ResumeRequest
from rsocket_trio.rsocket.frames import ResumeFrame, SetupFrame
from rsocket_trio.terms import Keepalive, Setup
from rsocket_trio.values import value


@value
class ClientTerms:
    """What a client puts into its SETUP."""

    payload: Payload
    data_mime: str | int
    metadata_mime: str | int
    keepalive: Keepalive
    lease: bool
    strict: bool
    entries: tuple[Entry, ...] = ()
    resume_token: bytes | None = None


def setup_frame(dialect: Dialect, terms: ClientTerms, *, position: int | None = None) -> SetupFrame:
    """The SETUP of this dialect for those terms; where it is what resumes as well, with the position reached."""
    if dialect.entries:
        resume = None if terms.resume_token is None else ResumeRequest(terms.resume_token, position)
        entries = (*extension_terms.asked(terms.keepalive, lease=terms.lease, resume=resume), *terms.entries)
        ack = any(entry.ack for entry in entries)
        version, mimes = (dialect.major, dialect.minor), (terms.metadata_mime, terms.data_mime)
        return SetupFrame(*version, 0.0, 0.0, *mimes, terms.payload, ack=ack, extensions=entries)
    return SetupFrame(
        dialect.major,
        dialect.minor,
        terms.keepalive.interval,
        terms.keepalive.max_lifetime,
        terms.metadata_mime,
        terms.data_mime,
        terms.payload,
        lease=terms.lease,
        strict=terms.strict and dialect.strict,
        resume_token=terms.resume_token,
    )


def admit(dialect: Dialect, data: bytes, limit: int, *, grants_leases: bool, resumes: bool = False) -> SetupFrame:
    """The SETUP that a server's first frame is; ``limit`` is in bytes, its resume token not counted.

    Terms that stand in extension entries are in its fields as well, leases if they are granted. Raises the
    ``SetupError`` to refuse it with.
    """
    codec = dialect.codec
    try:
        frame = codec.decode(data)
    except RemoteProtocolError as error:
        header = codec.header(data)
        row = codec.row(header.number) if header is not None else None
        if row is not None and row.frame is SetupFrame:
            raise extension_terms.unreadable(error) from None
        # ALL-RCT-04: whatever its ignore flag says.
        raise InvalidSetup(str(error)) from None
    if isinstance(frame, ResumeFrame) and not frame.stream_id:
        # RS10-RSM-17; where resumption is offered, a RESUME never gets here.
        raise RejectedResume("resumption is not offered here")
    if not isinstance(frame, SetupFrame) or frame.stream_id:
        name = codec.name_of(frame)
        raise InvalidSetup(f"the first frame must be SETUP on stream 0, not {name}")  # RS10-CON-02
    if dialect.entries:
        frame = stated(dialect, frame)
    size = len(data) - len(frame.resume_token or b"")
    if size > limit:
        raise InvalidSetup(f"SETUP of {size} bytes, limit {limit}")
    refused = refusal(dialect, frame, grants_leases=grants_leases, resumes=resumes)
    if refused is not None:
        raise refused
    if dialect.entries:
        granted = extension_terms.grants(frame, grants_leases=grants_leases, resumes=resumes)
        frame = attrs.evolve(frame, lease=any(entry.ext == LEASE for entry in granted))
    return frame


def stated(dialect: Dialect, frame: SetupFrame) -> SetupFrame:
    """The same SETUP; terms that stand in extension entries are in its fields, too."""
    return extension_terms.stated(frame) if dialect.entries else frame


def refusal(dialect: Dialect, frame: SetupFrame, *, grants_leases: bool, resumes: bool = False) -> SetupError | None:
    """Why this SETUP can't be accepted by a server of this dialect, or ``None``."""
    versions = dialect.versions or {(dialect.major, dialect.minor)}
    if (frame.major, frame.minor) not in versions:
        # RS10-SETUP-08, RS02-CON-07: the description of the code names versions.
        return InvalidSetup(f"version {frame.major}.{frame.minor} is not spoken here, {dialect.name} is")
    if dialect.entries:
        return extension_terms.refusal(frame, grants_leases=grants_leases, resumes=resumes)
    if dialect.has_lifetime and (frame.keepalive_interval <= 0 or frame.max_lifetime <= 0):
        return InvalidSetup(
            f"keepalive interval {frame.keepalive_interval:g} s and lifetime {frame.max_lifetime:g} s must be above 0"
        )
    if frame.resume_token is not None and not resumes:
        # RS10-SETUP-07, RS02-SETUP-07.
        return RejectedSetup("resumption is not offered here")
    if frame.lease and not grants_leases:
        return UnsupportedSetup("leases are not granted here")
    return None


def described(dialect: Dialect, frame: SetupFrame) -> Setup:
    """The SETUP as the application sees it, before the facts of the handshake are added."""
    return Setup(
        dialect=dialect.name,
        payload=frame.payload,
        data_mime=frame.data_mime,
        metadata_mime=frame.metadata_mime,
        keepalive_interval=frame.keepalive_interval,
        max_lifetime=frame.max_lifetime,
        lease=frame.lease,
        strict=frame.strict,
        resume=frame.resume_token is not None,
        entries=frame.extensions,
    )
