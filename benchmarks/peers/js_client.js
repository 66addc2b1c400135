"use strict";
// The client of the workloads, with rsocket-js.

const { RSocketConnector } = require("rsocket-core");
const { TcpClientTransport } = require("rsocket-tcp-client");

const CREDIT = 256;
const REFILL = CREDIT / 2;
const SETTLE = 1000;
const [, , , port, counted, , first] = process.argv;

const line = () => new Promise((resolve) => process.stdin.once("data", resolve));
const settle = () => new Promise((resolve) => setTimeout(resolve, SETTLE));
const kept = [];
let waits = [];

async function say(word) {
  console.log(word);
  await line();
}

function connect() {
  const connector = new RSocketConnector({
    transport: new TcpClientTransport({ connectionOptions: { host: "127.0.0.1", port: Number(port), noDelay: true } }),
    setup: { keepAlive: 20000, lifetime: 90000 },
  });
  return connector.connect();
}

function request(socket, data) {
  return new Promise((resolve, reject) => {
    const onNext = (payload) => resolve(payload.data);
    socket.requestResponse({ data }, { onNext, onError: reject, onComplete() {}, onExtension() {} });
  });
}

async function requests(socket, { size, seconds, concurrency }) {
  const data = Buffer.alloc(size);
  const end = performance.now() + 1000 * seconds;
  const worker = async () => {
    for (let begun; (begun = performance.now()) < end; ) {
      const answer = await request(socket, data);
      waits.push(performance.now() - begun);
      if (answer.length !== size) throw new Error(`${answer.length} bytes`);
    }
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
}

async function again(_, { size, seconds }) {
  const data = Buffer.alloc(size);
  const end = performance.now() + 1000 * seconds;
  for (let begun; (begun = performance.now()) < end; ) {
    const socket = await connect();
    await request(socket, data);
    socket.close();
    waits.push(performance.now() - begun);
  }
}

// Counts items, and tops credit up at half.
function counter(count, resolve, reject, more) {
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

function stream(socket, { count, size }) {
  return new Promise((resolve, reject) => {
    const asked = { data: Buffer.from(`${count} ${size}`) };
    const out = socket.requestStream(asked, CREDIT, counter(count, resolve, reject, () => out));
  });
}

function channel(socket, { count, size }) {
  return new Promise((resolve, reject) => {
    const item = { data: Buffer.alloc(size) };
    let sent = 1;
    const out = socket.requestChannel(item, CREDIT, false, {
      ...counter(count, resolve, reject, () => out),
      request(n) {
        for (; n > 0 && sent < count; n--) out.onNext(item, ++sent === count);
      },
      cancel() {},
    });
  });
}

async function connections(_, { count, size }) {
  for (let i = 0; i < count; i++) {
    const socket = await connect();
    kept.push(socket);
    await request(socket, Buffer.alloc(size));
  }
  await settle();
}

async function streams(socket, { count, size }) {
  const nothing = { onNext() {}, onComplete() {}, onError() {}, onExtension() {} };
  for (let i = 0; i < count; i++) socket.requestStream({ data: Buffer.from("0 0") }, CREDIT, nothing);
  await request(socket, Buffer.alloc(size));
  await settle();
}

const KINDS = { request: requests, stream, channel, connect: again, connections, streams };

async function main() {
  const workload = JSON.parse(counted);
  const work = KINDS[workload.kind];
  const socket = await connect();
  await work(socket, JSON.parse(first));
  waits = [];
  await say("ready");
  const begun = performance.now();
  await work(socket, workload);
  const wall = (performance.now() - begun) / 1000;
  await say("done");
  waits.sort((a, b) => a - b);
  const at = (cut) => waits[Math.min(waits.length - 1, Math.floor((waits.length * cut) / 100))];
  const cuts = waits.length ? Object.fromEntries([50, 90, 99, 99.9].map((cut) => [String(cut), at(cut)])) : {};
  console.log(JSON.stringify({ wall, count: waits.length || workload.count, waits: cuts }));
}

process.on("unhandledRejection", (error) => {
  console.error(`rsocket-js: ${error.stack}`);
  process.exit(1);
});
main().then(() => process.exit(0));
