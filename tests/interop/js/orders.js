"use strict";
// The JavaScript peer of the orders service, with the composite metadata, routes and credentials of its own package.
// node orders.js: prints "listening URI", then does one check for each line of standard input, which says
// CHECK URI MIME, and answers "ok CHECK" or "FAILED CHECK: why". README.md, one folder up, lists routes and checks.

const assert = require("assert");
const net = require("net");
const readline = require("readline");
const {
  decodeAuthMetadata,
  decodeCompositeMetadata,
  decodeRoutes,
  decodeSimpleAuthPayload,
  encodeBearerAuthMetadata,
  encodeCompositeMetadata,
  encodeRoute,
  encodeSimpleAuthMetadata,
  WellKnownAuthType,
  WellKnownMimeType,
} = require("rsocket-composite-metadata");
const { ErrorCodes, RSocketConnector, RSocketServer } = require("rsocket-core");
const { TcpClientTransport } = require("rsocket-tcp-client");
const { TcpServerTransport } = require("rsocket-tcp-server");
const { COMPOSITE, Queue, Source, coded, from } = require("./peer");

const HOST = "127.0.0.1";
const PATIENCE = 20000;
const PRICE = 2.5;
const TICKS = 500;
const LARGE = 200000;
const CREDIT = 128;
const OCTETS = "application/octet-stream";
const DETAILS = { reason: "sold out", left: 2 };
const PASSWORDS = { ann: "secret", root: "toor" };
const TOKENS = { "token-of-ann": "ann", "token-of-root": "root" };
const ROUTING = WellKnownMimeType.MESSAGE_RSOCKET_ROUTING;
const AUTHENTICATION = WellKnownMimeType.MESSAGE_RSOCKET_AUTHENTICATION;
const MIME_TYPE = WellKnownMimeType.MESSAGE_RSOCKET_MIMETYPE;
const JSON_ID = Buffer.from([0x80 | WellKnownMimeType.APPLICATION_JSON.identifier]);
const ORDER = { symbol: "ACME", amount: 3 };

const encode = (value) => Buffer.from(JSON.stringify(value));
const decode = (data) => JSON.parse(data.toString());
const isEmpty = (data) => !data || data.length === 0;

function* ticks(symbol, since = 0) {
  for (let number = since; number < TICKS; number++) yield { symbol, number, price: number * PRICE };
}

function* payloads(items) {
  for (const item of items) yield { data: encode(item) };
}

const details = () => coded(ErrorCodes.APPLICATION_ERROR, JSON.stringify(DETAILS));
const notAllowed = () => coded(ErrorCodes.REJECTED, "not allowed");

// ---- what it serves

const notes = [];

function entry(metadata, mime) {
  if (isEmpty(metadata)) return null;
  for (const one of decodeCompositeMetadata(metadata)) if (one.mimeType === mime.string) return one.content;
  return null;
}

const routeOf = (metadata) => [...decodeRoutes(entry(metadata, ROUTING))][0];

// The user whose credentials are in some metadata, or null.
function userOf(metadata) {
  const found = entry(metadata, AUTHENTICATION);
  if (found === null) return null;
  const { type, payload } = decodeAuthMetadata(found);
  if (type.string === WellKnownAuthType.BEARER.string && TOKENS[payload.toString()]) return TOKENS[payload.toString()];
  if (type.string === WellKnownAuthType.SIMPLE.string) {
    const { username, password } = decodeSimpleAuthPayload(payload);
    if (PASSWORDS[username.toString()] === password.toString()) return username.toString();
  }
  throw notAllowed();
}

const RESPONSES = {
  "orders.place": ({ data }) => {
    const { symbol, amount } = decode(data);
    if (!Number.isInteger(amount)) throw coded(ErrorCodes.INVALID, "no amount");
    return encode({ id: `${symbol}-${amount}`, total: amount * PRICE });
  },
  "orders.notes": () => encode(notes),
  "orders.clear": () => {
    notes.splice(0);
    return Buffer.alloc(0);
  },
  large: ({ data }) => encode({ text: decode(data).text + "!" }),
  fail: () => {
    throw details();
  },
  whoami: (payload, connection) => Buffer.from(connection.who(payload) ?? "nobody"),
  secret: (payload, connection) => {
    const user = connection.who(payload);
    if (user === null) throw notAllowed();
    return Buffer.from(user);
  },
  admin: (payload, connection) => {
    if (connection.who(payload) !== "root") throw notAllowed();
    return Buffer.from("root");
  },
  name: (payload, connection) => Buffer.from(connection.name),
  callback: async (payload, connection) => {
    const name = await new Client(connection.peer, OCTETS).ask("client.name", { name: "server" });
    const taken = await new Client(connection.peer, OCTETS).stream("client.ticks.ACME", undefined, 3);
    return Buffer.from(`${name} has ${taken.length}`);
  },
};

