"""Checks a caller's terms and builds the client or server ends, before anything is dialled or listened on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import attrs

from rsocket_trio.connection.dialects import STREAMUX, full_name
from rsocket_trio.connection.ends import End, RSocketClient, RSocketServer, ServerEnd, StreamuxEnd, numbered
from rsocket_trio.errors import Unsupported
from rsocket_trio.limits import Limits
from rsocket_trio.metadata.mime import check_mime
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import dialect_named
from rsocket_trio.rsocket.peers import Peer, peer_named
from rsocket_trio.rsocket.quirks import all_with_quirks, spoken, with_quirks
from rsocket_trio.rsocket.setup import ClientTerms, setup_frame
from rsocket_trio.rsocket.stream_sender import UNCUT, checked_fragment_size
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.values import Unsaid

T = TypeVar("T")
LONGEST_CHUNK = 2**30 - 1
DIALLING = StreamuxOptions()
SERVING = StreamuxOptions(qa=True)


def checked_peer(name: str, dialect: str) -> Peer:
    """Return the peer of that name. Raise ``ValueError`` for an unknown name, or a dialect that is not the peer's."""
    peer = peer_named(name)
    if not isinstance(dialect, Unsaid) and full_name(dialect) != peer.dialect:
        raise ValueError(f"peer {name!r} speaks {peer.dialect}, not {full_name(dialect)}")
    return peer


def peer_and_dialect(name: str | None, dialect: str) -> tuple[Peer | None, str]:
    """Return the peer of that name, if any, and the full name of its dialect or of ``dialect``."""
    if name is None:
        return None, full_name(dialect)
    peer = checked_peer(name, dialect)
    return peer, peer.dialect


def client_end(
    dialect: str,
    terms: ClientTerms,
    limits: Limits,
    fragment_size: int,
    responder: Responder | None,
    quirks: Iterable[str],
    streamux: StreamuxOptions | None,
    resume: ResumeOptions | None,
    peer: str | None = None,
) -> End:
    """Return a client end with checked terms, before anything is dialled. Raise ``ValueError`` and ``Unsupported``.

    The needs of a peer are defaults: a term that is not ``Unsaid`` was given, and stays. Quirks are added.
    """
    known = None if peer is None else checked_peer(peer, dialect)
    if known is None:
        dialect = full_name(dialect)
    else:
        dialect = known.dialect
        terms = _as_needed(known, terms)
        fragment_size = _needed(known.fragment_size, fragment_size)
        quirks = quirks if isinstance(quirks, str) else (*known.quirks, *quirks)
    _check_limits(limits)
    _check_options(streamux)
    if dialect == STREAMUX:
        _check_streamux_terms(terms, quirks)
        size = checked_fragment_size(fragment_size, LONGEST_CHUNK)
        if resume is not None:
            raise Unsupported(f"{STREAMUX} has no resumption")
        return StreamuxEnd(DIALLING if streamux is None else streamux, True, limits, size, responder)
    if streamux is not None:
        raise ValueError(f"streamux options for {dialect}: they are those of {STREAMUX}")
    record = with_quirks(dialect_named(dialect), quirks)
    if record.flags_counts:
        record = spoken(record)
    if known is not None and known.initial_request_n is not None:
        record = attrs.evolve(record, initial_request_n=known.initial_request_n)
    if terms.entries and not record.entries:
        raise Unsupported(f"{record.name} has no extension entries")
    if terms.strict and not record.strict:
        raise Unsupported(f"{record.name} has no strict flag")
    if not record.free_mimes:
        for what, mime in ("data_mime", terms.data_mime), ("metadata_mime", terms.metadata_mime):
            # A number has no slash, nor has an empty metadata type, which means in the draft that there is no metadata.
            says_none = not mime and record.mime_fields and what == "metadata_mime"  # RSX-MIME-01
            if isinstance(mime, str) and "/" not in mime and not says_none:
                check_mime(what, mime)
    try:
        frame = setup_frame(record, numbered(record, terms))
        said = frame, record.codec.encode(frame)
    except Exception as error:
        raise ValueError(f"the SETUP can't be said in {record.name}: {error}") from error
    if resume is not None and not record.resumes:
        raise Unsupported(f"{record.name} has no resumption")
    if isinstance(fragment_size, Unsaid) and (record.major, record.minor) in record.whole_versions:
        fragment_size = UNCUT
    size = _checked_size(fragment_size, record.codec.largest, resume)
    return RSocketClient(record, terms, limits, size, responder, resume, said, record.length_on_messages)


