"use strict";
// Servers of the JavaScript peer, each of which serves for as long as the process runs.

const net = require("net");
const { RSocketServer } = require("rsocket-core");
const { TcpServerTransport } = require("rsocket-tcp-server");
const { WebsocketServerTransport } = require("rsocket-websocket-server");
const WebSocket = require("ws");
const { Http2ServerTransport } = require("./http2");
const { responder, seen } = require("./peer");

const HOST = "127.0.0.1";

// Return a transport, and a function that gives its listener once it is bound.
const TRANSPORTS = {
  tcp: () => {
    let listener;
    const socketCreator = (config) => (listener = net.createServer(config));
    return [new TcpServerTransport({ listenOptions: { host: HOST, port: 0 }, socketCreator }), () => listener];
  },
  ws: () => {
    let listener;
    const wsCreator = () => (listener = new WebSocket.Server({ host: HOST, port: 0 }));
    return [new WebsocketServerTransport({ wsCreator }), () => listener];
  },
  h2: () => {
    const http2 = new Http2ServerTransport({ listenOptions: { host: HOST, port: 0 } });
    return [http2, () => http2.server];
  },
};

const acceptor = {
  accept: async (setup, peer) => {
    const { metadataMimeType, dataMimeType, keepAliveInterval, keepAliveMaxLifetime, data, metadata } = setup;
    seen.setup = {
      metadata_mime: metadataMimeType,
      data_mime: dataMimeType,
      keepalive: keepAliveInterval,
      lifetime: keepAliveMaxLifetime,
      data: data ? data.toString("hex") : "",
      metadata: metadata ? metadata.toString("hex") : null,
    };
    if (data && data.toString() === "refuse") throw new Error("refused as asked");
    return responder(metadataMimeType, () => peer);
  },
};

// Return the port.
async function listen({ transport: name, fragment }) {
  const [transport, listener] = TRANSPORTS[name]();
  const fragmentation = fragment ? { maxOutboundFragmentSize: fragment } : undefined;
  await new RSocketServer({ transport, acceptor, fragmentation }).bind();
  return listener().address().port;
}

module.exports = { listen };
