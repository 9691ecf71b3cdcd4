// Draws the pictures of the dashboard: `cargo xtask pictures --dashboard`. The arguments are the program, the folder for the
// pictures, and the seconds of traffic to show, which take as long as they say.
"use strict";

const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const readline = require("node:readline");
const { spawn } = require("node:child_process");
const { launch } = require("./chromium.js");
const { startTraffic, startUpstream } = require("./traffic.js");

/** Mean times of the shop's servers, in milliseconds. */
const UPSTREAMS = { APP_1: 6, APP_2: 9, MEDIA: 22 };
const SIZE = { width: 1280, height: 1138 };

/** Starts the shop of shop.yaml and returns its listeners by name. */
async function startShop(program, folder) {
  let rules = fs.readFileSync(path.join(__dirname, "shop.yaml"), "utf8");
  for (const [name, meanMs] of Object.entries(UPSTREAMS)) rules = rules.replace(`"${name}"`, `"${(await startUpstream(meanMs)).address}"`);
  const file = path.join(folder, "rules.yaml");
  fs.writeFileSync(file, rules);
  const flags = ["http", "grpc", "resp", "admin", "gateway"].flatMap((name) => [`--${name}`, "127.0.0.1:0"]);
  const server = spawn(program, ["serve", ...flags, "--rules", file], { stdio: ["ignore", "pipe", "ignore"] });
  process.on("exit", () => server.kill());
  const shop = {};
  for await (const line of readline.createInterface({ input: server.stdout })) {
    const [, name, address] = line.split(" ");
    if (line === "ready") return shop;
    shop[name] = `http://${address}`;
  }
  throw new Error("the server did not start");
}

async function main() {
  const [program, target, seconds = "300"] = process.argv.slice(2);
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "dashboard-"));
  const shop = await startShop(program, folder);
  startTraffic(shop);
  const browser = await launch();
  const pages = {};
  for (const colorScheme of ["light", "dark"]) {
    pages[colorScheme] = await browser.newPage({ viewport: SIZE, colorScheme });
    await pages[colorScheme].goto(shop.admin);
  }
  console.log(`traffic for ${seconds} s`);
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  for (const [colorScheme, page] of Object.entries(pages)) {
    await page.bringToFront();
    await page.screenshot({ path: path.join(target, `dashboard-${colorScheme}.png`) });
  }
  await browser.close();
  fs.rmSync(folder, { recursive: true });
  process.exit(0);
}

main();
