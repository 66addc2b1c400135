"""Faults of credit, resumption, cancelling and time, each easy to overlook, and the tests that must find them."""

from __future__ import annotations

import attrs


@attrs.frozen
class Mutant:
    """A fault: in ``file`` of the package the text ``old``, which is there once, becomes ``new``.

    Of the test files at least one must fail then.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


CREDIT = ("tests/mux/test_credit.py", "tests/connection/test_streams.py")
STORE = ("tests/mux/test_retaining.py",)
RESUME = (
    *STORE,
    "tests/rsocket/test_resumption.py",
    "tests/rsocket/test_resumption_limits.py",
    "tests/conformance/test_resume_1_0.py",
)
STREAMS = ("tests/rsocket/test_session_streams.py", "tests/conformance/test_rs10_streams.py")
CANCELS = (
    *STREAMS,
    "tests/reliability/test_cancelled_items.py",
    "tests/reliability/test_cancel_sweep.py",
)

OUTBOX = ("tests/mux/test_outbox.py", "tests/connection/test_link_at_once.py")
LEDGER = ("tests/replay/test_ledgers.py",)
SEGMENTS = ("tests/replay/test_segments.py",)
PARTS = ("tests/rsocket/test_parts.py",)
FAILURES = ("tests/connection/test_failures.py", "tests/connection/test_fault_log.py")
DECORATED = ("tests/connection/test_decorated.py",)
MUTANTS = (
    # Credit
    Mutant(
        "top up one item late",
        "connection/receiving.py",
        "if window.used >= window.half:",
        "if window.used > window.half:",
        CREDIT,
    ),
    Mutant(
        "grant what was used once more",
        "mux/credit.py",
        "used, self.used = self.used, 0",
        "used = self.used",
        CREDIT,
    ),
    Mutant(
        "sending takes no credit",
        "rsocket/outbound.py",
        "stream.room -= 1",
        "stream.room -= 0",
        STREAMS,
    ),
    Mutant(
        "receiving takes no credit",
        "rsocket/peers_half.py",
        "stream.granted -= 1\n        elif",
        "stream.granted -= 0\n        elif",
        STREAMS,
    ),
    Mutant(
        "receiving many at once takes no credit",
        "rsocket/shortcuts.py",
        "stream.granted -= taken",
        "stream.granted -= 0",
        STREAMS,
    ),
    Mutant(
        "every item may be early",
        "rsocket/peers_half.py",
        "stream.ahead = True",
        "stream.ahead = False",
        STREAMS,
    ),
    Mutant(
        "one item more than was granted",
        "rsocket/peers_half.py",
        "if stream.granted > 0:\n            stream.granted -= 1",
        "if stream.granted >= 0:\n            stream.granted -= 1",
        STREAMS,
    ),
    Mutant(
        "a part in between counts for nothing",
        "rsocket/shortcuts.py",
        "table.reassembling += len(part)",
        "table.reassembling += 0",
        PARTS,
    ),
    Mutant(
        "large parts that came together count for nothing",
        "rsocket/shortcuts.py",
        "table.reassembling += assembly.add_large(parts)",
        "assembly.add_large(parts)",
        PARTS,
    ),
    Mutant(
        "what is granted later is not counted",
        "rsocket/outbound.py",
        "stream.granted += amount",
        "stream.granted += 0",
        STREAMS,
    ),
    Mutant(
        "REQUEST_N replaces what was left",
        "rsocket/inbound.py",
        "stream.room += frame.request_n",
        "stream.room = frame.request_n",
        STREAMS,
    ),
    # Resumption
    Mutant(
        "the store's position lags by a byte for each frame",
        "mux/retaining.py",
        "self.position += len(frame)",
        "self.position += len(frame) - 1",
        RESUME,
    ),
    Mutant(
        "a frame that was confirmed to its last byte is kept",
        "mux/retaining.py",
        "while frames and first + len(frames[0]) <= position:",
        "while frames and first + len(frames[0]) < position:",
        RESUME,
    ),
    Mutant(
        "a position that was never reached empties the store",
        "mux/retaining.py",
        "if not self.first < position <= self.position:",
        "if not self.first < position:",
        RESUME,
    ),
    Mutant(
        "a position inside of a frame is served",
        "mux/retaining.py",
        "return here == position or (",
        "return here <= position or (",
        RESUME,
    ),
    Mutant(
        "the oldest frame is not sent again",
        "mux/retaining.py",
        "self._again = deque(self.store.kept())",
        "self._again = deque(self.store.kept()[1:])",
        RESUME,
    ),
    Mutant(
        "frames without a position are kept",
        "mux/retaining.py",
        "if self._leaves(kept):\n                store.append(kept)",
        "if kept:\n                store.append(kept)",
        RESUME,
    ),
    Mutant(
        "the store has no bound",
        "mux/retaining.py",
        "leaving = super().take(limit - total, store.room)",
        "leaving = super().take(limit - total)",
        RESUME,
    ),
    Mutant(
        "the peer is asked only once how far it got",
        "mux/retaining.py",
        "self.asked = self.is_stalled = False\n        self._look()",
        "self.is_stalled = False\n        self._look()",
        (*RESUME, "tests/connection/test_resume_stalls.py"),
    ),
    Mutant(
        "what came does not move the position",
        "rsocket/resumption.py",
        'frame[:4] != b"\\0\\0\\0\\0":\n                received += len(frame)',
        'frame[:4] != b"\\0\\0\\0\\0":\n                received += 0',
        RESUME,
    ),
    Mutant(
        "what the peer has is sent again",
        "rsocket/resumption.py",
        "self._trim(store, position)\n        self._outbox.again(first)",
        "self._outbox.again(first)",
        RESUME,
    ),
    Mutant(
        "a client that lost frames may come back",
        "rsocket/resumption.py",
        "if first > self.received:",
        "if first > self.received + 2**31:",
        RESUME,
    ),
    Mutant(
        "a server that answered and did not count is believed",
        "rsocket/resumption.py",
        "if position < self.answered:",
        "if position < 0:",
        ("tests/conformance/test_resume_uncounted.py",),
    ),
    Mutant(
        "a RESUME that was recorded ends a session that waits",
        "connection/sessions.py",
        "if connection.is_suspended and not isinstance(refusal, ReplayedResume):",
        "if connection.is_suspended:",
        ("tests/conformance/test_resume_replayed.py",),
    ),
    Mutant(
        "the close that was announced is not said again",
        "rsocket/session.py",
        "if self.has_announced:",
        "if self.has_announced and not self.can_resume:",
        ("tests/rsocket/test_resumption_limits.py", "tests/conformance/test_resume_1_0_transports.py"),
    ),
    # Waiting and leaving
    # No peer can see the next one today: who leaves for good keeps nothing any more, so that no lane waits for room.
    Mutant(
        "the last word leaves while lanes wait for room among what is kept",
        "mux/outbox.py",
        "if self._last is not None and not (frames or turns):",
        "if self._last is not None and not frames:",
        (*OUTBOX, *STORE),
    ),
    Mutant(
        "urgent frames that were held leave behind a refusal",
        "mux/outbox.py",
        "self._held = False\n            self._urgent.clear()",
        "self._held = False",
        (*OUTBOX, *STORE, "tests/conformance/test_rsx_setup.py"),
    ),
    Mutant(
        "who came last is the next one to be woken",
        "connection/waiting.py",
        "self.first = self._others.popitem(last=False)[1] if self._others else None",
        "self.first = self._others.popitem()[1] if self._others else None",
        ("tests/connection/test_waiting.py",),
    ),
    Mutant(
        "any answer shows that everything was heard",
        "mux/outbox.py",
        "if lane.left and self._tail == id(lane):",
        "if lane.left:",
        OUTBOX,
    ),
    # Cancelling, and what ends a stream
    Mutant(
        "CANCEL leaves the stream where it was",
        "rsocket/inbound.py",
        "self._drop(stream)\n        if known and not ended:",
        "if known and not ended:",
        CANCELS,
    ),
    Mutant(
        "what waits for a cancelled stream is sent",
        "rsocket/inbound.py",
        "stream.request = None\n        self._outbox.discard(stream)",
        "stream.request = None",
        CANCELS,
    ),
    Mutant(
        "what waits for a cancelled half is sent",
        "rsocket/inbound.py",
        "self._outbox.discard(stream)\n        self._outbound.keep_credit(stream)",
        "self._outbound.keep_credit(stream)",
        CANCELS,
    ),
    Mutant(
        "CANCEL of a request that never left",
        "rsocket/outbound.py",
        "if stream.left:\n                self._outbox.put_urgent",
        "if stream.id:\n                self._outbox.put_urgent",
        CANCELS,
    ),
    Mutant(
        "an error does not end the stream",
        "rsocket/outbound.py",
        "error.data)))\n        self._table.end(stream)",
        "error.data)))",
        CANCELS,
    ),
    Mutant(
        "a completion closes nothing",
        "rsocket/outbound.py",
        "stream.open &= BOTH & ~move.closes",
        "stream.open &= BOTH",
        STREAMS,
    ),
    Mutant(
        "half payloads that end are counted for ever",
        "rsocket/streams.py",
        "self.reassembling -= stream.assembly.size",
        "self.reassembling -= 0",
        ("tests/conformance/test_limits.py",),
    ),
    # Old peers
    Mutant(
        "an answer of 0.2 without NEXT is dropped",
        "rsocket/peers_half.py",
        "elif frame.next or (self.dialect.bare_payload_is_item",
        "elif frame.next or (not complete and self.dialect.bare_payload_is_item",
        STREAMS,
    ),
    Mutant(
        "a server that asks first still learns its client's parity",
        "rsocket/streams.py",
        "        self.learns = False  # ALL-RCT-12",
        "        # ALL-RCT-12",
        ("tests/conformance/test_parity.py",),
    ),
    Mutant(
        "a server learns the parity anew from every request",
        "rsocket/streams.py",
        "        self.learns = False\n        parity =",
        "        parity =",
        ("tests/conformance/test_parity.py",),
    ),
    Mutant(
        "four zero bytes end a channel in the midst of a payload",
        "rsocket/inbound.py",
        "if frame.complete and stream.assembly is None and",
        "if frame.complete and",
        ("tests/conformance/test_old_channels.py",),
    ),
    Mutant(
        "a fragment size that is given is for new peers only",
        "rsocket/beginning.py",
        "if not self._own_size and ",
        "if ",
        ("tests/conformance/test_uncut.py",),
    ),
    Mutant(
        "cancels cost the peer nothing",
        "rsocket/lease.py",
        "self._tokens -= 1",
        "self._tokens -= 0",
        ("tests/rsocket/test_lease.py", "tests/conformance/test_limits.py"),
    ),
    Mutant(
        "an id is used again before its cancel is acknowledged",
        "streamux/exchanges.py",
        "self.mine[exchange.id] = LOCKED",
        "self.mine.pop(exchange.id, None)",
        ("tests/streamux/test_session.py", "tests/streamux/test_ids_never_collide.py"),
    ),
    # What is on the disk
    Mutant(
        "a sink drops the attempts of another",
        "replay/ledger.py",
        "if stage is not None and stage.sink == sink]",
        "if stage is not None]",
        LEDGER,
    ),
    Mutant(
        "a sink promotes the attempts of another",
        "replay/ledger.py",
        "if stage is None or stage.sink != sink:",
        "if stage is None:",
        LEDGER,
    ),
    Mutant(
        "what was rolled back is said to be durable",
        "replay/segments.py",
        "self._durable = mark.durable",
        "pass",
        SEGMENTS,
    ),
    Mutant(
        "of the files that are rolled back the oldest goes first",
        "replay/segments.py",
        "for late in reversed(fresh):",
        "for late in fresh:",
        SEGMENTS,
    ),
    # Failures of handlers
    Mutant(
        "a second failure of a handler is taken for the first",
        "connection/fault_log.py",
        "key = (handler, kind, line, place)",
        "key = handler",
        FAILURES,
    ),
    Mutant(
        "failures are told apart without a bound",
        "connection/fault_log.py",
        "if known is None and len(self._known) < DIFFERENT:",
        "if known is None:",
        FAILURES,
    ),
    Mutant(
        "the last repeats of a server are never told",
        "server/serving.py",
        "stack.callback(server.tell_rest)",
        "pass",
        FAILURES,
    ),
    Mutant(
        "the last repeats of a client are never told",
        "connection/engine.py",
        "self.faults.own.tell_rest(trio.current_time())",
        "pass",
        FAILURES,
    ),
    Mutant(
        "reports are cancelled with their connection",
        "connection/reporting.py",
        "scope = trio.CancelScope(shield=True)",
        "scope = trio.CancelScope()",
        FAILURES,
    ),
    Mutant(
        "reports outlive their connection",
        "connection/ending.py",
        "hurry(engine)",
        "pass",
        FAILURES,
    ),
    Mutant(
        "what a handler chose to tell is a failure",
        "connection/handlers.py",
        "return told.is_fault if isinstance(told, StreamError) else not is_the_end(engine, told)",
        "return not is_the_end(engine, told)",
        FAILURES,
    ),
    # Decorators
    Mutant(
        "arguments are those of the wrapped function",
        "forms.py",
        "return inspect.signature(function, follow_wrapped=False)",
        "return inspect.signature(function)",
        DECORATED,
    ),
    Mutant(
        "a coroutine that was cancelled before it began is left",
        "connection/handlers.py",
        "if inspect.iscoroutine(self._waiting):",
        "if False:",
        DECORATED,
    ),
    # Time
    Mutant(
        "an expired lease allows requests",
        "rsocket/lease.py",
        "if now >= self._expires or self._left < cost:",
        "if self._left < cost:",
        ("tests/rsocket/test_lease.py",),
    ),
    Mutant(
        "silence is noticed a moment late",
        "rsocket/keepalive.py",
        "if now >= self._heard + self.max_lifetime:",
        "if now > self._heard + self.max_lifetime:",
        ("tests/rsocket/test_keepalive.py",),
    ),
)
