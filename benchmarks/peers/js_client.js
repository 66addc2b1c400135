"use strict";
// The client of the workloads, with rsocket-js.

const { RSocketConnector } = require("rsocket-core");
const { TcpClientTransport } = require("rsocket-tcp-client");

const CREDIT = 256;
const REFILL = CREDIT / 2;
const [, , , port, name, , workload] = process.argv;
const { kind, count, size, concurrency } = JSON.parse(workload);

const line = () => new Promise((resolve) => process.stdin.once("data", resolve));

function request(socket, data) {
  return new Promise((resolve, reject) => {
    socket.requestResponse({ data }, { onNext: resolve, onError: reject, onComplete() {}, onExtension() {} });
  });
}

async function requests(socket, waits) {
  const data = Buffer.alloc(size);
  const worker = async () => {
    for (let i = 0; i < Math.floor(count / concurrency); i++) {
      const begun = performance.now();
      await request(socket, data);
      waits.push(performance.now() - begun);
    }
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
}

// Counts items, and tops credit up at half.
function counter(resolve, reject, more) {
  let seen = 0;
  return {
    onNext(_, isLast) {
      if (++seen % REFILL === 0 && !isLast) more().request(REFILL);
      if (isLast) this.onComplete();
    },
    onComplete: () => (seen === count ? resolve() : reject(new Error(`${seen} items`))),
    onError: reject,
    onExtension() {},
  };
}

function stream(socket) {
  return new Promise((resolve, reject) => {
    const asked = { data: Buffer.from(`${count} ${size}`) };
    const out = socket.requestStream(asked, CREDIT, counter(resolve, reject, () => out));
  });
}

function channel(socket) {
  return new Promise((resolve, reject) => {
    const item = { data: Buffer.alloc(size) };
    let sent = 1;
    const out = socket.requestChannel(item, CREDIT, false, {
      ...counter(resolve, reject, () => out),
      request(n) {
        for (; n > 0 && sent < count; n--) out.onNext(item, ++sent === count);
      },
      cancel() {},
    });
  });
}

const KINDS = { request: requests, stream, channel };

async function main() {
  const connector = new RSocketConnector({
    transport: new TcpClientTransport({ connectionOptions: { host: "127.0.0.1", port: Number(port), noDelay: true } }),
    setup: { keepAlive: 20000, lifetime: 90000 },
  });
  const socket = await connector.connect();
  await request(socket, Buffer.from("first"));
  console.log("ready");
  await line();
  const waits = [];
  const begun = performance.now();
  await KINDS[kind](socket, waits);
  const wall = (performance.now() - begun) / 1000;
  waits.sort((a, b) => a - b);
  const at = (cut) => waits[Math.min(waits.length - 1, Math.floor((waits.length * cut) / 100))];
  const cuts = waits.length ? Object.fromEntries([50, 90, 99, 99.9].map((cut) => [String(cut), at(cut)])) : {};
  console.log(JSON.stringify({ wall, waits: cuts }));
  await line();
}

process.on("unhandledRejection", (error) => {
  console.error(`${name}: ${error.stack}`);
  process.exit(1);
});
main().then(() => process.exit(0));
