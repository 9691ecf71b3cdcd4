// Runs the cases of this folder in one Chromium. The argument is JSON with the addresses of the servers: `admin`, `http`.
// A line `ask REQUEST` on standard output asks the test for something, such as a restart; it answers with one line.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { chromium } = require("playwright-core");

/** Modules with cases: objects from a name to an async function that gets a `CaseContext`. */
const CASES = { ...require("./page_cases.js") };

/** Deadline of every wait; a passing case never reaches it. */
const DEADLINE_MS = 20000;

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

const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Asks the test for something and returns its answer. */
async function askTest(request) {
  process.stdout.write(`ask ${request}\n`);
  return (await answers.next()).value;
}

/** What a case works with: the browser, the servers' addresses, and what has gone wrong on its pages. */
class CaseContext {
  constructor(browser, servers) {
    Object.assign(this, { browser, servers, ask: askTest });
    /** Messages of the console, uncaught errors and breaches of the policy, on any page of the case. */
    this.complaints = [];
    this.contexts = [];
    /** Messages that a case provokes on purpose, such as a response 401. */
    this.expected = [];
  }

  /** Opens a page at a view, in a profile of its own. */
  async open(hash = "", { address = this.servers.admin, ...options } = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
    this.contexts.push(context);
    context.setDefaultTimeout(DEADLINE_MS);
    const page = await context.newPage();
    await this.watch(page);
    await page.goto(`${address}/${hash}`);
    return page;
  }

  async watch(page) {
    const complain = (text) => this.expected.some((known) => known.test(text)) || this.complaints.push(text);
    page.on("console", (message) => complain(`console ${message.type()}: ${message.text()} ${message.location().url}`));
    page.on("pageerror", (error) => complain(`uncaught: ${error.stack}`));
    page.on("dialog", (dialog) => {
      complain(`a dialog opened: ${dialog.message()}`);
      dialog.dismiss();
    });
    await page.addInitScript(() => {
      addEventListener("securitypolicyviolation", (event) =>
        console.error(`policy: ${event.violatedDirective} forbids ${event.blockedURI} ${event.sample}`));
    });
  }

  async close() {
    for (const context of this.contexts) await context.close();
  }
}

async function main() {
  const servers = JSON.parse(process.argv[2]);
  const browser = await chromium.launch({ executablePath: chromiumPath(), args: FLAGS });
  let failures = 0;
  for (const [name, run] of Object.entries(CASES)) {
    const begun = performance.now();
    const context = new CaseContext(browser, servers);
    let failure = null;
    try {
      await run(context);
      if (context.complaints.length) failure = context.complaints.join("\n");
    } catch (error) {
      failure = [error.stack, ...context.complaints].join("\n");
    }
    await context.close();
    failures += failure === null ? 0 : 1;
    console.log(`${failure === null ? "passed" : "FAILED"} ${name} (${Math.round(performance.now() - begun)} ms)`);
    if (failure !== null) console.log(failure.replace(/^/gm, "    "));
  }
  await browser.close();
  process.exit(failures === 0 ? 0 : 1);
}

main();