const CALLED = { "client.name": ({ data }) => Buffer.from(`rsocket-js for ${decode(data).name}`) };

function* failing() {
  for (let number = 0; number < 3; number++) yield { data: encode({ symbol: "ACME", number, price: number * PRICE }) };
  throw details();
}

function streamOf(route, { data }) {
  if (route === "fail.stream") return from(failing());
  const [word, symbol] = route.split(/\.(?=\w+$)/);
  if (word !== "ticks" && word !== "client.ticks") throw coded(ErrorCodes.REJECTED, `no route ${route}`);
  return from(payloads(ticks(symbol, isEmpty(data) ? 0 : decode(data))));
}

// What a channel does with an offer, and after how many it fails.
function negotiation(route) {
  if (route === "negotiate") {
    return [({ price }) => encode({ price, accepted: price >= PRICE }), Infinity];
  }
  if (route === "fail.channel") return [({ price }) => encode({ price, accepted: true }), 2];
  const [word, symbol] = route.split(".");
  if (word !== "negotiate") throw coded(ErrorCodes.REJECTED, `no route ${route}`);
  return [({ price }) => Buffer.from(`${symbol} at ${price}`), Infinity];
}

function responder(responses, connection) {
  return {
    requestResponse(payload, stream) {
      let isOpen = true;
      Promise.resolve()
        .then(() => {
          const route = routeOf(payload.metadata);
          if (!responses[route]) throw coded(ErrorCodes.REJECTED, `no route ${route}`);
          return responses[route](payload, connection);
        })
        .then(
          (data) => isOpen && stream.onNext({ data }, true),
          (error) => isOpen && stream.onError(error)
        );
      return { cancel: () => (isOpen = false), onExtension() {} };
    },
    requestStream(payload, initialRequestN, stream) {
      const source = new Source(stream, streamOf(routeOf(payload.metadata), payload));
      source.request(initialRequestN);
      return source;
    },
    requestChannel(payload, initialRequestN, isCompleted, stream) {
      const out = new Queue();
      const source = new Source(stream, out.next);
      const [answer, limit] = negotiation(routeOf(payload.metadata));
      let count = 0;
      const take = ({ data }) => {
        if (isEmpty(data)) return;
        out.items.push({ data: answer(decode(data)) });
        if (++count === limit) out.error = details();
      };
      const end = () => {
        out.ended = true;
        source.wake();
      };
      setImmediate(() => {
        take(payload);
        if (isCompleted) out.ended = true;
        else stream.request(2 ** 31 - 1);
        source.request(initialRequestN);
      });
      return {
        request: (n) => source.request(n),
        cancel: () => source.cancel(),
        onExtension() {},
        onNext(offer, isComplete) {
          take(offer);
          if (isComplete) end();
          else source.wake();
        },
        onComplete: end,
        onError: () => source.cancel(),
      };
    },
    fireAndForget(payload) {
      if (routeOf(payload.metadata) === "orders.note") notes.push(decode(payload.data));
      return { cancel() {}, onExtension() {} };
    },
  };
}

// What is known of one connection to the server.
function connectionOf({ data, metadata }, peer) {
  const user = userOf(metadata);
  const name = isEmpty(data) ? "nobody" : `${decode(data).name} of ${routeOf(metadata).split(".")[1]}`;
  return { peer, name, who: (payload) => userOf(payload.metadata) ?? user };
}

// ---- what it asks

// A connection. `mime` is its data MIME type, or "entry" for one of octets whose requests each say that they are JSON.
class Client {
  constructor(socket, mime) {
    Object.assign(this, { socket, mime });
  }

  payload(route, value, entries = []) {
    const all = [[ROUTING, encodeRoute(route)], ...entries];
    if (this.mime === "entry") all.push([MIME_TYPE, JSON_ID]);
    return { data: value === undefined ? Buffer.alloc(0) : encode(value), metadata: encodeCompositeMetadata(all) };
  }

  ask(route, value, entries) {
    return new Promise((resolve, reject) => {
      this.socket.requestResponse(this.payload(route, value, entries), {
        onNext: ({ data }) => resolve(data ?? Buffer.alloc(0)),
        onComplete: () => resolve(Buffer.alloc(0)),
        onError: reject,
        onExtension() {},
      });
    });
  }

  // The data of the items, `take` of them at most, asked for some at a time.
  stream(route, value, take = Infinity) {
    return new Promise((resolve, reject) => {
      const taker = new Taker(take, resolve, reject);
      taker.subscription = this.socket.requestStream(this.payload(route, value), CREDIT, taker);
    });
  }

