// The page itself: it loads, shows each view, and obeys its policy.
"use strict";

const assert = require("node:assert/strict");

const VIEWS = { overview: "Overview", keys: "Keys", rules: "Rules", gateway: "Gateway", reloads: "Reloads", playground: "Playground" };

/** Sends to the admin listener of the server that cases may change. */
async function send(test, method, path, body = "") {
  const response = await fetch(test.servers.restarted + path, { method, headers: { "X-Tollgate-Admin": "1" }, body });
  return response.status;
}

module.exports = {
  async "changes of the rules are listed with their difference, mistakes with what is wrong"(test) {
    const page = await test.open("#/reloads", { address: test.servers.restarted });
    await page.getByText("The rules have not been read again since the start.").waitFor();
    const rules = await test.ask("rules text").then(JSON.parse);
    assert.equal(await send(test, "PUT", "/api/rules", rules.replace("[20/hour, 100/day]", "[30/hour, 100/day]")), 200);
    await page.locator(".diff .added", { hasText: "30/hour" }).waitFor();
    await page.locator(".diff .removed", { hasText: "20/hour" }).waitFor();
    assert.equal(await send(test, "PUT", "/api/rules", "rules: [{ name: a }]"), 400);
    await page.locator("pre", { hasText: "missing" }).or(page.locator("pre", { hasText: "error" })).first().waitFor();

    await page.getByRole("button", { name: "Reload…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Reload", exact: true }).click();
    await page.getByText(/Version 3 is in force/).waitFor();
    await page.locator(".reload-line", { hasText: "loaded" }).nth(1).waitFor();
    assert.equal(await page.locator(".reload-line").count(), 3);
  },

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
