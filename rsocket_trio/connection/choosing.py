"""Which end of which protocol do a caller's terms ask for? They are checked here, before anybody dials or listens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rsocket_trio.connection.dialects import STREAMUX, full_name
from rsocket_trio.connection.ends import End, RSocketClient, RSocketServer, ServerEnd, StreamuxEnd, numbered
from rsocket_trio.errors import Unsupported
from rsocket_trio.limits import Limits
from rsocket_trio.metadata.mime import check_mime
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.dialect import Dialect
from rsocket_trio.rsocket.dialects import dialect_named
from rsocket_trio.rsocket.fragmenting import UNCUT, checked_fragment_size
from rsocket_trio.rsocket.quirks import all_with_quirks, spoken, with_quirks
from rsocket_trio.rsocket.setup import ClientTerms, setup_frame
from rsocket_trio.streamux.options import StreamuxOptions
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.values import Unsaid

LONGEST_CHUNK = 2**30 - 1
DIALLING = StreamuxOptions()
SERVING = StreamuxOptions(qa=True)


def client_end(
    dialect: str,
    terms: ClientTerms,
    limits: Limits,
    fragment_size: int,
    responder: Responder | None,
    quirks: Iterable[str],
    streamux: StreamuxOptions | None,
    resume: ResumeOptions | None,
) -> End:
    """A client, its terms checked before anything is dialled. Raises ``ValueError`` and ``Unsupported``."""
    _check_limits(limits)
    _check_options(streamux)
    dialect = full_name(dialect)
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
    if terms.entries and not record.entries:
        raise Unsupported(f"{record.name} has no extension entries")
    if terms.strict and not record.strict:
        raise Unsupported(f"{record.name} has no strict flag")
    if not record.free_mimes:
        check_mime("data_mime", terms.data_mime)
        if terms.metadata_mime or not record.mime_fields:  # RSX-MIME-01: there an empty one says that there is none
            check_mime("metadata_mime", terms.metadata_mime)
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
    return RSocketClient(record, terms, limits, size, responder, resume, said)


def server_ends(
    dialects: Iterable[str],
    responder: Responder,
    limits: Limits,
    fragment_size: int,
    quirks: Iterable[str],
    streamux: StreamuxOptions | None,
    resume: ResumeOptions | None,
) -> dict[str, ServerEnd]:
    """A server for each of the dialects, by name. Raises ``ValueError`` naming what is none."""
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
    """Raise for terms of a SETUP, which Streamux does not have."""
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
    """A fragment size that frames can have, and the store of what is sent can hold."""
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
