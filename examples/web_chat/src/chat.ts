// The chat's page: a name and a room to enter, lines with credit, and a connection that comes back.

import { encodeCompositeMetadata, encodeRoute } from "rsocket-composite-metadata";
import {
  Cancellable,
  ErrorCodes,
  OnExtensionSubscriber,
  OnNextSubscriber,
  OnTerminalSubscriber,
  Payload,
  Requestable,
  RSocket,
  RSocketConnector,
  RSocketError,
} from "rsocket-core";
import { WebsocketClientTransport } from "rsocket-websocket-client";

type Channel = OnTerminalSubscriber & OnNextSubscriber & OnExtensionSubscriber & Requestable & Cancellable;

const CREDIT = 8; // lines that the server may send before one of them was shown
const MAX_LINES = 500; // lines that the page keeps
const MAX_DELAY = 8000; // milliseconds between two tries to connect
const ROUTE = "message/x.rsocket.routing.v0" as never;

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

const login = element<HTMLFormElement>("login");
const refusal = element<HTMLElement>("refusal");
const chat = element<HTMLElement>("chat");
const lines = element<HTMLOListElement>("lines");
const rooms = element<HTMLUListElement>("rooms");
const status = element<HTMLElement>("status");
const credit = element<HTMLElement>("credit");
const reading = element<HTMLButtonElement>("reading");
const say = element<HTMLFormElement>("say");
const text = element<HTMLInputElement>("text");

let name = "";
let room = "lobby";
let rsocket: RSocket | undefined;
let channel: Channel | undefined;
let granted = 0; // lines that the server may still send
let unread = 0; // lines that were shown and not made up for, because reading is paused
let isPaused = false;

function payload(route: string, data = ""): Payload {
  return { data: Buffer.from(data), metadata: encodeCompositeMetadata([[ROUTE, encodeRoute(route)]]) };
}

function show(line: string): void {
  const item = document.createElement("li");
  item.textContent = line;
  item.className = line.startsWith("*") ? "note" : line.startsWith(`${name}: `) ? "own" : "";
  lines.append(item);
  while (lines.children.length > MAX_LINES) lines.firstChild?.remove();
  item.scrollIntoView({ block: "nearest" });
  if (line.startsWith("*")) void listRooms();
}

function showCredit(): void {
  credit.textContent = `${granted}`;
  credit.classList.toggle("empty", granted === 0);
}

function ask(route: string, data: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const onNext = (answer: Payload) => resolve(answer.data?.toString() ?? "");
    rsocket?.requestResponse(payload(route, data), { onNext, onComplete() {}, onError: reject, onExtension() {} });
  });
}

function listRooms(): Promise<void> {
  const found: string[] = [];
  return new Promise((resolve) => {
    function done(): void {
      rooms.replaceChildren(...found.map(roomButton));
      resolve();
    }
    const onNext = (item: Payload, isComplete: boolean) => {
      found.push(item.data?.toString() ?? "");
      if (isComplete) done();
    };
    rsocket?.requestStream(payload("rooms"), 100, { onNext, onComplete: done, onError: done, onExtension() {} });
  });
}

function roomButton(shown: string): HTMLLIElement {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.textContent = shown;
  button.onclick = () => void join(shown.split(" ")[0]);
  item.append(button);
  return item;
}

async function join(other: string): Promise<void> {
  try {
    await ask("join", other);
    room = other;
    element("room").textContent = room;
  } catch (error) {
    show(`* ${(error as Error).message}`);
  }
}

// What was typed waits in the field until the server grants credit for it.
let roomToSay = 0; // lines that the server will take
function sendTyped(): void {
  if (!channel || !roomToSay || !text.value.trim()) return;
  roomToSay -= 1;
  channel.onNext({ data: Buffer.from(text.value) }, false);
  text.value = "";
}

/** Be in the room until the connection ends. Resolve with its error. */
async function stay(): Promise<Error | undefined> {
  const url = await (await fetch("server")).text();
  const transport = new WebsocketClientTransport({ url, wsCreator: (address) => new WebSocket(address) as never });
  const setup = {
    payload: { data: Buffer.from(name) },
    dataMimeType: "text/plain",
    metadataMimeType: "message/x.rsocket.composite-metadata.v0",
    keepAlive: 10000, // milliseconds
    lifetime: 90000,
  };
  // The server asks its members for the time: requests go both ways on one connection.
  const responder = {
    requestResponse(_: Payload, answer: OnTerminalSubscriber & OnNextSubscriber & OnExtensionSubscriber) {
      answer.onNext({ data: Buffer.from(new Date().toTimeString().slice(0, 5)) }, true);
      return { cancel() {}, onExtension() {} };
    },
  };
  const connection = await new RSocketConnector({ transport, setup, responder }).connect();
  const ended = new Promise<Error | undefined>((resolve) => connection.onClose(resolve));
  rsocket = connection;
  granted = CREDIT;
  unread = roomToSay = 0;
  channel = connection.requestChannel(payload("chat", room), CREDIT, false, {
    onNext(line) {
      granted -= 1;
      entered();
      show(line.data?.toString() ?? "");
      // Credit for the next line, once this one was shown.
      if (isPaused) unread += 1;
      else grant(1);
      showCredit();
    },
    onComplete: () => connection.close(),
    onError: (error) => {
      // Of a connection that has ended rsocket-js tells its streams first, and then onClose.
      if (error.message.startsWith("Closed.")) return;
      show(`* ${error.message}`);
      connection.close(error);
    },
    onExtension() {},
    request(count) {
      roomToSay += count;
    },
    cancel() {},
  });
  showCredit();
  return ended;
}

function grant(count: number): void {
  granted += count;
  channel?.request(count);
  showCredit();
}

function entered(): void {
  login.hidden = true;
  chat.hidden = false;
  status.textContent = "connected";
  status.className = "up";
}

/** Stay in the room over as many connections as it takes, unless the server refuses the name. */
async function enter(): Promise<void> {
  for (let delay = 500; ; delay = Math.min(2 * delay, MAX_DELAY)) {
    const began = Date.now();
    const error = await stay().catch((cause: Error) => cause);
    channel = rsocket = undefined;
    if (error && (error as RSocketError).code === ErrorCodes.REJECTED_SETUP && chat.hidden) {
      refusal.textContent = error.message;
      return;
    }
    status.textContent = "the connection is lost: trying again";
    status.className = "down";
    if (Date.now() - began > MAX_DELAY) delay = 500;
    await new Promise((resolve) => setTimeout(resolve, delay));
  }
}

login.onsubmit = (event) => {
  event.preventDefault();
  refusal.textContent = "";
  name = element<HTMLInputElement>("name").value.trim();
  room = element<HTMLInputElement>("entry").value.trim() || "lobby";
  element("who").textContent = name;
  element("room").textContent = room;
  void enter();
};
say.onsubmit = (event) => {
  event.preventDefault();
  sendTyped();
};
reading.onclick = () => {
  isPaused = !isPaused;
  reading.textContent = isPaused ? "Read on" : "Pause reading";
  if (!isPaused && unread) {
    grant(unread);
    unread = 0;
  }
};
element<HTMLFormElement>("move").onsubmit = (event) => {
  event.preventDefault();
  const other = element<HTMLInputElement>("other");
  if (other.value.trim()) void join(other.value.trim());
  other.value = "";
};
