"use strict";
// node client.js tcp|ws|h2 PORT [--fragment N] [--lease PENDING] [--setup TEXT] [--keepalive MS] [--lifetime MS]
// [--metadata-mime M] [--path P] [--connections N]: reads a JSON command a line, prints a JSON result a line, ends with
// standard input. Of several connections, which share one HTTP/2 connection, a command names its own by a number.

const readline = require("readline");
const { RSocketConnector } = require("rsocket-core");
const { TcpClientTransport } = require("rsocket-tcp-client");
const { WebsocketClientTransport } = require("rsocket-websocket-client");
const WebSocket = require("ws");
const { Http2ClientTransport } = require("./http2");
const { COMPOSITE, Commander, options, responder } = require("./peer");

const HOST = "127.0.0.1";
const asked = options(process.argv.slice(2));
const metadataMime = asked["metadata-mime"] ?? COMPOSITE;

const TRANSPORTS = {
  tcp: () => new TcpClientTransport({ connectionOptions: { host: HOST, port: asked.port } }),
  ws: () =>
    new WebsocketClientTransport({
      url: `ws://${HOST}:${asked.port}${asked.path ?? "/"}`,
      wsCreator: (url) => new WebSocket(url),
    }),
  h2: () => new Http2ClientTransport({ url: `http://${HOST}:${asked.port}`, path: asked.path }),
};
const transport = TRANSPORTS[asked.transport]();

const say = (result) => process.stdout.write(JSON.stringify(result) + "\n");

function connector(socket) {
  return new RSocketConnector({
    transport,
    setup: {
      payload: asked.setup === undefined ? undefined : { data: Buffer.from(asked.setup) },
      dataMimeType: "application/octet-stream",
      metadataMimeType: metadataMime,
      keepAlive: Number(asked.keepalive ?? 20000),
      lifetime: Number(asked.lifetime ?? 90000),
    },
    fragmentation: asked.fragment ? { maxOutboundFragmentSize: Number(asked.fragment) } : undefined,
    lease: asked.lease ? { maxPendingRequests: Number(asked.lease) } : undefined,
    responder: responder(metadataMime, socket),
  });
}

async function main() {
  const sockets = [];
  try {
    for (let i = 0; i < Number(asked.connections ?? 1); i++) {
      sockets.push(await connector(() => sockets[i]).connect());
    }
  } catch (error) {
    say({ ok: false, code: null, error: String(error?.message ?? error) });
    process.exit(1);
  }
  const closings = sockets.map((socket) => new Promise((resolve) => socket.onClose((error) => resolve(error ?? null))));
  say({ ok: true });

  const commanders = sockets.map((socket) => new Commander(socket, metadataMime));
  const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity });
  lines.on("line", async (line) => {
    const { id, connection = 0, ...command } = JSON.parse(line);
    if (command.do === "wait_closed") {
      const error = await closings[connection];
      const code = typeof error?.code === "number" ? error.code >>> 0 : null;
      say({ id, ok: true, code, error: error ? String(error.message ?? error) : "" });
    } else if (command.do === "close") {
      sockets[connection].close();
      say({ id, ok: true });
    } else {
      say({ id, ...(await commanders[connection].run(command)) });
    }
  });
  lines.on("close", () => {
    for (const socket of sockets) socket.close();
    process.exit(0);
  });
}

process.on("unhandledRejection", (error) => console.error("unhandled:", error));
main();
