"use strict";
// What the JavaScript peers do: the behaviours that they serve, and the commands that they carry out.
// README.md, one folder up, lists both.

const {
  decodeCompositeMetadata,
  decodeRoutes,
  encodeAndAddWellKnownMetadata,
  encodeRoute,
  WellKnownMimeType,
} = require("rsocket-composite-metadata");
const { ErrorCodes, RSocketError } = require("rsocket-core");

// The class is compiled so that its instances are plain Errors, whose code the library does not send.
function coded(code, message) {
  return Object.setPrototypeOf(new RSocketError(code, message), RSocketError.prototype);
}

const COMPOSITE = WellKnownMimeType.MESSAGE_RSOCKET_COMPOSITE_METADATA.string;
const ROUTING = WellKnownMimeType.MESSAGE_RSOCKET_ROUTING.string;
const MAX_REQUEST_N = 0x7fffffff;
const LAST_HOLD = 100;

// Seen by this process as a responder, on all connections.
const seen = { cancels: 0, fnf: [], push: [], credits: [], setup: null };

function pattern(size) {
  const bytes = Buffer.alloc(size);
  for (let i = 0; i < size; i++) bytes[i] = i % 251;
  return bytes;
}

// ---- what a source of items needs: credit, and room for others between its items

class Source {
  // `sink` takes onNext, onComplete and onError; `next` gives an item, null at the end, undefined for "not yet".
  constructor(sink, next, { batch = 64, pause = 0 } = {}) {
    Object.assign(this, { sink, next, batch, pause, credit: 0, done: false, timer: null });
  }

  request(n) {
    seen.credits.push(n);
    this.credit += n;
    this.wake();
  }

  wake() {
    if (this.timer === null && !this.done) {
      this.timer = this.pause ? setTimeout(() => this.send(), this.pause) : setImmediate(() => this.send());
    }
  }

  send() {
    this.timer = null;
    for (let sent = 0; !this.done && sent < this.batch; sent++) {
      let item;
      try {
        // The end needs no credit, the next item does; `next` is told which of them may come.
        item = this.next(this.credit > 0);
      } catch (error) {
        this.done = true;
        return this.sink.onError(error);
      }
      if (item === undefined) return;
      if (item === null) {
        this.done = true;
        return this.sink.onComplete();
      }
      this.credit--;
      this.sink.onNext(item, false);
    }
    this.wake();
  }

  cancel() {
    if (!this.done) {
      this.done = true;
      seen.cancels++;
    }
  }

  onExtension() {}
}

// The items of an iterator, as far as there is credit. One is held, so that the end is known without credit.
function from(iterator) {
  let held;
  let error = null;
  const advance = () => {
    try {
      held = iterator.next();
    } catch (thrown) {
      error = thrown;
    }
  };
  advance();
  return (may) => {
    if (error !== null) throw error;
    if (held.done) return null;
    if (!may) return undefined;
    const item = held.value;
    advance();
    return item;
  };
}

// Items that are pushed in by someone else.
class Queue {
  constructor() {
    Object.assign(this, { items: [], ended: false, error: null });
    this.next = (may) => {
      if (this.items.length > 0) return may ? this.items.shift() : undefined;
      if (this.error !== null) throw this.error;
      return this.ended ? null : undefined;
    };
  }
}

// ---- behaviours

const text = (payload) => (payload.data ? payload.data.toString() : "");
const answer = (value) => ({ data: Buffer.from(typeof value === "string" ? value : JSON.stringify(value)) });

function routeOf(payload, metadataMime) {
  if (!payload.metadata || payload.metadata.length === 0) return null;
  if (metadataMime === ROUTING) return [...decodeRoutes(payload.metadata)][0];
  if (metadataMime !== COMPOSITE) return null;
  for (const entry of decodeCompositeMetadata(payload.metadata)) {
    if (entry.mimeType === ROUTING) return [...decodeRoutes(entry.content)][0];
  }
  return null;
}

function pick(table, payload, metadataMime) {
  const route = routeOf(payload, metadataMime);
  const found = route === null ? table.echo : table[route];
  if (!found) throw coded(ErrorCodes.REJECTED, `no route ${route}`);
  return found;
}

const later = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const failure = (message) => coded(ErrorCodes.APPLICATION_ERROR, message);

const RESPONSES = {
  echo: (payload) => ({ data: payload.data, metadata: payload.metadata }),
  error: (payload) => {
    throw failure(text(payload));
  },
  large: (payload) => {
    if (!payload.data.equals(pattern(271828))) throw failure(`${payload.data.length} bytes, and not the right ones`);
    return { data: pattern(314159) };
  },
  check: ({ data }) => answer({ size: data?.length ?? 0, same: !data || data.equals(pattern(data.length)) }),
  sleep: async (payload) => {
    await later(Number(text(payload)));
    return answer("slept");
  },
  cancels: () => answer(seen.cancels),
  credits: () => answer(seen.credits.splice(0)),
  received: () => answer({ fnf: seen.fnf.splice(0), push: seen.push.splice(0) }),
  setup: () => answer(seen.setup),
  call: async (payload, peer) => answer(await new Commander(peer, COMPOSITE).run(JSON.parse(text(payload)))),
};