  // The first offer opens the channel.
  channel(route, offers, take = Infinity) {
    return new Promise((resolve, reject) => {
      const taker = new Taker(take, resolve, reject);
      const rest = offers.slice(1);
      const sink = {
        onNext: (payload, isComplete) => taker.subscription.onNext(payload, isComplete),
        onComplete: () => taker.subscription.onComplete(),
        onError: (error) => taker.subscription.onError(error),
      };
      const source = new Source(sink, from(payloads(rest)));
      taker.request = (n) => source.request(n);
      taker.cancel = () => source.cancel();
      const isCompleted = rest.length === 0;
      taker.subscription = this.socket.requestChannel(this.payload(route, offers[0]), CREDIT, isCompleted, taker);
    });
  }

  async lives() {
    assert.deepStrictEqual(decode(await this.ask("orders.place", ORDER)), { id: "ACME-3", total: 3 * PRICE });
  }

  async fails(route, value, entries) {
    return failure(this.ask(route, value, entries));
  }
}

class Taker {
  constructor(take, resolve, reject) {
    Object.assign(this, { take, resolve, reject, items: [], subscription: null });
  }

  onNext({ data }, isComplete) {
    this.items.push(data);
    if (isComplete) return this.onComplete();
    if (this.items.length === this.take) {
      this.subscription.cancel();
      this.resolve(this.items);
    } else if (this.items.length % CREDIT === 0) this.subscription.request(CREDIT);
  }

  onComplete() {
    this.resolve(this.items);
  }

  onError(error) {
    this.reject(error);
  }

  onExtension() {}
}

async function failure(promise) {
  let result;
  try {
    result = await promise;
  } catch (error) {
    return error;
  }
  throw new Error(`it did not fail: ${result}`);
}

const simple = (name, password) => [[AUTHENTICATION, encodeSimpleAuthMetadata(name, password)]];
const bearer = (token) => [[AUTHENTICATION, encodeBearerAuthMetadata(token)]];

function user(entries) {
  return async (client) => {
    assert.equal(await client.ask("secret", undefined, entries), "ann");
    assert.equal(await client.ask("whoami"), "nobody");
  };
}

function refused(entries) {
  return async (client) => {
    await client.fails("secret", undefined, entries);
    await client.lives();
  };
}

const CHECKS = {
  response: async (client) => {
    for (let amount = 0; amount < 20; amount++) {
      const reply = decode(await client.ask("orders.place", { symbol: "ACME", amount }));
      assert.deepStrictEqual(reply, { id: `ACME-${amount}`, total: amount * PRICE });
    }
  },
  "fire-and-forget": async (client) => {
    await client.ask("orders.clear");
    client.socket.fireAndForget(client.payload("orders.note", ORDER), { onComplete() {}, onError() {} });
    let found = [];
    while (found.length === 0) found = decode(await client.ask("orders.notes"));
    assert.deepStrictEqual(found, [ORDER]);
  },
  stream: async (client) => {
    assert.deepStrictEqual((await client.stream("ticks.ACME")).map(decode), [...ticks("ACME")]);
  },
  "stream-since": async (client) => {
    assert.deepStrictEqual((await client.stream("ticks.ACME", 250)).map(decode), [...ticks("ACME", 250)]);
  },
  "stream-cancelled": async (client) => {
    const some = await client.stream("ticks.ACME", undefined, 7);
    assert.deepStrictEqual(some.map(decode), [...ticks("ACME")].slice(0, 7));
    await client.lives();
  },
  channel: async (client) => {
    const offers = Array.from({ length: 100 }, (_, price) => ({ price }));
    const answers = (await client.channel("negotiate", offers)).map(decode);
    assert.deepStrictEqual(answers, offers.map(({ price }) => ({ price, accepted: price >= PRICE })));
  },
  "channel-variable": async (client) => {
    const answers = await client.channel("negotiate.ACME", [{ price: 1.5 }, { price: 2.5 }]);
    assert.deepStrictEqual(answers.map(String), ["ACME at 1.5", "ACME at 2.5"]);
  },
  "channel-empty": async (client) => {
    assert.deepStrictEqual(await client.channel("negotiate.ACME", []), []);
    await client.lives();
  },
  "channel-cancelled": async (client) => {
    const offers = Array.from({ length: 5000 }, (_, price) => ({ price }));
    assert.equal((await client.channel("negotiate", offers, 5)).length, 5);
    await client.lives();
  },
  nothing: async (client) => {
    assert.equal(await client.ask("orders.clear"), "");
  },
  large: async (client) => {
    const text = "0123456789".repeat(LARGE / 10);
    assert.equal(decode(await client.ask("large", { text })).text, text + "!");
  },
  details: async (client) => {
    const error = await client.fails("fail", ORDER);
    assert.deepStrictEqual([error.code, JSON.parse(error.message)], [ErrorCodes.APPLICATION_ERROR, DETAILS]);
    await client.lives();
  },
  "details-stream": async (client) => {
    assert.deepStrictEqual(JSON.parse((await failure(client.stream("fail.stream"))).message), DETAILS);
  },
  "details-channel": async (client) => {
    const error = await failure(client.channel("fail.channel", [{ price: 1 }, { price: 2 }]));
    assert.deepStrictEqual(JSON.parse(error.message), DETAILS);
  },
  "wrong-field": async (client) => {
    await client.fails("orders.place", { symbol: "ACME", amount: "many" });
    await client.lives();
  },
  "invalid-field": async (client) => {
    const { code, message } = await client.fails("orders.place", { symbol: "ACME", amount: "many" });
    assert.deepStrictEqual([code, message], [ErrorCodes.INVALID, "$.amount: expected int, got str"]);
  },
  "unknown-route": async (client) => {
    await client.fails("no.such.route", ORDER);
    await client.lives();
  },
  callback: async (client) => {
    assert.equal(await client.ask("callback"), "rsocket-js for server has 3");
  },
  simple: user(simple("ann", "secret")),
  bearer: user(bearer("token-of-ann")),
  "simple-refused": refused(simple("ann", "guess")),
  "bearer-refused": refused(bearer("token-of-nobody")),
  "anonymous-refused": refused(),
  requirement: async (client) => {
    await client.fails("admin", undefined, simple("ann", "secret"));
    assert.equal(await client.ask("admin", undefined, simple("root", "toor")), "root");
  },
};

