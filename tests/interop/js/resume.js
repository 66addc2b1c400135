"use strict";
// node resume.js server: prints "PORT n", serves streams of numbered items and echoes channels until standard input ends.
// node resume.js client PORT: asks for the same over one session that is resumed, prints one JSON line with what came.

const net = require("net");
const { RSocketConnector, RSocketServer } = require("rsocket-core");
const { TcpClientTransport } = require("rsocket-tcp-client");
const { TcpServerTransport } = require("rsocket-tcp-server");

const HOST = "127.0.0.1";
const COUNT = 400;
const CREDIT = 16;
const STREAMS = 4;
const CHANNELS = 2;
const KEEPALIVE = { keepAlive: 200, lifetime: 5000 };
const SESSION = 10000;
const BETWEEN = 10;
const MAX_FILL = 3000;

// Number n of a stream is "n:" and a filling whose size and bytes follow from n.
function filling(number) {
  return Buffer.alloc((number * 997) % MAX_FILL, number % 251);
}

function item(number) {
  return { data: Buffer.concat([Buffer.from(`${number}:`), filling(number)]) };
}

function read(payload) {
  const end = payload.data.indexOf(":");
  const number = Number(payload.data.subarray(0, end));
  return payload.data.subarray(end + 1).equals(filling(number)) ? number : -1;
}

// Sends items 0 to COUNT as far as there is credit.
class Numbers {
  constructor(sink) {
    Object.assign(this, { sink, next: 0, credit: 0, done: false });
  }

  request(n) {
    this.credit += n;
    setImmediate(() => this.send());
  }

  send() {
    while (!this.done && this.credit > 0) {
      this.credit--;
      this.done = this.next === COUNT - 1;
      this.sink.onNext(item(this.next++), this.done);
    }
  }

  cancel() {
    this.done = true;
  }

  onExtension() {}
}

const responder = {
  requestStream(payload, initialRequestN, stream) {
    const numbers = new Numbers(stream);
    numbers.request(initialRequestN);
    return numbers;
  },
  requestChannel(payload, initialRequestN, isCompleted, stream) {
    const waiting = [];
    let credit = initialRequestN;
    let ended = isCompleted;
    let done = false;
    const send = () => {
      while (credit > 0 && waiting.length > 0) {
        credit--;
        stream.onNext(waiting.shift(), false);
      }
      if (ended && waiting.length === 0 && !done) {
        done = true;
        stream.onComplete();
      }
    };
    setImmediate(() => stream.request(CREDIT));
    return {
      request(n) {
        credit += n;
        send();
      },
      cancel() {},
      onExtension() {},
      onNext(message, isComplete) {
        waiting.push(message);
        ended = isComplete;
        stream.request(1);
        send();
      },
      onComplete() {
        ended = true;
        send();
      },
      onError() {},
    };
  },
};

async function serve() {
  let listener;
  await new RSocketServer({
    transport: new TcpServerTransport({
      listenOptions: { host: HOST, port: 0 },
      socketCreator: (config) => (listener = net.createServer(config)),
    }),
    acceptor: { accept: async () => responder },
    resume: { sessionTimeout: SESSION },
  }).bind();
  console.log(`PORT ${listener.address().port}`);
}

// Takes what comes, one more for each one, and resolves with the numbers at the end.
class Taker {
  constructor(resolve) {
    Object.assign(this, { resolve, numbers: [], error: null, over: false });
  }

  onNext(payload, isComplete) {
    this.numbers.push(read(payload));
    if (isComplete) return this.end();
    this.subscription.request(1);
  }

  onComplete() {
    this.end();
  }

  onError(error) {
    this.error = String(error.message ?? error);
    this.end();
  }

  onExtension() {}

  end() {
    if (!this.over) this.resolve({ numbers: this.numbers, error: this.error });
    this.over = true;
  }
}

async function ask(port) {
  const token = Buffer.from(`token ${process.pid} ${Date.now()}`);
  const socket = await new RSocketConnector({
    transport: new TcpClientTransport({ connectionOptions: { host: HOST, port } }),
    setup: KEEPALIVE,
    resume: {
      tokenGenerator: () => token,
      reconnectFunction: () => new Promise((resolve) => setTimeout(resolve, BETWEEN)),
    },
  }).connect();
  const streams = Array.from({ length: STREAMS }, () =>
    new Promise((resolve) => {
      const taker = new Taker(resolve);
      taker.subscription = socket.requestStream({ data: Buffer.from("numbers") }, CREDIT, taker);
    })
  );
  const channels = Array.from({ length: CHANNELS }, () =>
    new Promise((resolve) => {
      const taker = new Taker(resolve);
      const numbers = new Numbers({ onNext: (next, isComplete) => taker.subscription.onNext(next, isComplete) });
      taker.request = (n) => numbers.request(n);
      taker.cancel = () => numbers.cancel();
      taker.subscription = socket.requestChannel({ data: Buffer.from("echo") }, CREDIT, false, taker);
    })
  );
  console.log(JSON.stringify({ streams: await Promise.all(streams), channels: await Promise.all(channels) }));
}

process.on("unhandledRejection", (error) => console.error("unhandled:", error));
process.on("uncaughtException", (error) => console.error("uncaught:", error));
process.stdin.on("end", () => process.exit(0)).resume();

if (process.argv[2] === "server") serve();
else ask(Number(process.argv[3]));
