// Runs the cases of this folder in one Chromium, each on pages of its own. The argument is JSON with the addresses of
// the servers (see case_context.js). `DASHBOARD_CASES` runs only the cases whose name contains its text.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { CaseContext } = require("./case_context.js");

/** All cases: an async function by a name that says what it shows. */
const CASES = {
  ...require("./page_cases.js"),
  ...require("./key_cases.js"),
  ...require("./token_cases.js"),
  ...require("./access_cases.js"),
  ...require("./hostile_cases.js"),
  ...require("./playground_cases.js"),
  ...require("./stream_cases.js"),
};

/** Deadline of a case; one that passes takes a few seconds. */
const CASE_MS = 60000;

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
  "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];

/** Debian's Chromium; playwright-core brings no browser. */
function chromiumPath() {
  const places = process.env.PATH.split(":").map((folder) => path.join(folder, "chromium"));
  const found = places.find((place) => fs.existsSync(place));
  if (!found) throw new Error("chromium is not there: `cargo xtask test --only packages` installs it");
  return found;
}

/** Runs a case; returns what went wrong, or `null`. */
async function problemOf(run, context) {
  try {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error("the case does not end")), CASE_MS).unref());
    await Promise.race([run(context), late]);
    return context.complaints.length ? context.complaints.join("\n") : null;
  } catch (error) {
    return [error.stack, ...context.complaints].join("\n");
  } finally {
    await context.close();
  }
}

async function main() {
  const servers = JSON.parse(process.argv[2]);
  const browser = await chromium.launch({ executablePath: chromiumPath(), args: FLAGS });
  const wanted = Object.entries(CASES).filter(([name]) => name.includes(process.env.DASHBOARD_CASES ?? ""));
  let failures = 0;
  for (const [name, run] of wanted) {
    const begun = performance.now();
    const problem = await problemOf(run, new CaseContext(browser, servers));
    console.log(`${problem === null ? "passed" : "FAILED"} ${name} (${Math.round(performance.now() - begun)} ms)`);
    if (problem === null) continue;
    failures += 1;
    console.log(problem.replace(/^/gm, "    "));
  }
  await browser.close();
  process.exit(failures === 0 ? 0 : 1);
}

main();
