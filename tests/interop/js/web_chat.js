// Drives two tabs of the web chat in a browser: web_chat.js CHROMIUM URL FOLDER. Prints what each step has shown, a line
// each, and waits for a line on its input where the test cuts the connection. Screenshots go to FOLDER.

"use strict";

const readline = require("node:readline");
const { chromium } = require("playwright-core");

const [executablePath, url, folder] = process.argv.slice(2);
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function enter(browser, name, width) {
  const page = await browser.newPage({ viewport: { width, height: 800 } });
  page.on("pageerror", (error) => console.log(`error: ${error.message}`));
  await page.goto(url);
  await page.fill("#name", name);
  await page.click("#login button");
  return page;
}

function shown(page, text) {
  return page.locator("#lines li", { hasText: text }).first().waitFor();
}

async function say(page, text) {
  await page.fill("#text", text);
  await page.press("#text", "Enter");
}

async function main() {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
  const ada = await enter(browser, "ada", 1280);
  await shown(ada, "* ada joined lobby");
  const refused = await enter(browser, "ada", 400);
  await refused.locator("#refusal", { hasText: "taken" }).waitFor();
  console.log(`refused: ${await refused.textContent("#refusal")}`);
  await refused.close();

  const bob = await enter(browser, "bob", 400);
  await shown(ada, "* bob joined lobby");
  await say(ada, "hello, bob");
  await shown(bob, "ada: hello, bob");
  await say(bob, "<b>hello</b>, ada");
  await shown(ada, "bob: <b>hello</b>, ada");
  console.log("they talk");

  await bob.click("#reading");
  for (let number = 1; number <= 40; number += 1) {
    await say(ada, `line ${number}`);
    await shown(ada, `line ${number}`);
  }
  await bob.locator("#credit", { hasText: /^0$/ }).waitFor();
  const before = await bob.locator("#lines li", { hasText: "line " }).count();
  await bob.click("#reading");
  await shown(bob, "did not keep up");
  console.log(`bob paused: ${before} lines came; then: ${await bob.locator("#lines li", { hasText: "keep up" }).textContent()}`);
  await ada.screenshot({ path: `${folder}/web-chat-1280.png` });
  await bob.screenshot({ path: `${folder}/web-chat-400.png` });

  console.log("cut");
  await ada.locator("#status.down").waitFor();
  await bob.locator("#status.down").waitFor();
  console.log("both have lost the connection");
  await input.next();
  await ada.locator("#status.up").waitFor();
  await bob.locator("#status.up").waitFor();
  await say(ada, "back again");
  await shown(bob, "ada: back again");
  console.log("they talk again");
  await browser.close();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.log(`error: ${error.message}`);
    process.exit(1);
  },
);
