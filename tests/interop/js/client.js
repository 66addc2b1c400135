"use strict";
// Clients of the JavaScript peer: the connections of one command `connect`, which share one HTTP/2 connection where they
// travel over it.

const { RSocketConnector } = require("rsocket-core");
const { TcpClientTransport } = require("rsocket-tcp-client");
const { WebsocketClientTransport } = require("rsocket-websocket-client");
const WebSocket = require("ws");
const { Http2ClientTransport } = require("./http2");
const { COMPOSITE, Commander, responder } = require("./peer");

const HOST = "127.0.0.1";

const TRANSPORTS = {
  tcp: ({ port }) => new TcpClientTransport({ connectionOptions: { host: HOST, port } }),
  ws: ({ port, path = "/" }) =>
    new WebsocketClientTransport({ url: `ws://${HOST}:${port}${path}`, wsCreator: (url) => new WebSocket(url) }),
  h2: ({ port, path }) => new Http2ClientTransport({ url: `http://${HOST}:${port}`, path }),
};

class Client {
  static async connect(asked) {
    const transport = TRANSPORTS[asked.transport](asked);
    const client = new Client(asked.metadata_mime ?? COMPOSITE);
    for (let i = 0; i < (asked.connections ?? 1); i++) await client.add(transport, asked);
    return client;
  }

  constructor(metadataMime) {
    Object.assign(this, { metadataMime, sockets: [], commanders: [], closings: [] });
  }

  async add(transport, { setup, keepalive = 20000, lifetime = 90000, fragment, lease }) {
    let socket = null;
    socket = await new RSocketConnector({
      transport,
      setup: {
        payload: setup === undefined ? undefined : { data: Buffer.from(setup) },
        dataMimeType: "application/octet-stream",
        metadataMimeType: this.metadataMime,
        keepAlive: keepalive,
        lifetime,
      },
      fragmentation: fragment ? { maxOutboundFragmentSize: fragment } : undefined,
      lease: lease ? { maxPendingRequests: lease } : undefined,
      responder: responder(this.metadataMime, () => socket),
    }).connect();
    this.sockets.push(socket);
    this.commanders.push(new Commander(socket, this.metadataMime));
    this.closings.push(new Promise((resolve) => socket.onClose((error) => resolve(error ?? null))));
  }

  // Carries out a command by the connection of this number.
  async run(connection, command) {
    if (command.do === "wait_closed") {
      const error = await this.closings[connection];
      const code = typeof error?.code === "number" ? error.code >>> 0 : null;
      return { ok: true, code, error: error ? String(error.message ?? error) : "" };
    }
    if (command.do === "close") {
      this.sockets[connection].close();
      return { ok: true };
    }
    return this.commanders[connection].run(command);
  }

  async close() {
    for (const socket of this.sockets) socket.close();
    await Promise.all(this.closings);
  }
}

module.exports = { Client };
