"use strict";
// A server of rsocket-js 0.0.27 with the interactions that the conformance cases need: node rsocket_js_0027_server.js
// [PORT]. Install rsocket-core-0027, rsocket-tcp-server-0027 and rsocket-flowable, the first two under these names:
// npm install rsocket-core-0027@npm:rsocket-core@0.0.27. It prints "listening URI" and serves until it is ended.
// It grants leases if RSOCKET_WITH is "leases".

const net = require("net");
const { BufferEncoders, Lease, Leases, RSocketServer } = require("rsocket-core-0027");
const { default: RSocketTCPServer } = require("rsocket-tcp-server-0027");
const { Flowable, Single } = require("rsocket-flowable");

const HOST = "127.0.0.1";
const PORT = Number(process.argv[2] ?? 7878);
// Items that are sent before other tasks run.
const BATCH = 64;

const handler = {
  // Answers with the request; never answers one that says "silent".
  requestResponse(payload) {
    return payload.data?.toString() === "silent" ? Single.never() : Single.of(payload);
  },

  // Counts, as far as the data says.
  requestStream(payload) {
    const end = payload.data?.length ? Number(payload.data) : Infinity;
    return new Flowable((subscriber) => {
      let next = 0;
      let credit = 0;
      let open = true;
      let scheduled = false;
      const send = () => {
        scheduled = false;
        for (let sent = 0; open && sent < BATCH; sent++) {
          if (next === end) {
            open = false;
            return subscriber.onComplete();
          }
          if (credit === 0) return;
          credit--;
          subscriber.onNext({ data: Buffer.from(String(next++)) });
        }
        wake();
      };
      const wake = () => {
        if (scheduled || !open) return;
        scheduled = true;
        setImmediate(send);
      };
      subscriber.onSubscribe({
        request(n) {
          credit += n;
          wake();
        },
        cancel() {
          open = false;
        },
      });
    });
  },

  // Sends back each item, and hands the credit for them on.
  requestChannel: (items) => items,

  fireAndForget() {},

  metadataPush: () => Single.of(undefined),
};

// A connection that fails must not end the process, and with it the connections of other cases.
process.on("unhandledRejection", (error) => console.error("unhandled:", error));
process.on("uncaughtException", (error) => console.error("uncaught:", error));

const serverFactory = (onConnection) => {
  const listener = net.createServer(onConnection);
  return listener.on("listening", () => console.log(`listening tcp://${HOST}:${listener.address().port}`));
};
// Grants 3 requests for 2 seconds, and that again every 3 seconds.
const leases = () =>
  new Leases().sender(
    () =>
      new Flowable((subscriber) => {
        const grant = () => subscriber.onNext(new Lease(2000, 3));
        let timer;
        subscriber.onSubscribe({
          request() {
            setImmediate(grant);
            timer = setInterval(grant, 3000);
          },
          cancel: () => clearInterval(timer),
        });
      })
  );

new RSocketServer({
  transport: new RSocketTCPServer({ host: HOST, port: PORT, serverFactory }, BufferEncoders),
  getRequestHandler: () => handler,
  leases: process.env.RSOCKET_WITH === "leases" ? leases : undefined,
}).start();
