// The page itself: it loads, shows each view, and obeys its policy.
"use strict";

const assert = require("node:assert/strict");

const VIEWS = { overview: "Overview", keys: "Keys", rules: "Rules", gateway: "Gateway", reloads: "Reloads", playground: "Playground" };

module.exports = {
  async "each view loads"(test) {
    const page = await test.open();
    for (const [view, title] of Object.entries(VIEWS)) {
      await page.getByRole("link", { name: title, exact: true }).click();
      await page.locator(`main[data-view=${view}] h1`).waitFor({ state: "attached" });
      assert.equal(await page.title(), `${title} · Tollgate`);
      assert.equal(await page.locator("nav a[aria-current]").innerText(), title);
    }
  },
};
