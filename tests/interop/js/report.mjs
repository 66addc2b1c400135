// Opens a page in a headless Chromium and says, as one line of JSON, what it drew and what it wanted of the network.
//
//   node report.mjs PAGE SCREENSHOT PROFILE [CHROMIUM]
//
// Without CHROMIUM, that of the package @sparticuz/chromium is unpacked (once) and used.

import { pathToFileURL } from "node:url";

import puppeteer from "puppeteer-core";

const [page, screenshot, profile, chromium] = process.argv.slice(2);

const executablePath = chromium || (await (await import("@sparticuz/chromium")).default.executablePath());
const browser = await puppeteer.launch({
  executablePath,
  headless: true,
  pipe: true,
  userDataDir: profile,
  args: [
    ...["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"],
    ...["--disable-background-networking", "--disable-component-update"],
  ],
});
try {
  const tab = await browser.newPage();
  const said = [];
  const asked = [];
  tab.on("console", (message) => said.push(`${message.type()}: ${message.text()}`));
  tab.on("pageerror", (error) => said.push(`error: ${error.message}`));
  tab.on("dialog", async (dialog) => {
    said.push(`dialog: ${dialog.message()}`);
    await dialog.dismiss();
  });
  tab.on("request", (request) => asked.push(request.url()));
  await tab.setViewport({ width: 1280, height: 900 });
  await tab.goto(pathToFileURL(page).href, { waitUntil: "load" });
  const plots = await tab.evaluate(() =>
    Object.fromEntries(
      [...document.querySelectorAll(".plot")].map((plot) => [
        plot.id.replace("plot-", ""),
        {
          svgs: plot.querySelectorAll("svg.main-svg").length,
          // A bar, a cell of a heat map's picture, a line: whatever stands for a value.
          marks: [...plot.querySelectorAll(".bars .point path, .heatmaplayer image, .scatterlayer .js-line")].filter(
            (mark) => mark.tagName === "image" ? mark.getAttribute("href").length > 100 : mark.getAttribute("d").length > 4,
          ).length,
          width: plot.getBoundingClientRect().width,
          text: plot.textContent,
        },
      ]),
    ),
  );
  const rows = await tab.evaluate(() => document.querySelectorAll("tbody tr").length);
  await tab.screenshot({ path: screenshot, fullPage: true });
  // The page itself, and pictures that are part of it.
  const network = asked.filter((url) => !/^(file|data|blob):/.test(url) || (url.startsWith("file:") && url !== asked[0]));
  console.log(JSON.stringify({ plots, rows, said, network }));
} finally {
  await browser.close();
}
