"use strict";
// node server.js tcp|ws|h2 [--fragment N] [--metadata-mime M]: prints "PORT n", serves until standard input ends.

const net = require("net");
const { RSocketServer } = require("rsocket-core");
const { TcpServerTransport } = require("rsocket-tcp-server");
const { WebsocketServerTransport } = require("rsocket-websocket-server");
const WebSocket = require("ws");
const { Http2ServerTransport } = require("./http2");
const { options, responder, seen } = require("./peer");

const HOST = "127.0.0.1";
const asked = options(process.argv.slice(2));
let listener;

function transport() {
  if (asked.transport === "h2") {
    const http2 = new Http2ServerTransport({ listenOptions: { host: HOST, port: 0 } });
    listener = http2.server;
    return http2;
  }
  if (asked.transport === "ws") {
    return new WebsocketServerTransport({
      wsCreator: () => (listener = new WebSocket.Server({ host: HOST, port: 0 })),
    });
  }
  return new TcpServerTransport({
    listenOptions: { host: HOST, port: 0 },
    socketCreator: (config) => (listener = net.createServer(config)),
  });
}

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

process.on("unhandledRejection", (error) => console.error("unhandled:", error));
process.stdin.on("end", () => process.exit(0)).resume();

new RSocketServer({
  transport: transport(),
  acceptor,
  fragmentation: asked.fragment ? { maxOutboundFragmentSize: Number(asked.fragment) } : undefined,
})
  .bind()
  .then(() => console.log(`PORT ${listener.address().port}`));