const STREAMS = {
  count: (payload) => from(numbers(Number(text(payload)))),
  infinite: () => from(numbers(Infinity)),
  silent: () => () => undefined,
  sizes: (payload) => from(sizes(text(payload))),
  fail: (payload) => from(failing(Number(text(payload)))),
};

function* numbers(end) {
  for (let i = 0; i < end; i++) yield answer(String(i));
}

function* sizes(list) {
  for (const size of list.split(",")) yield { data: pattern(Number(size)) };
}

function* failing(count) {
  yield* numbers(count);
  throw failure(`failed after ${count}`);
}

// Each is given what to put answers into, and returns what to do with each message and at the end of them.
const CHANNELS = {
  echo: (out) => [(payload) => out.items.push(payload), () => (out.ended = true)],
  pingpong: (out) => [
    (payload) => out.items.push({ data: pattern(parseInt(text(payload), 10)) }),
    () => (out.ended = true),
  ],
  sum: (out) => {
    let sum = 0;
    return [
      (payload) => (sum += payload.data?.length ?? 0),
      () => {
        out.items.push(answer(sum));
        out.ended = true;
      },
    ];
  },
  fail: (out) => [(payload) => (out.error = failure(text(payload))), () => {}],
  half: (out) => {
    out.ended = true;
    return [(payload) => seen.fnf.push(hex(payload.data) ?? ""), () => {}];
  },
  stop: (out, stream) => [
    () => {
      if (out.ended) return;
      stream.cancel();
      out.items.push(answer("stopped"));
      out.ended = true;
    },
    () => {},
  ],
};

function responder(metadataMime, peer = () => null) {
  return {
    requestResponse(payload, stream) {
      let open = true;
      Promise.resolve()
        .then(() => pick(RESPONSES, payload, metadataMime)(payload, peer()))
        .then(
          (reply) => open && stream.onNext(reply, true),
          (error) => open && stream.onError(error)
        )
        .finally(() => (open = false));
      return {
        cancel() {
          if (open) seen.cancels++;
          open = false;
        },
        onExtension() {},
      };
    },
    requestStream(payload, initialRequestN, stream) {
      const next = pick(STREAMS, payload, metadataMime)(payload);
      const isEndless = routeOf(payload, metadataMime) === "infinite";
      const source = new Source(stream, next, isEndless ? { batch: 16, pause: 1 } : {});
      seen.credits = [];
      source.request(initialRequestN);
      return source;
    },
    requestChannel(payload, initialRequestN, isCompleted, stream) {
      const out = new Queue();
      const source = new Source(stream, out.next);
      const [onMessage, onEnd] = pick(CHANNELS, payload, metadataMime)(out, stream);
      seen.credits = [];
      setImmediate(() => {
        if (payload.data && payload.data.length > 0) onMessage(payload, true);
        if (isCompleted) onEnd();
        else stream.request(4);
        source.request(initialRequestN);
      });
      return {
        request: (n) => source.request(n),
        cancel: () => source.cancel(),
        onExtension() {},
        onNext(message, isComplete) {
          onMessage(message, false);
          if (isComplete) onEnd();
          else stream.request(1);
          source.wake();
        },
        onComplete() {
          onEnd();
          source.wake();
        },
        onError() {
          source.cancel();
        },
      };
    },
    fireAndForget(payload, stream) {
      seen.fnf.push(hex(payload.data) ?? "");
      return { cancel() {}, onExtension() {} };
    },
  };
}

// ---- commands

const hex = (bytes) => (bytes === null || bytes === undefined ? null : bytes.toString("hex"));

class Commander {
  constructor(socket, metadataMime) {
    Object.assign(this, { socket, metadataMime });
  }

  async run(command) {
    const known = ["request_response", "request_stream", "request_channel", "fire_and_forget", "many"];
    if (!known.includes(command.do)) return { ok: false, code: null, error: `unsupported: ${command.do}` };
    try {
      return await this[command.do](command);
    } catch (error) {
      return failed(error);
    }
  }

  payload({ data = "", size, route = null, metadata = null }) {
    let encoded = metadata === null ? undefined : Buffer.from(metadata, "hex");
    if (route !== null) {
      const tags = encodeRoute(route);
      encoded =
        this.metadataMime === COMPOSITE
          ? Buffer.concat([
              encodeAndAddWellKnownMetadata(Buffer.alloc(0), WellKnownMimeType.MESSAGE_RSOCKET_ROUTING, tags),
              encoded ?? Buffer.alloc(0),
            ])
          : tags;
    }
    return { data: size === undefined ? Buffer.from(data, "hex") : pattern(size), metadata: encoded };
  }

  request_response(command) {
    return new Promise((resolve) => {
      let reply = null;
      const done = () => resolve({ ok: true, data: hex(reply?.data), metadata: hex(reply?.metadata) });
      const call = this.socket.requestResponse(this.payload(command), {
        onNext(payload, isComplete) {
          reply = payload;
          if (isComplete) done();
        },
        onComplete: done,
        onError: (error) => resolve(failed(error)),
        onExtension() {},
      });
      cancelLater(command, call, () => resolve({ ok: true, cancelled: true }));
    });
  }

