// Views of a server that has 10,000 rules, two upstreams and a queue: what they show, and that they stay small.
"use strict";

const assert = require("node:assert/strict");
const { startTraffic } = require("./traffic.js");

/** Elements of a page at most, whatever the number of rules. */
const ELEMENTS_MAX = 2500;

async function assertSmall(page, where) {
  const elements = await page.evaluate(() => document.querySelectorAll("*").length);
  assert.ok(elements < ELEMENTS_MAX, `${where} has ${elements} elements`);
}

module.exports = {
  async "10,000 rules are shown in pages, found and sorted"(test) {
    const page = await test.open("#/rules", { address: test.servers.busy.admin });
    await page.getByRole("status").filter({ hasText: /^10,00\d rules/ }).waitFor();
    assert.equal(await page.locator("main details").count(), 50);
    await page.getByRole("button", { name: "Next" }).click();
    await page.getByText("51 to 100 of 10,00").waitFor();
    await assertSmall(page, "the list");

    await page.getByLabel("Name contains").fill("tenant-99");
    await page.getByRole("status").filter({ hasText: /^111 of 10,00\d rules/ }).waitFor();
    await page.locator("summary", { hasText: "tenant-9900" }).click();
    await page.locator("details[open]", { hasText: "path matches /tenants/9900" }).waitFor();
    await page.getByText(/sliding window counter, 7 per 1 min, room for 7/).waitFor();

    await page.getByLabel("Name contains").fill("no-such-rule");
    await page.getByText("No rule has such a name.").waitFor();
  },

  async "the gateway's servers and queues are shown"(test) {
    const stopTraffic = startTraffic(test.servers.busy, 2);
    try {
      const page = await test.open("#/gateway", { address: test.servers.busy.admin });
      const app = page.locator("table", { hasText: "Upstream app" });
      assert.equal(await app.locator("tbody tr").count(), 2);
      for (const row of await app.locator("tbody tr").all()) await row.locator("td").nth(2).filter({ hasText: /^[1-9]/ }).waitFor();
      await app.getByText("up", { exact: true }).first().waitFor();
      const queue = page.locator("table", { hasText: "Queues" }).locator("tr", { hasText: "thumbnails" });
      await queue.locator("td").nth(1).filter({ hasText: /^[1-9]/ }).waitFor();
    } finally {
      stopTraffic();
    }
  },
};
