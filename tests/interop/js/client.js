"use strict";
// node client.js tcp|ws PORT [--fragment N] [--lease PENDING] [--setup TEXT] [--keepalive MS] [--lifetime MS]
// [--metadata-mime M]: reads a JSON command a line, prints a JSON result a line, ends with standard input.

const readline = require("readline");
const { RSocketConnector } = require("rsocket-core");
const { TcpClientTransport } = require("rsocket-tcp-client");
const { WebsocketClientTransport } = require("rsocket-websocket-client");
const WebSocket = require("ws");
const { COMPOSITE, Commander, options, responder } = require("./peer");

const HOST = "127.0.0.1";
const asked = options(process.argv.slice(2));
const metadataMime = asked["metadata-mime"] ?? COMPOSITE;

const transport =
  asked.transport === "ws"
    ? new WebsocketClientTransport({
        url: `ws://${HOST}:${asked.port}${asked.path ?? "/"}`,
        wsCreator: (url) => new WebSocket(url),
      })
    : new TcpClientTransport({ connectionOptions: { host: HOST, port: asked.port } });

const say = (result) => process.stdout.write(JSON.stringify(result) + "\n");

async function main() {
  let socket;
  const connector = new RSocketConnector({
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
    responder: responder(metadataMime, () => socket),
  });
  try {
    socket = await connector.connect();
  } catch (error) {
    say({ ok: false, code: null, error: String(error?.message ?? error) });
    process.exit(1);
  }
  const closed = new Promise((resolve) => socket.onClose((error) => resolve(error ?? null)));
  say({ ok: true });

  const commander = new Commander(socket, metadataMime);
  const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity });
  lines.on("line", async (line) => {
    const { id, ...command } = JSON.parse(line);
    if (command.do === "wait_closed") {
      const error = await closed;
      const code = typeof error?.code === "number" ? error.code >>> 0 : null;
      say({ id, ok: true, code, error: error ? String(error.message ?? error) : "" });
    } else if (command.do === "close") {
      socket.close();
      say({ id, ok: true });
    } else {
      say({ id, ...(await commander.run(command)) });
    }
  });
  lines.on("close", () => {
    socket.close();
    process.exit(0);
  });
}

process.on("unhandledRejection", (error) => console.error("unhandled:", error));
main();