  request_stream(command) {
    return new Promise((resolve) => {
      const taker = new Taker(command, resolve);
      taker.open((n) => this.socket.requestStream(this.payload(command), n, taker));
    });
  }

  request_channel(command) {
    return new Promise((resolve) => {
      const { items = [], pingpong = false, complete = true } = command;
      const out = new Queue();
      const messages = items.map((item) => this.payload(typeof item === "string" ? { data: item } : item));
      const count = pingpong ? 1 : messages.length;
      const isCompleted = complete && messages.length === 0;
      const extra = { granted: 0, sent: 0, stopped: false };
      let result = null;
      // Both halves have to end: a responder that is done may still be listening.
      const settle = () => {
        if (result === null) return;
        if (source.done || !complete || !result.completed) {
          resolve({ ...result, ...extra, stopped: extra.stopped && result.ok });
        }
      };
      const push = (n) => {
        out.items.push(...messages.splice(0, n));
        out.ended = complete && messages.length === 0;
        source.wake();
      };
      const sink = {
        onNext(payload, isComplete) {
          extra.sent++;
          taker.subscription.onNext(payload, isComplete);
        },
        onComplete() {
          taker.subscription.onComplete();
          settle();
        },
        onError: (error) => taker.subscription.onError(error),
      };
      const source = new Source(sink, out.next);
      const taker = new Taker(command, (taken) => {
        result = taken;
        settle();
      });
      taker.onItem = () => pingpong && push(1);
      taker.request = (n) => {
        extra.granted += n;
        source.request(n);
      };
      taker.cancel = () => {
        // Also called for an error of the peer's and for a cancel of our own, neither of which stops our half alone.
        extra.stopped = !source.done && !taker.stopping && (!taker.over || result?.completed === true);
        source.done = true;
        setImmediate(settle);
      };
      taker.open((n) => this.socket.requestChannel(this.payload(command), n, isCompleted, taker));
      source.done = isCompleted;
      if (!isCompleted) setImmediate(() => push(count));
    });
  }

  fire_and_forget(command) {
    return new Promise((resolve) => {
      const done = () => resolve({ ok: true });
      this.socket.fireAndForget(this.payload(command), {
        onComplete: done,
        onError: (error) => resolve(failed(error)),
      });
    });
  }

  async many(command) {
    const all = Array.from({ length: command.count }, () => this.request_response(command));
    const replies = await Promise.all(all);
    const errors = replies.filter((reply) => !reply.ok);
    const answers = replies.filter((reply) => reply.ok).map((reply) => reply.data);
    return { ok: errors.length === 0, answers: answers.length, different: [...new Set(answers)], errors };
  }
}

function failed(error) {
  const code = typeof error.code === "number" ? error.code >>> 0 : null;
  return { ok: false, code, error: String(error.message ?? error) };
}

function cancelLater(command, call, then) {
  if (command.cancel_after === undefined) return;
  setTimeout(() => {
    call.cancel();
    then();
  }, command.cancel_after);
}

// Takes items with the credit that a command asks for, and says what came.
class Taker {
  constructor(command, resolve) {
    Object.assign(this, { command, resolve, items: [], metadata: [], credit: 0, surplus: 0, over: false, stopping: false });
    this.grants = [command.initial_n ?? MAX_REQUEST_N, ...(command.later ?? [])];
    this.onItem = () => {};
  }

  open(start) {
    this.credit = this.grants.shift();
    this.subscription = start(this.credit);
    cancelLater(this.command, { cancel: () => this.stop() }, () => {});
  }

  finish(result) {
    if (this.over) return;
    this.over = true;
    const { items, metadata, surplus } = this;
    this.resolve({ ok: true, completed: false, cancelled: false, items, metadata, surplus, ...result });
  }

  stop() {
    if (this.over) return;
    this.stopping = true;
    this.subscription.cancel();
    this.finish({ cancelled: true });
  }

  onNext(payload, isComplete) {
    this.items.push(hex(payload.data) ?? "");
    this.metadata.push(hex(payload.metadata));
    if (--this.credit < 0) this.surplus++;
    this.onItem();
    if (isComplete) return this.finish({ completed: true });
    if (this.items.length === this.command.take) return this.stop();
    if (this.credit === 0) {
      // The last credit may be followed by the end, and by nothing else.
      setTimeout(() => this.more(), this.command.hold ?? (this.grants.length > 0 ? 0 : LAST_HOLD));
    }
  }

  more() {
    if (this.over) return;
    if (this.grants.length === 0) return this.stop();
    const n = this.grants.shift();
    this.credit += n;
    this.subscription.request(n);
  }

  onComplete() {
    this.finish({ completed: true });
  }

  onError(error) {
    this.finish(failed(error));
  }

  onExtension() {}

  // Only a channel's responder calls these.
  request() {}

  cancel() {}
}

module.exports = { COMPOSITE, Commander, Queue, Source, coded, from, responder, seen };
