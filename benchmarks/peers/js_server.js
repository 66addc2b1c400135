"use strict";
// The server of the workloads, with rsocket-js. Prints its port, serves until its standard input ends.

const net = require("net");
const { RSocketServer } = require("rsocket-core");
const { TcpServerTransport } = require("rsocket-tcp-server");

const CREDIT = 256;
const REFILL = CREDIT / 2;
const NOTHING = { cancel() {}, onExtension() {} };
let listener;

const responder = {
  requestResponse(payload, stream) {
    stream.onNext({ data: payload.data }, true);
    return NOTHING;
  },

  requestStream(payload, initialRequestN, stream) {
    const [count, size] = payload.data.toString().split(" ").map(Number);
    const item = { data: Buffer.alloc(size) };
    if (count === 0) return { request() {}, ...NOTHING };
    let [sent, credit] = [0, 0];
    const request = (n) => {
      credit += n;
      for (; credit > 0 && sent < count; credit--) stream.onNext(item, ++sent === count);
    };
    setImmediate(request, initialRequestN);
    return { request, ...NOTHING };
  },

  requestChannel(payload, initialRequestN, isCompleted, stream) {
    let [taken, credit] = [0, initialRequestN];
    const waiting = [];
    const send = () => {
      for (; credit > 0 && waiting.length; credit--) stream.onNext(...waiting.shift());
    };
    const onNext = (item, isLast) => {
      waiting.push([{ data: item.data }, isLast]);
      if (++taken % REFILL === 0) stream.request(REFILL);
      send();
    };
    setImmediate(() => {
      stream.request(CREDIT);
      onNext(payload, isCompleted);
    });
    const request = (n) => {
      credit += n;
      send();
    };
    return { request, onNext, onComplete: () => stream.onComplete(), onError() {}, ...NOTHING };
  },
};

const transport = new TcpServerTransport({
  listenOptions: { host: "127.0.0.1", port: 0 },
  socketCreator: (options) => (listener = net.createServer({ ...options, noDelay: true })),
});

process.stdin.on("end", () => process.exit(0)).resume();
new RSocketServer({ transport, acceptor: { accept: async () => responder } })
  .bind()
  .then(() => console.log(listener.address().port));
