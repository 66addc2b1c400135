"""What can be in the extensions of the draft, for tests that draw any of it."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from rsocket_trio.rsocket.extensions.entries import (
    Address,
    Beat,
    BrokerInfo,
    Complexity,
    KeepaliveTerms,
    Permits,
    Resumable,
    ResumeGrant,
    ResumePosition,
    ResumeRequest,
    RouteAdd,
    RouteJoin,
    Strategies,
    entry_of,
)
from rsocket_trio.rsocket.frames import (
    ExtensionEntry,
)

LAST: Final = 2**31 - 1

numbers = st.integers(1, LAST)
positions = st.integers(0, 2**63 - 1)
content = st.binary(max_size=20)
texts = st.text(st.characters(max_codepoint=255), max_size=127)
names = st.integers(0, 127) | texts

seconds = numbers.map(lambda milliseconds: milliseconds / 1000)
milliseconds = st.integers(0, LAST).map(lambda milliseconds: milliseconds * 1_000_000)
ids = st.binary(min_size=16, max_size=16)
timestamps = st.integers(0, 2**64 - 1)
services = st.text(max_size=60)
tags = st.lists(st.tuples(st.integers(1, 127) | texts, st.binary(max_size=127)), max_size=3).map(tuple)
terms = st.builds(KeepaliveTerms, seconds, seconds)
strategies = st.builds(Strategies, st.lists(names, min_size=1, max_size=3).map(tuple))
joins = st.builds(RouteJoin, ids, services, tags)
WAYS = ({"unicast": True}, {"multicast": True}, {"shard": True})
addresses = st.builds(
    lambda way, origin, metadata, tags, encrypted: Address(origin, metadata, tags, encrypted=encrypted, **way),
    *(st.sampled_from(WAYS), ids, tags, tags, st.booleans()),
)

# What each point has, in as many alternatives as it has extensions.
AT: Final[dict[str, tuple[st.SearchStrategy[Any], ...]]] = {
    "SETUP": (terms, st.builds(ResumeRequest, content, st.none() | positions), strategies, joins),
    "SETUP_OK": (terms, st.builds(ResumeGrant, st.none() | positions), strategies),
    "EXT": (
        st.builds(Beat, st.booleans()),
        st.builds(ResumePosition, positions),
        st.builds(Permits, names, milliseconds, st.integers(0, LAST)),
        joins
        | st.builds(BrokerInfo, ids, timestamps, tags)
        | st.builds(RouteAdd, ids, ids, timestamps, services, tags),
    ),
    "REQUEST": (st.builds(Resumable, st.booleans()), st.builds(Complexity, numbers), addresses),
}
others = st.builds(
    ExtensionEntry, st.integers(5, 126) | texts.filter(bool), st.just(True), st.just(False), st.integers(0, 15), content
)


def blocks(point: str, *, least: int = 0) -> st.SearchStrategy[tuple[ExtensionEntry, ...]]:
    """Entries that may stand at this point, no extension twice."""
    known = st.builds(entry_of, st.one_of(*AT[point]), ignore=st.booleans(), ack=st.just(False))
    return st.lists(known | others, min_size=least, max_size=4, unique_by=lambda entry: entry.ext).map(tuple)
