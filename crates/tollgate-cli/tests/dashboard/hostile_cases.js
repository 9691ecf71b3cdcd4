// Text from outside stays text: keys, paths, names of rules and messages that look like markup or script.
"use strict";

const assert = require("node:assert/strict");
const { openDetails } = require("./case_context.js");

const HOSTILE = [
  "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "\"><svg onload=alert(1)>", "'; alert(1); '", "javascript:alert(1)",
  "{{7*7}}${7*7}", "<a href=javascript:alert(1)>x</a>", "</textarea><b>", "%3Cb%3E&lt;b&gt;", "a\u202Eb",
];

/** Fails if any of it has become an element, or an address that runs script. */
async function assertOnlyText(page, where) {
  const found = await page.evaluate(() => [...document.querySelectorAll("main :is(img, script, iframe, svg[onload], [onerror], [onload], b > a[href^=javascript])"),
    ...[...document.querySelectorAll("a[href]")].filter((link) => link.protocol === "javascript:")].map((element) => element.outerHTML));
  assert.deepEqual(found, [], where);
}

module.exports = {
  async "hostile keys are shown as text and lead to their state"(test) {
    for (const user of HOSTILE) await test.check({ method: "GET", path: "/api/reports", ip: "192.0.2.1", user }, 50);
    const page = await test.open();
    const list = page.locator("section", { has: page.locator("caption:has-text('Most refused keys')") });
    for (const user of HOSTILE) await list.locator("a", { hasText: `user=${user}` }).waitFor();
    await assertOnlyText(page, "overview");

    for (const user of HOSTILE) {
      await page.goto(`${test.servers.admin}/#/keys?rule=reports&key=${encodeURIComponent(`user=${user}`)}`);
      await page.locator("h2", { hasText: `user=${user}` }).waitFor();
      await page.getByText("0 of 20").waitFor();
      await assertOnlyText(page, user);
    }
    await page.goto(`${test.servers.admin}/#/overview`);
    await list.locator("a", { hasText: `user=${HOSTILE[0]}` }).click();
    await page.locator("h2", { hasText: `user=${HOSTILE[0]}` }).waitFor();
  },

  async "hostile names of rules are shown as text"(test) {
    test.expected.push(/status of (400|404)/);
    // The server forbids such names; the page must not rely on that.
    const tally = { allowed: 1, refused: 2, shadow: 3, soft: 0, store_unavailable: 0 };
    const rules = HOSTILE.map((name) => ({ name, mode: "enforce", key: name, match: name, limits: [name], tally, tiers: { [name]: [name] } }));
    const page = await test.open("#/rules", { prepare: (opened) => opened.route("**/api/rules*", (route) =>
      route.fulfill({ json: { version: 1, origin: "files", total: rules.length, matching: rules.length, rules } })) });
    await page.locator("details").first().waitFor();
    await openDetails(page);
    await page.locator("details dl").nth(HOSTILE.length - 1).waitFor();
    await assertOnlyText(page, "rules");
    for (const name of HOSTILE) {
      await page.goto(`${test.servers.admin}/#/keys?rule=${encodeURIComponent(name)}&key=x`);
      await page.locator(".problem").waitFor();
      await assertOnlyText(page, name);
      await page.goto(`${test.servers.admin}/#/overview?rule=${encodeURIComponent(name)}`);
      await page.locator("#chart-rule").waitFor();
      await assertOnlyText(page, name);
    }
  },
};
