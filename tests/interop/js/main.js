"use strict";
// node main.js: listens and connects when told to. Reads a JSON command a line, prints a JSON result a line, and ends
// with standard input. README.md, one folder up, lists the commands.

const readline = require("readline");
const { Client } = require("./client");
const { listen } = require("./server");

const clients = new Map();

async function carryOut({ id, client, connection = 0, ...command }) {
  if (command.do === "listen") return { ok: true, port: await listen(command) };
  if (command.do === "connect") {
    clients.set(id, await Client.connect(command));
    return { ok: true, client: id };
  }
  if (command.do !== "leave") return clients.get(client).run(connection, command);
  const leaving = clients.get(client);
  clients.delete(client);
  await leaving.close();
  return { ok: true };
}

const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("line", async (line) => {
  const command = JSON.parse(line);
  let result;
  try {
    result = await carryOut(command);
  } catch (error) {
    result = { ok: false, code: null, error: String(error?.message ?? error) };
  }
  process.stdout.write(JSON.stringify({ id: command.id, ...result }) + "\n");
});
lines.on("close", () => process.exit(0));
process.on("unhandledRejection", (error) => console.error("unhandled:", error));