async function inSetup(client) {
  assert.equal(await client.ask("whoami"), "ann");
  assert.equal(await client.ask("secret"), "ann");
}

async function setupRefused(client) {
  const error = await client.closed;
  assert.equal(error.code, ErrorCodes.REJECTED_SETUP);
}

const withEntries = (entries) => ({ data: Buffer.alloc(0), metadata: encodeCompositeMetadata(entries) });

// What the SETUP carries, and what is checked then.
const SETUPS = {
  setup: [
    { data: encode({ name: "ann" }), metadata: encodeCompositeMetadata([[ROUTING, encodeRoute("hello.Oslo")]]) },
    async (client) => assert.equal(await client.ask("name"), "ann of Oslo"),
  ],
  "simple-setup": [withEntries(simple("ann", "secret")), inSetup],
  "bearer-setup": [withEntries(bearer("token-of-ann")), inSetup],
  "simple-setup-refused": [withEntries(simple("ann", "guess")), setupRefused],
  "bearer-setup-refused": [withEntries(bearer("token-of-nobody")), setupRefused],
  "setup-without-user": [undefined, setupRefused],
};

async function check(name, uri, mime) {
  const [payload, play] = SETUPS[name] ?? [undefined, CHECKS[name]];
  if (!play) throw new Error("no such check");
  const connector = new RSocketConnector({
    transport: new TcpClientTransport({ connectionOptions: { host: HOST, port: Number(new URL(uri).port) } }),
    setup: {
      payload,
      dataMimeType: mime === "entry" ? OCTETS : mime,
      metadataMimeType: COMPOSITE,
      keepAlive: 20000,
      lifetime: 90000,
    },
    responder: responder(CALLED, null),
  });
  const client = new Client(await connector.connect(), mime);
  client.closed = new Promise((resolve) => client.socket.onClose(resolve));
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error("too late")), PATIENCE)));
  try {
    await Promise.race([play(client), late]);
  } finally {
    clearTimeout(timer);
    client.socket.close();
  }
}

let listener;

async function main() {
  const transport = new TcpServerTransport({
    listenOptions: { host: HOST, port: 0 },
    socketCreator: (config) => (listener = net.createServer(config)),
  });
  const accept = async (setup, peer) => responder(RESPONSES, connectionOf(setup, peer));
  await new RSocketServer({ transport, acceptor: { accept } }).bind();
  console.log(`listening tcp://${HOST}:${listener.address().port}`);
  for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    const [name, uri, mime] = line.split(" ");
    try {
      await check(name, uri, mime);
      console.log(`ok ${name}`);
    } catch (error) {
      console.log(`FAILED ${name}: ${String(error?.message ?? error).replace(/\s+/g, " ")}`);
    }
  }
  process.exit(0);
}

process.on("unhandledRejection", (error) => console.error("unhandled:", error));
main();