def _as_needed(peer: Peer, terms: ClientTerms) -> ClientTerms:
    """Return the terms with the needs of the peer in place of terms that were not given."""
    return attrs.evolve(
        terms,
        data_mime=_needed(peer.mime, terms.data_mime),
        metadata_mime=_needed(peer.mime, terms.metadata_mime),
        keepalive=_needed(peer.keepalive, terms.keepalive),
    )


def _needed(need: T | None, given: T) -> T:
    return need if need is not None and isinstance(given, Unsaid) else given


def server_ends(
    dialects: Iterable[str],
    responder: Responder,
    limits: Limits,
    fragment_size: int,
    quirks: Iterable[str],
    streamux: StreamuxOptions | None,
    resume: ResumeOptions | None,
) -> dict[str, ServerEnd]:
    """Return a server end for each dialect, by name. Raise ``ValueError`` naming an unknown dialect."""
    if not isinstance(responder, Responder):
        raise TypeError(f"a Responder serves, not {type(responder).__name__}")
    _check_limits(limits)
    _check_options(streamux)
    names = (dialects,) if isinstance(dialects, str) else tuple(dialects)
    if not names:
        raise ValueError("no dialect to serve")
    names = tuple(dict.fromkeys(map(full_name, names)))
    family = [dialect_named(name) for name in names if name != STREAMUX]
    own_size = not isinstance(fragment_size, Unsaid)
    ends: dict[str, ServerEnd] = {}
    for record in map(spoken, _with_quirks(family, quirks)):
        resumes = resume if record.resumes else None
        ends[record.name] = RSocketServer(record, limits, fragment_size, responder, resumes, own_size)
    if resume is not None and not any(record.resumes for record in family):
        raise Unsupported(f"resumption of {', '.join(names)}: there is none")
    largest = min((record.codec.largest for record in family), default=LONGEST_CHUNK)
    _checked_size(fragment_size, largest, resume)
    if STREAMUX in names:
        ends[STREAMUX] = StreamuxEnd(SERVING if streamux is None else streamux, False, limits, fragment_size, responder)
    elif streamux is not None:
        raise ValueError(f"streamux options, but {STREAMUX} is not among the dialects served")
    return ends


def _with_quirks(family: Sequence[Dialect], quirks: Iterable[str]) -> Sequence[Dialect]:
    quirks = quirks if isinstance(quirks, str) else tuple(quirks)
    if not family and quirks and not isinstance(quirks, str):
        raise ValueError(f"quirks {', '.join(quirks)} of {STREAMUX}: there are none")
    return all_with_quirks(family, quirks)


def _check_streamux_terms(terms: ClientTerms, quirks: Iterable[str]) -> None:
    """Raise ``Unsupported`` for terms of a SETUP, which Streamux does not have."""
    _with_quirks((), quirks)
    for given, what in (
        (terms.payload.data or terms.payload.metadata is not None, "SETUP payload"),
        (terms.lease, "leases"),
        (terms.strict, "strict flag"),
        (terms.entries, "extension entries"),
    ):
        if given:
            raise Unsupported(f"{STREAMUX} has no {what}")


def _checked_size(fragment_size: int, largest: int, resume: ResumeOptions | None) -> int:
    """Return the fragment size, checked against the largest frame and the store for resumption."""
    if resume is not None and not isinstance(resume, ResumeOptions):
        raise TypeError(f"resume is ResumeOptions, not {type(resume).__name__}")
    size = checked_fragment_size(fragment_size, largest)
    if resume is not None and size > resume.store_bytes:
        raise ValueError(f"fragment_size of {size} bytes: the store for resumption has {resume.store_bytes}")
    return size


def _check_limits(limits: object) -> None:
    if not isinstance(limits, Limits):
        raise TypeError(f"limits are Limits, not {type(limits).__name__}")


def _check_options(options: object) -> None:
    if options is not None and not isinstance(options, StreamuxOptions):
        raise TypeError(f"streamux options are StreamuxOptions, not {type(options).__name__}")
