"use strict";
// A server of rsocket-js 1.0 with the interactions that the conformance cases need: node rsocket_js_server.js [PORT [ws]].
// Install rsocket-core and rsocket-tcp-server, 1.0.0-alpha.3; for WebSocket also rsocket-websocket-server and ws. It
// prints "listening URI" and serves until it is ended. Sessions can be resumed if RSOCKET_WITH is "resume".

const net = require("net");
const { RSocketServer } = require("rsocket-core");
const { TcpServerTransport } = require("rsocket-tcp-server");

const HOST = "127.0.0.1";
const PORT = Number(process.argv[2] ?? 7878);
const SCHEME = process.argv[3] ?? "tcp";
// Milliseconds that a session waits to be resumed.
const SESSION = 120000;
// Items that are sent before other tasks run.
const BATCH = 64;
// Items that a channel's requester may send before one of them was echoed.
const ITEMS_AHEAD = 4;

// Items, as far as there is credit for them.
class Source {
  // `take` returns the next item or undefined, `isOver` whether none is left and none can come.
  constructor(stream, take, isOver) {
    Object.assign(this, { stream, take, isOver, credit: 0, done: false, scheduled: false });
  }

  request(n) {
    this.credit += n;
    this.wake();
  }

  cancel() {
    this.done = true;
  }

  onExtension() {}

  wake() {
    if (this.scheduled || this.done) return;
    this.scheduled = true;
    setImmediate(() => this.send());
  }

  send() {
    this.scheduled = false;
    for (let sent = 0; sent < BATCH; sent++) {
      if (this.done) return;
      if (this.isOver()) {
        this.done = true;
        return this.stream.onComplete();
      }
      const item = this.credit > 0 ? this.take() : undefined;
      if (item === undefined) return;
      this.credit--;
      this.stream.onNext(item, false);
    }
    this.wake();
  }
}

const responder = {
  // Answers with the request; never answers one that says "silent".
  requestResponse(payload, stream) {
    let open = payload.data?.toString() !== "silent";
    setImmediate(() => open && stream.onNext({ data: payload.data, metadata: payload.metadata }, true));
    return {
      cancel() {
        open = false;
      },
      onExtension() {},
    };
  },

  // Counts, as far as the data says.
  requestStream(payload, initialRequestN, stream) {
    const end = payload.data?.length ? Number(payload.data) : Infinity;
    let next = 0;
    const source = new Source(
      stream,
      () => ({ data: Buffer.from(String(next++)) }),
      () => next === end
    );
    source.request(initialRequestN);
    return source;
  },

  // Sends back each item.
  requestChannel(payload, initialRequestN, isCompleted, stream) {
    const waiting = [payload];
    let ended = isCompleted;
    const source = new Source(
      stream,
      () => waiting.shift(),
      () => ended && waiting.length === 0
    );
    setImmediate(() => {
      if (!isCompleted) stream.request(ITEMS_AHEAD);
      source.request(initialRequestN);
    });
    return {
      request: (n) => source.request(n),
      cancel: () => source.cancel(),
      onExtension() {},
      onNext(item, isComplete) {
        waiting.push(item);
        ended = isComplete;
        if (!isComplete) stream.request(1);
        source.wake();
      },
      onComplete() {
        ended = true;
        source.wake();
      },
      onError: () => source.cancel(),
    };
  },

  fireAndForget() {
    return { cancel() {}, onExtension() {} };
  },
};

// A connection that fails must not end the process, and with it the connections of other cases.
process.on("unhandledRejection", (error) => console.error("unhandled:", error));
process.on("uncaughtException", (error) => console.error("uncaught:", error));

let listener;
const transports = {
  tcp: () =>
    new TcpServerTransport({
      listenOptions: { host: HOST, port: PORT },
      socketCreator: (config) => (listener = net.createServer(config)),
    }),
  ws: () => {
    const { WebsocketServerTransport } = require("rsocket-websocket-server");
    const { Server } = require("ws");
    return new WebsocketServerTransport({ wsCreator: () => (listener = new Server({ host: HOST, port: PORT })) });
  },
};
new RSocketServer({
  transport: transports[SCHEME](),
  acceptor: { accept: async () => responder },
  resume: process.env.RSOCKET_WITH === "resume" ? { sessionTimeout: SESSION } : undefined,
})
  .bind()
  .then(() => console.log(`listening ${SCHEME}://${HOST}:${listener.address().port}`));
