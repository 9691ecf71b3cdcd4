// Bad weather: a store that is killed, a server that is killed or silent, and rules with a mistake. The page says so on every
// view, and calls nothing good that is not known to be.
"use strict";

const assert = require("node:assert/strict");
const { findings } = require("./axe.js");
const { outside } = require("./case_context.js");

const VIEWS = ["#/overview", "#/keys?rule=reports&key=user%3Dunlucky", "#/keys", "#/rules", "#/gateway", "#/reloads", "#/playground"];
const CALLER = { method: "GET", path: "/api/reports", ip: "192.0.2.1", user: "unlucky" };
/** Pause between two checks. */
const PAUSE_MS = 20;

/** Has a request decided again and again, until the returned function is called. */
function keepAsking(test, http) {
  let isOver = false;
  const ask = async () => {
    while (!isOver) {
      await test.check(CALLER, 1, http).catch(() => {});
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  };
  const asking = ask();
  return () => {
    isOver = true;
    return asking;
  };
}

function tile(page, name) {
  return page.locator(".tile", { has: page.locator("dt", { hasText: name }) }).locator("dd");
}

/** Shows each view and waits for this line of the banner above it. */
async function assertOnEveryView(page, line) {
  for (const view of VIEWS) {
    await page.evaluate((hash) => { location.hash = hash; }, view);
    await page.locator("main h1").first().waitFor({ state: "attached" });
    await page.locator("#banner", { hasText: line }).waitFor();
    assert.deepEqual(await page.evaluate(outside), [], view);
  }
  await page.evaluate(() => { location.hash = "#/overview"; });
}

/** Words that are marked as good in the card of the server. */
function goodWords(page) {
  return page.locator("section", { has: page.locator("h2", { hasText: "Server and store" }) }).locator(".badge.good").allInnerTexts();
}

module.exports = {
  async "a store that is killed is told on every view, and what is refused for it is counted"(test) {
    test.expected.push(/status of (404|503)/);
    const shop = JSON.parse(await test.ask("shop start outage"));
    const stopAsking = keepAsking(test, shop.http);
    try {
      // Without transitions of colours, which would be measured half-way.
      const page = await test.open("", { address: shop.admin, reducedMotion: "reduce" });
      await tile(page, "Refused").filter({ hasText: /^[1-9]/ }).waitFor();
      assert.deepEqual(await goodWords(page), ["up", "closed"]);
      assert.equal(await page.locator("#banner").innerText(), "");

      await test.ask("shop kill-store outage");
      await page.locator("#banner", { hasText: /Store down default: .+\. [0-9.]+ requests a second are refused because of it/ }).waitFor();
      await tile(page, "Unavailable").filter({ hasText: /^[1-9].* · 100 %$/ }).waitFor();
      assert.deepEqual(await goodWords(page), []);
      await page.locator("path.line-unavailable").waitFor();
      const busiest = page.locator("table", { hasText: "Busiest rules" });
      await busiest.locator("th", { hasText: "Unavailable" }).waitFor();
      await page.locator("table", { hasText: "Recent refusals" }).getByText("store unavailable").first().waitFor();
      await page.locator("#chart-rule").fill("reports");
      await page.locator("#chart-rule").press("Enter");
      await page.locator(".legend li", { hasText: "Unavailable" }).locator(".value", { hasText: /^[1-9]/ }).waitFor();

      for (const colorScheme of ["dark", "light"]) {
        await page.emulateMedia({ colorScheme });
        assert.deepEqual(await findings(page), [], colorScheme);
      }
      await page.setViewportSize({ width: 390, height: 844 });
      await assertOnEveryView(page, "Store down");
      await page.goto(`${shop.admin}/#/keys?rule=reports&key=user%3Dunlucky`);
      await page.getByText("when the store answers").first().waitFor();
    } finally {
      await stopAsking();
    }
  },

  async "in an outage the list of refused keys says that no limit refused any, and by how many requests"(test) {
    test.expected.push(/status of (404|503)/);
    const shop = JSON.parse(await test.ask("shop start pure"));
    const page = await test.open("", { address: shop.admin });
    const empty = page.locator("table", { hasText: "Most refused keys" }).locator("td.empty");
    await empty.filter({ hasText: /^Nothing was refused lately\.$/ }).waitFor();
    await test.ask("shop kill-store pure");
    await test.until("the outage to be noticed", async () => (await test.check(CALLER, 1, shop.http)).reason === "store_unavailable");
    const stopAsking = keepAsking(test, shop.http);
    try {
      const told = /^No key was refused by its limit\. The store does not answer: [1-9][0-9.]* requests a second are answered "unavailable"\./;
      await empty.filter({ hasText: told }).waitFor();
      await page.goto(`${shop.admin}/#/keys`);
      await empty.filter({ hasText: told }).waitFor();
      await empty.filter({ hasText: /Enter a rule and a key above\.$/ }).waitFor();
      await test.picture(page, "pure-outage");
    } finally {
      await stopAsking();
    }
  },

  async "a server that is killed or silent is not shown as up, and its last numbers not as those of now"(test) {
    test.expected.push(/ERR_|status of 404/);
    const shop = JSON.parse(await test.ask("shop start dead"));
    const stopAsking = keepAsking(test, shop.http);
    try {
      const page = await test.open("", { address: shop.admin });
      await tile(page, "Refused").filter({ hasText: /^[1-9]/ }).waitFor();
      assert.deepEqual(await goodWords(page), ["up", "closed"]);

      await test.ask("shop freeze-server dead");
      await page.locator("#banner", { hasText: /Old data Nothing since [0-9:]+/ }).waitFor();
      await test.until("nothing to be called good", async () => (await goodWords(page)).length === 0);
      await tile(page, "Allowed").filter({ hasText: /^– / }).waitFor();
      await test.ask("shop thaw-server dead");
      await tile(page, "Refused").filter({ hasText: /^[1-9]/ }).waitFor();
      await page.waitForFunction(() => document.getElementById("banner").textContent === "");
      await test.until("the store to be up again", async () => (await goodWords(page)).length === 2);

      await test.ask("shop kill-server dead");
      await page.locator("#banner", { hasText: /Old data Nothing since [0-9:]+: The server does not answer/ }).waitFor();
      await test.until("nothing to be called good", async () => (await goodWords(page)).length === 0);
      for (const name of ["Allowed", "Refused", "Time, median", "Connections"]) await tile(page, name).filter({ hasText: /^–/ }).waitFor();
      await page.setViewportSize({ width: 390, height: 844 });
      await assertOnEveryView(page, "Old data");
    } finally {
      await stopAsking();
    }
  },

  async "a server of an upstream that fails is told on every view, with the reason"(test) {
    const shop = JSON.parse(await test.ask("shop start upstream"));
    const page = await test.open("", { address: shop.admin });
    await page.locator("#connection[data-state=live]").waitFor();
    const banner = page.locator("#banner", { hasText: "127.0.0.1:1 of media is failing: " });
    await test.until("the upstream to fail", async () => {
      await fetch(`${shop.gateway}/media/shoe.webp`).then((response) => response.arrayBuffer());
      return (await banner.count()) > 0;
    });
    await assertOnEveryView(page, "Upstream trouble");
    await page.locator("#banner a", { hasText: "Gateway" }).click();
    const row = page.locator("table", { hasText: "Upstream media" }).locator("tbody tr");
    await row.locator(".badge.warn", { hasText: "failing" }).waitFor();
    assert.match(await row.locator("th").innerText(), /http:\/\/127\.0\.0\.1:1.*, since [0-9:]+/s);
    assert.equal(await page.locator("table", { hasText: "Upstream app" }).locator(".badge.good", { hasText: "up" }).count(), 2);
  },

  async "rules that are refused are told on every view, and nothing sticks out on a phone"(test) {
    const shop = JSON.parse(await test.ask("shop start spoiled"));
    const page = await test.open("", { address: shop.admin, viewport: { width: 390, height: 844 } });
    await page.locator("#connection[data-state=live]").waitFor();
    await test.ask("shop spoil-rules spoiled");
    await assertOnEveryView(page, /Rules refused The files were changed and are wrong \([1-9] errors?\): version 1 stays in force/);
    await page.locator("dd", { hasText: "the last change was refused" }).waitFor();
    assert.deepEqual(await page.evaluate(outside), []);
    await page.locator("#banner a", { hasText: "What is wrong" }).click();
    await page.locator("main[data-view=reloads] pre").first().waitFor();
  },
};
