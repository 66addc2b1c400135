"use strict";
// A client of rsocket-js 1.0 that asks what a conformance case wants: rsocket-trio conformance --role client starts it.
// Install rsocket-core and rsocket-tcp-client, 1.0.0-alpha.3; for WebSocket also rsocket-websocket-client and ws.
// RSOCKET_URI says where it connects, and RSOCKET_ASKS what it asks then. Its session can be resumed if RSOCKET_WITH is
// "resume".

const { randomBytes } = require("crypto");
const { RSocketConnector } = require("rsocket-core");
const { TcpClientTransport } = require("rsocket-tcp-client");

const OCTETS = "application/octet-stream";
// Items that a stream or channel asks for, once.
const CREDIT = 2;

// Milliseconds between two tries to connect again.
const PAUSE = 100;

const tokenGenerator = () => randomBytes(16);
const reconnectFunction = () => new Promise((resolve) => setTimeout(resolve, PAUSE));
const uri = new URL(process.env.RSOCKET_URI);
const asks = process.env.RSOCKET_ASKS;
const nothing = () => {};
const idle = {
  onNext: nothing,
  onComplete: nothing,
  onError: nothing,
  onExtension: nothing,
  request: nothing,
  cancel: nothing,
};

// Sends back what comes on a channel, as far as there is credit for it.
function converse(socket) {
  const waiting = [];
  let credit = 0;
  const send = () => {
    while (credit > 0 && waiting.length > 0) {
      credit -= 1;
      channel.onNext({ data: waiting.shift().data }, false);
    }
  };
  const channel = socket.requestChannel({ data: Buffer.from("c") }, CREDIT, false, {
    ...idle,
    onNext(item) {
      waiting.push(item);
      send();
    },
    request(n) {
      credit += n;
      send();
    },
  });
}

const transports = {
  "tcp:": () => new TcpClientTransport({ connectionOptions: { host: uri.hostname, port: Number(uri.port) } }),
  "ws:": () => {
    const { WebsocketClientTransport } = require("rsocket-websocket-client");
    const WebSocket = require("ws");
    return new WebsocketClientTransport({ url: uri.href, wsCreator: (url) => new WebSocket(url) });
  },
};

async function main() {
  const connector = new RSocketConnector({
    transport: transports[uri.protocol](),
    setup: { dataMimeType: OCTETS, metadataMimeType: OCTETS, keepAlive: 2000, lifetime: 8000 },
    resume: process.env.RSOCKET_WITH === "resume" ? { tokenGenerator, reconnectFunction } : undefined,
    responder: {
      requestResponse(payload, stream) {
        stream.onNext(payload, true);
        return idle;
      },
    },
  });
  const socket = await connector.connect();
  // One more request, with what answered the first one.
  const repeat = ({ data }) => socket.requestResponse({ data }, idle);
  if (asks === "request") {
    socket.requestResponse({ data: Buffer.from("q") }, { ...idle, onNext: repeat });
  } else if (asks === "stream") {
    let last;
    socket.requestStream({ data: Buffer.from("s") }, CREDIT, {
      ...idle,
      onNext(item, isComplete) {
        last = item;
        if (isComplete) repeat(last);
      },
      onComplete: () => last && repeat(last),
    });
  } else if (asks === "channel") {
    converse(socket);
  }
}

main();
