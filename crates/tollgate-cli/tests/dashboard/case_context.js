// What a case of the browser tests works with: pages that are watched, and the servers.
"use strict";

const path = require("node:path");
const readline = require("node:readline");

/** Deadline of every wait; a passing case never reaches it. */
const DEADLINE_MS = 20000;

const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Asks the Rust side for something, such as a restart, and returns its answer. */
async function askTest(request) {
  process.stdout.write(`ask ${request}\n`);
  return (await answers.next()).value;
}

class CaseContext {
  /**
   * `servers` are addresses: the listeners `admin`, `http` and `gateway` of one, and the admin
   * listeners `guarded` of another, which wants `token` and decides at `guarded_http`, and `restarted` of one that a case may restart; `busy` has the listeners of one with many rules,
   * and `by_api_key` is the admin listener of one whose users are identified by their API keys, which decides at `by_api_key_http`.
   */
  constructor(browser, servers) {
    Object.assign(this, { browser, servers, ask: askTest });
    /** Messages of the console, uncaught errors and breaches of the policy, on any page of the case. */
    this.complaints = [];
    this.contexts = [];
    /** Messages that a case provokes on purpose, such as a response 401. */
    this.expected = [];
  }

  /** Opens a page at a view, in a profile of its own. `prepare(page)` runs before it loads. */
  async open(hash = "", { address = this.servers.admin, prepare = () => {}, ...options } = {}) {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
    this.contexts.push(context);
    context.setDefaultTimeout(DEADLINE_MS);
    const page = await context.newPage();
    await this.watch(page);
    await prepare(page);
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

  /** Has requests decided: the body is one of /v1/check. Returns the last decision. */
  async check(body, times = 1, http = this.servers.http) {
    let decision = null;
    for (let sent = 0; sent < times; sent += 1) {
      const response = await fetch(`${http}/v1/check`, { method: "POST", body: JSON.stringify(body) });
      decision = await response.json();
    }
    return decision;
  }

  /** What the admin API tells. */
  async admin(path) {
    const response = await fetch(this.servers.admin + path);
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return response.json();
  }

  /** Writes a picture of the page, for people to look at, if `DASHBOARD_PICTURES` names a folder. */
  async picture(page, name) {
    const folder = process.env.DASHBOARD_PICTURES;
    if (folder) await page.screenshot({ path: path.join(folder, `${name}.png`), fullPage: true });
  }

  /** Waits for something outside the page. */
  async until(what, holds) {
    const deadline = performance.now() + DEADLINE_MS;
    while (!(await holds())) {
      if (performance.now() > deadline) throw new Error(`waited for ${what}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  async close() {
    for (const context of this.contexts) await context.close();
  }
}

/** Opens all that is folded away. */
function openDetails(page) {
  return page.evaluate(() => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
}

/** Elements that reach beyond their card or the page; runs in the page. What scrolls on its own may be wider. */
function outside() {
  const beyond = (element) => element.getBoundingClientRect().right
    > (element.closest(".card")?.getBoundingClientRect().right ?? document.documentElement.clientWidth) + 0.5;
  const found = [...document.querySelectorAll("header *, main *")].filter((element) => !element.closest(".scroll, pre, textarea, select, svg") && beyond(element));
  const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth ? ["the page"] : [];
  return [...wide, ...found.map((element) => element.outerHTML.slice(0, 200))];
}

module.exports = { CaseContext, openDetails, outside };
