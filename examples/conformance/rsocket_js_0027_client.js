"use strict";
// A client of rsocket-js 0.0.27 that asks what a conformance case wants: rsocket-trio conformance --role client starts
// it. Install rsocket-core-0027, rsocket-tcp-client-0027 and rsocket-flowable, the first two under these names:
// npm install rsocket-core-0027@npm:rsocket-core@0.0.27. RSOCKET_URI says where it connects, and RSOCKET_ASKS what it
// asks then.

const { BufferEncoders, RSocketClient } = require("rsocket-core-0027");
const { default: RSocketTcpClient } = require("rsocket-tcp-client-0027");
const { Flowable, Single } = require("rsocket-flowable");

const OCTETS = "application/octet-stream";
// Items that a stream or channel asks for, once.
const CREDIT = 2;

const uri = new URL(process.env.RSOCKET_URI);
const asks = process.env.RSOCKET_ASKS;
const nothing = () => {};

// Sends back what comes on a channel, as far as there is credit for it.
function converse(socket) {
  const waiting = [{ data: Buffer.from("c") }];
  let credit = 0;
  let out;
  const send = () => {
    while (credit > 0 && waiting.length > 0) {
      credit -= 1;
      out.onNext(waiting.shift());
    }
  };
  const items = new Flowable((subscriber) => {
    out = subscriber;
    subscriber.onSubscribe({
      request(n) {
        credit += n;
        send();
      },
      cancel: nothing,
    });
  });
  socket.requestChannel(items).subscribe({
    onSubscribe: (subscription) => subscription.request(CREDIT),
    onNext({ data }) {
      waiting.push({ data });
      send();
    },
    onComplete: nothing,
    onError: nothing,
  });
}

async function main() {
  const client = new RSocketClient({
    transport: new RSocketTcpClient({ host: uri.hostname, port: Number(uri.port) }, BufferEncoders),
    setup: { dataMimeType: OCTETS, metadataMimeType: OCTETS, keepAlive: 2000, lifetime: 8000 },
    responder: { requestResponse: (payload) => Single.of(payload) },
  });
  const socket = await client.connect();
  // One more request, with what answered the first one.
  const repeat = ({ data }) => socket.requestResponse({ data }).subscribe({ onComplete: nothing, onError: nothing });
  if (asks === "request") {
    socket.requestResponse({ data: Buffer.from("q") }).subscribe({ onComplete: repeat, onError: nothing });
  } else if (asks === "stream") {
    let last;
    socket.requestStream({ data: Buffer.from("s") }).subscribe({
      onSubscribe: (subscription) => subscription.request(CREDIT),
      onNext: (item) => (last = item),
      onComplete: () => last && repeat(last),
      onError: nothing,
    });
  } else if (asks === "channel") {
    converse(socket);
  }
}

main();
