"""Faults of credit, resumption, cancelling and time, each easy to overlook, and the tests that must find them."""

from __future__ import annotations

import attrs


@attrs.frozen
class Mutant:
    """A fault: in ``function``, wherever in the package it stands, the text ``old`` becomes ``new``.

    ``function`` is a qualified name, as in ``Class.method``. One function of that name has the text, and has it once.
    Of the test files at least one must fail then.
    """

    name: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...]


CREDIT = ("tests/mux/test_flow_control.py", "tests/connection/test_streams.py")
STORE = ("tests/mux/test_retransmission.py",)
RESUME = (
    *STORE,
    "tests/rsocket/test_resume_handshake.py",
    "tests/rsocket/test_resume_positions.py",
    "tests/connection/test_resume_sessions.py",
)
STREAMS = ("tests/rsocket/test_session_streams.py", "tests/connection/test_streams.py")
CANCELS = (
    *STREAMS,
    "tests/reliability/test_cancelled_items.py",
    "tests/reliability/test_cancel_sweep.py",
)

OUTBOX = ("tests/mux/test_outbox.py", "tests/connection/test_link_at_once.py")
LEDGER = ("tests/replay/test_ledgers.py",)
LOGS = ("tests/replay/test_logs.py",)
FILES = (*LOGS, "tests/replay/test_log_files.py")
SHARED = (*FILES, "tests/replay/test_shared_logs.py")
PARTS = ("tests/rsocket/test_fast_path_fragments.py",)
FAILURES = ("tests/connection/test_failures.py", "tests/connection/test_fault_log.py")
DECORATED = ("tests/connection/test_decorated.py",)
ACCESS = ("tests/services/test_access.py",)
DEADLINES = ("tests/services/test_deadlines.py",)
INTERCEPTORS = ("tests/services/test_interceptors.py",)
TYPED = ("tests/services/test_typed_handlers.py", "tests/services/test_codec_choice.py")
CONTRACTS = ("tests/services/test_contracts.py", "tests/services/test_channel_contracts.py")
LEASES = ("tests/rsocket/test_lease.py", "tests/rsocket/test_session_connection.py")
HTTP2 = ("tests/transports/http2/test_attacks.py",)
COMPLETED = ("tests/connection/test_old_peers.py",)
MUTANTS = (
    # Credit
    Mutant(
        "top up one item late",
        "Window.use",
        "return self.used >= self.half",
        "return self.used > self.half",
        CREDIT,
    ),
    Mutant(
        "items that are read one by one use no credit",
        "Inbox._is_half_used",
        "read = self._turn - self._left + more",
        "read = more",
        CREDIT,
    ),
    Mutant(
        "grant what was used once more",
        "Window.refill",
        "used, self.used = self.used, 0",
        "used = self.used",
        CREDIT,
    ),
    Mutant(
        "sending takes no credit",
        "StreamSender.send_item",
        "stream.room -= 1",
        "stream.room -= 0",
        STREAMS,
    ),
    Mutant(
        "sending an item like the one before takes no credit",
        "StreamSender.offer_item",
        "stream.room -= 1",
        "stream.room -= 0",
        STREAMS,
    ),
    Mutant(
        "receiving takes no credit",
        "StreamReceiver.take_item",
        "stream.granted -= 1\n        elif",
        "stream.granted -= 0\n        elif",
        STREAMS,
    ),
    Mutant(
        "receiving many at once takes no credit",
        "StreamReceiver.take_items",
        "stream.granted -= len(payloads)",
        "stream.granted -= 0",
        (*STREAMS, "tests/rsocket/test_fast_path.py"),
    ),
    Mutant(
        "every item may be early",
        "StreamReceiver.take_item",
        "stream.ahead = True",
        "stream.ahead = False",
        STREAMS,
    ),
    Mutant(
        "one item more than was granted",
        "StreamReceiver.take_item",
        "if stream.granted > 0:\n            stream.granted -= 1",
        "if stream.granted >= 0:\n            stream.granted -= 1",
        STREAMS,
    ),
    Mutant(
        "a part in between counts for nothing",
        "StreamReceiver._join",
        "table.reassembling += size",
        "table.reassembling += 0",
        PARTS,
    ),
    Mutant(
        "large parts that came together count for nothing",
        "StreamReceiver.take_large_parts",
        "self.table.reassembling += stream.assembly.add_large(parts)",
        "stream.assembly.add_large(parts)",
        PARTS,
    ),
    Mutant(
        "what is granted later is not counted",
        "StreamSender.request_n",
        "stream.granted += amount",
        "stream.granted += 0",
        STREAMS,
    ),
    Mutant(
        "REQUEST_N replaces what was left",
        "StreamReceiver.on_request_n",
        "stream.room += frame.request_n",
        "stream.room = frame.request_n",
        STREAMS,
    ),
    # Resumption
    Mutant(
        "the store's position lags by a byte for each frame",
        "FrameStore.append",
        "self.position += len(frame)",
        "self.position += len(frame) - 1",
        RESUME,
    ),
    Mutant(
        "a frame that was confirmed to its last byte is kept",
        "FrameStore.trim",
        "while frames and first + len(frames[0]) <= position:",
        "while frames and first + len(frames[0]) < position:",
        RESUME,
    ),
    Mutant(
        "a position that was never reached empties the store",
        "FrameStore.trim",
        "if not self.first < position <= self.position:",
        "if not self.first < position:",
        RESUME,
    ),
    Mutant(
        "a position inside of a frame is served",
        "FrameStore.serves",
        "return here == position",
        "return here >= position",
        RESUME,
    ),
    Mutant(
        "the oldest frame is not sent again",
        "RetainingOutbox.send_again",
        "self._resending = deque(self.store.kept())",
        "self._resending = deque(self.store.kept()[1:])",
        RESUME,
    ),
    Mutant(
        "frames without a position are kept",
        "RetainingOutbox.take",
        "if self._note_leaving(kept):\n                store.append(kept)",
        "if kept:\n                store.append(kept)",
        RESUME,
    ),
    Mutant(
        "the store has no bound",
        "RetainingOutbox.take",
        "leaving = super().take(limit - total, store.room)",
        "leaving = super().take(limit - total)",
        RESUME,
    ),
    Mutant(
        "the peer is asked only once how far it got",
        "RetainingOutbox.on_trimmed",
        "self.asked = self.is_stalled = False\n        self._look()",
        "self.is_stalled = False\n        self._look()",
        (*RESUME, "tests/connection/test_resume_stalls.py"),
    ),
    Mutant(
        "what came does not move the position",
        "ResumePositions.count",
        'frame[:4] != b"\\0\\0\\0\\0":\n                received += len(frame)',
        'frame[:4] != b"\\0\\0\\0\\0":\n                received += 0',
        RESUME,
    ),
    Mutant(
        "what the peer has is sent again",
        "ResumePositions.go_on",
        "self._trim(store, position)\n        self._outbox.send_again(first)",
        "self._outbox.send_again(first)",
        RESUME,
    ),
    Mutant(
        "a client that lost frames may come back",
        "ResumePositions.check",
        "if first > self.received:",
        "if first > self.received + 2**31:",
        RESUME,
    ),
    Mutant(
        "a server that answered and did not count is believed",
        "ResumePositions.go_on",
        "if position < self.answered:",
        "if position < 0:",
        ("tests/connection/test_resume_sessions.py",),
    ),
    Mutant(
        "a RESUME that was recorded ends a session that waits",
        "SessionRegistry.resume",
        "if connection.is_suspended and not isinstance(refusal, ReplayedResume):",
        "if connection.is_suspended:",
        ("tests/connection/test_resume_sessions.py",),
    ),
    Mutant(
        "the close that was announced is not said again",
        "Session.restart",
        "if self.has_announced:",
        "if self.has_announced and not self.can_resume:",
        ("tests/rsocket/test_resume_positions.py", "tests/connection/test_resume_sessions.py"),
    ),
    Mutant(
        "tokens of sessions that wait count for nothing",
        "ResumeHandshake.agree_as_server",
        "self.setup_size = size",
        "self.setup_size = 0",
        ("tests/connection/test_resume.py", "tests/connection/test_live_bytes.py"),
    ),
    # Waiting and leaving
    # No peer can see the next one today: who leaves for good keeps nothing any more, so that no queue waits for room.
    Mutant(
        "the last word leaves while queues wait for room among what is kept",
        "Outbox.take",
        "if self._last is not None and not (frames or turns):",
        "if self._last is not None and not frames:",
        (*OUTBOX, *STORE),
    ),
    Mutant(
        "urgent frames that were held leave behind a refusal",
        "Outbox.drop_held",
        "self._held = False\n            self._urgent.clear()",
        "self._held = False",
        (*OUTBOX, *STORE, "tests/rsocket/test_session_draft.py"),
    ),
    Mutant(
        "who came last is the next one to be woken",
        "ParkingLot._move_up",
        "self.first = self._others.popitem(last=False)[1] if self._others else None",
        "self.first = self._others.popitem()[1] if self._others else None",
        ("tests/tools/test_parking_lot.py",),
    ),
    Mutant(
        "any answer shows that everything was heard",
        "Outbox.on_answer",
        "if queue.left and self._sole_queue == id(queue):",
        "if queue.left:",
        OUTBOX,
    ),
    # Cancelling, and what ends a stream
    Mutant(
        "CANCEL leaves the stream where it was",
        "StreamReceiver.on_cancel",
        "self._drop(stream)\n        if known and not ended:",
        "if known and not ended:",
        CANCELS,
    ),
    Mutant(
        "what waits for a cancelled stream is sent",
        "StreamReceiver._drop",
        "stream.request = None\n        self._outbox.discard(stream)",
        "stream.request = None",
        CANCELS,
    ),
    Mutant(
        "what waits for a cancelled half is sent",
        "StreamReceiver._half_cancel",
        "self._outbox.discard(stream)\n        self._sender.keep_credit(stream)",
        "self._sender.keep_credit(stream)",
        CANCELS,
    ),
    Mutant(
        "CANCEL of a request that never left",
        "StreamSender.send_cancel",
        "if stream.left:\n                self._outbox.put_urgent",
        "if stream.id:\n                self._outbox.put_urgent",
        CANCELS,
    ),
    Mutant(
        "an error does not end the stream",
        "StreamSender.send_error",
        "self._encode(frame))\n        self._table.end(stream)",
        "self._encode(frame))",
        CANCELS,
    ),
    Mutant(
        "an application can give the sign of a drain",
        "StreamSender.send_error",
        "if frame.code == Rejected.default_code and",
        "if frame.code == 0 and",
        ("tests/rsocket/test_drain_sign.py",),
    ),
    Mutant(
        "a completion closes nothing",
        "StreamSender._complete",
        "stream.open &= BOTH & ~move.closes",
        "stream.open &= BOTH",
        STREAMS,
    ),
    Mutant(
        "half payloads that end are counted for ever",
        "StreamTable.drop_assembly",
        "self.reassembling -= stream.assembly.size",
        "self.reassembling -= 0",
        ("tests/connection/test_limits.py",),
    ),
    # Peers by name, and those that are refused
    Mutant(
        "a request is cut for a peer that takes whole ones",
        "StreamSender._put",
        "if self._dialect.request_fragments or type(frame) is PayloadFrame:",
        "if True:",
        ("tests/client/test_peers.py",),
    ),
    Mutant(
        "any number of refused clients may close first",
        "RefusedClients.wait_closed",
        "if self._waiting >= MAX_REFUSED:",
        "if self._waiting < 0:",
        ("tests/server/test_refused_clients.py",),
    ),
    Mutant(
        "the place of a refused client is never free again",
        "RefusedClients.wait_closed",
        "self._waiting -= 1",
        "self._waiting -= 0",
        ("tests/server/test_refused_clients.py",),
    ),
    # Old peers
    Mutant(
        "an answer of 0.2 without NEXT is dropped",
        "StreamReceiver._take",
        "elif frame.next or (self.dialect.bare_payload_is_item",
        "elif frame.next or (not complete and self.dialect.bare_payload_is_item",
        STREAMS,
    ),
    Mutant(
        "a server that asks first still learns its client's parity",
        "StreamTable.new",
        "self._keep_parity()  # ALL-RCT-12",
        "pass  # ALL-RCT-12",
        ("tests/connection/test_old_peers.py",),
    ),
    Mutant(
        "a server learns the parity anew from every request",
        "StreamTable.learn",
        "        self.learns = False\n        parity =",
        "        parity =",
        ("tests/connection/test_old_peers.py",),
    ),
    Mutant(
        "four zero bytes end a channel in the midst of a payload",
        "StreamReceiver._channel_item",
        "if frame.complete and stream.assembly is None and",
        "if frame.complete and",
        ("tests/connection/test_old_peers.py",),
    ),
    Mutant(
        "a fragment size that is given is for new peers only",
        "ServerHandshake.joins_fragments",
        "return self._own_size or ",
        "return ",
        ("tests/connection/test_old_peers.py",),
    ),
    Mutant(
        "cancels cost the peer nothing",
        "CancelBudget.spend",
        "self._tokens -= 1",
        "self._tokens -= 0",
        ("tests/rsocket/test_lease.py", "tests/connection/test_limits.py"),
    ),
    Mutant(
        "an id is used again before its cancel is acknowledged",
        "RequestTable.lock",
        "self.mine[exchange.id] = LOCKED",
        "self.mine.pop(exchange.id, None)",
        ("tests/streamux/test_session.py", "tests/streamux/test_ids_never_collide.py"),
    ),
    Mutant(
        "a handler of 0.2 that completed reads on for ever",
        "Channel.send_eof",
        "inbox.end(None)",
        "pass",
        COMPLETED,
    ),
    # Leases
    Mutant(
        "requests that cross a lease are refused",
        "Leases.__init__",
        "Permits(CROSSING) if not client",
        "Permits() if not client",
        LEASES,
    ),
    Mutant(
        "requests that cross the second lease of a client are refused",
        "Leases.grant",
        "Permits(CROSSING)",
        "Permits()",
        LEASES,
    ),
    Mutant(
        "the side that receives leases goes on with the former one",
        "Leases.receive",
        "Permits()",
        "Permits(CROSSING)",
        LEASES,
    ),
    Mutant(
        "a former lease outlives its own time",
        "Permits.grant",
        "min(self._expires, now + self._crossing)",
        "now + self._crossing",
        LEASES,
    ),
    Mutant(
        "a former lease is honoured until its own time is over",
        "Permits.grant",
        "min(self._expires, now + self._crossing)",
        "self._expires",
        LEASES,
    ),
    Mutant(
        "a lease that stops requests leaves those of the one before",
        "Permits.grant",
        "            self._former = 0\n",
        "            pass\n",
        LEASES,
    ),
    Mutant(
        "a rest of a former lease pays for any request",
        "Permits.take",
        "if self._former >= cost and",
        "if self._former > 0 and",
        LEASES,
    ),
    # HTTP/2
    Mutant(
        "windows opened byte by byte cost nothing",
        "Multiplexed._opens_window",
        "if window < SMALL_WINDOW:",
        "if False:",
        HTTP2,
    ),
    Mutant(
        "resets of the peer cost nothing",
        "Multiplexed._reset",
        "self._short_streams.spend(trio.current_time())",
        "pass",
        HTTP2,
    ),
    Mutant(
        "resets for a fault of the peer's cost nothing",
        "Multiplexed._abort",
        "self._short_streams.spend(trio.current_time())",
        "pass",
        HTTP2,
    ),
    Mutant(
        "streams without a byte cost nothing",
        "Multiplexed.close",
        "if not stream.has_data and not self._client:",
        "if False:",
        HTTP2,
    ),
    Mutant(
        "requests that are answered with a refusal cost nothing",
        "Multiplexed.refuse",
        "self._short_streams.spend(trio.current_time())",
        "pass",
        HTTP2,
    ),
    Mutant(
        "requests beyond those that may be open cost nothing",
        "Multiplexed.refuse_quietly",
        "self._short_streams.spend(trio.current_time())",
        "pass",
        HTTP2,
    ),
    Mutant(
        "padding is content",
        "Multiplexed._begin_data",
        "if not (content or self._body_ends):",
        "if False:",
        HTTP2,
    ),
    Mutant(
        "HEADERS cost nothing",
        "Multiplexed._count_block",
        "self.empty_frames.spend(trio.current_time())",
        "pass",
        HTTP2,
    ),
    Mutant(
        "empty HEADERS begin no header block",
        "Multiplexed._count_block",
        "self._block += length + 1",
        "self._block += length",
        ("tests/transports/http2/test_rules.py",),
    ),
    Mutant(
        "an idle client is kept by any frame",
        "AcceptedHttp2.accept",
        "connection.idle_since + self._idle_time",
        "trio.current_time() + self._idle_time",
        ("tests/transports/http2/test_windows.py",),
    ),
    # Logs and ledgers
    Mutant(
        "the CRC of a row is not compared",
        "is_whole",
        "return bool(crc == crc32(_PLACE.pack(*place)) and (not columns or place[-1] == crc_of_body(columns)))",
        "return bool(crc32(_PLACE.pack(*place)) >= 0)",
        FILES,
    ),
    Mutant(
        "a hole between rows is passed over",
        "places",
        "if position != expected or position + count <= start:",
        "if position + count <= start:",
        FILES,
    ),
    Mutant(
        "times run backwards",
        "Log._append",
        "max(state.time, now if body[1] is None else body[1])",
        "now if body[1] is None else body[1]",
        LOGS,
    ),
    Mutant(
        "an append begins wherever the log ends",
        "Log._append",
        "check_begin(number, group.at, ends[number])",
        "pass",
        LOGS,
    ),
    Mutant(
        "a trim drops the rows above it that were appended with those below",
        "Partition.drop",
        "position + count > before",
        "position >= before",
        LOGS,
    ),
    Mutant(
        "a locked file is given up at once",
        "Log._patiently",
        "if error.errno != errno.EBUSY or trio.current_time() >= since + LOCK_SECONDS:",
        "if True:",
        SHARED,
    ),
    Mutant(
        "a write that was planned later is not the one that counts",
        "check_epoch",
        "if latest > epoch:",
        "if latest < epoch:",
        LEDGER,
    ),
    Mutant(
        "whoever writes owns the sink",
        "Sink._passes_to",
        "if not take_over or query is None:",
        "if False:",
        LEDGER,
    ),
    Mutant(
        "a query whose sink was taken over goes on",
        "Sink._passes_to",
        "if query in json.loads(self.former):\n            raise Invalid(",
        "if False:\n            raise Invalid(",
        LEDGER,
    ),
    Mutant(
        "the last batch counts twice",
        "Sink.after",
        "elif request.batch <= self.batch:",
        "elif request.batch < self.batch:",
        LEDGER,
    ),
    Mutant(
        "an attempt never expires",
        "Ledger._drop_old",
        '"WHERE time <= ?"',
        '"WHERE time < ?1 - ?1"',
        LEDGER,
    ),
    Mutant(
        "a sink promotes the attempts of another",
        "checked",
        "if row is None or row.sink != sink:",
        "if row is None:",
        LEDGER,
    ),
    Mutant(
        "an attempt that is not complete is promoted",
        "checked",
        "if not row.sealed:",
        "if False:",
        LEDGER,
    ),
    # Failures of handlers
    Mutant(
        "a second failure of a handler is taken for the first",
        "FailureLog.note",
        'key = f"{name}, {kind} at {place}"',
        "key = name",
        FAILURES,
    ),
    Mutant(
        "failures are told apart without a bound",
        "FailureLog.note",
        "if key not in self._repeats and len(self._repeats) >= MAX_KINDS:",
        "if False:",
        FAILURES,
    ),
    Mutant(
        "the last repeats of a server are never told",
        "serve_here",
        "stack.callback(server.failure_log.log_repeats)",
        "pass",
        FAILURES,
    ),
    Mutant(
        "the last repeats of a client are never told",
        "_run_client",
        "failures.log_repeats()",
        "pass",
        FAILURES,
    ),
    Mutant(
        "what a handler chose to tell is a failure",
        "is_failure",
        "return error.is_fault if isinstance(error, StreamError) else not is_the_end(error, ended)",
        "return not is_the_end(error, ended)",
        FAILURES,
    ),
    # Decorators
    Mutant(
        "arguments are those of the wrapped function",
        "own_signature",
        "return inspect.signature(function, follow_wrapped=False)",
        "return inspect.signature(function)",
        DECORATED,
    ),
    # Time
    Mutant(
        "an expired lease allows requests",
        "Permits.take",
        "if now >= self._expires or self._left < cost:",
        "if self._left < cost:",
        ("tests/rsocket/test_lease.py",),
    ),
    Mutant(
        "silence is noticed a moment late",
        "KeepaliveTimer.expire",
        "if now >= self.last_heard + self.max_lifetime:",
        "if now > self.last_heard + self.max_lifetime:",
        ("tests/rsocket/test_keepalive.py",),
    ),
    # Typed services
    Mutant(
        "nobody in particular may call",
        "authorise",
        "if call.user is None:",
        "if False:",
        ACCESS,
    ),
    Mutant(
        "what is required need not hold",
        "authorise",
        "if not allowed:",
        "if allowed is None:",
        ACCESS,
    ),
    Mutant(
        "a SETUP without credentials is let in",
        "admission.admit",
        "if required and connection.user is None:",
        "if False:",
        ACCESS,
    ),
    Mutant(
        "the last credentials count instead of the first",
        "credentials_in",
        "for entry in entries:",
        "for entry in reversed([*entries]):",
        ACCESS,
    ),
    Mutant(
        "credentials of a request are not looked at",
        "served",
        "has_credentials = responder._authenticator is not None",
        "pass",
        ACCESS,
    ),
    Mutant(
        "a late answer is sent",
        "within",
        "if trio.current_time() < deadline:\n",
        "if True:\n",
        DEADLINES,
    ),
    Mutant(
        "a handler goes on behind the deadline of its call",
        "within",
        "with trio.CancelScope(deadline=deadline):",
        "with trio.CancelScope():",
        DEADLINES,
    ),
    Mutant(
        "the last interceptor is the outermost",
        "Interception.__aenter__",
        "for interceptor in self._interceptors:",
        "for interceptor in reversed(self._interceptors):",
        INTERCEPTORS,
    ),
    Mutant(
        "an interceptor can't replace an error",
        "Interception.leave",
        "raised = another",
        "pass",
        INTERCEPTORS,
    ),
    Mutant(
        "the first codec writes every answer",
        "codec_of_answer",
        "return find_codec(codecs, str(mime))",
        "return of_request",
        TYPED,
    ),
    Mutant(
        "what no codec covers is read by the first",
        "codec_of_request",
        "raise Invalid(str(error)) from None",
        "return codecs[0]",
        TYPED,
    ),
    Mutant(
        "a contract is served although a method is missing",
        "implemented",
        "if missing:",
        "if False:",
        CONTRACTS,
    ),
)
