// The page for everybody: rules of axe-core in each view and theme, use by keyboard alone, and phones.
"use strict";

const assert = require("node:assert/strict");
const { findings } = require("./axe.js");
const { openDetails, outside } = require("./case_context.js");

/** Views, with what they show when they are ready. */
const VIEWS = {
  "#/overview": "caption:has-text('Hottest keys')",
  "#/keys": "caption:has-text('Most refused keys')",
  "#/keys?rule=reports&key=user%3Daxe": "caption:has-text('State in every limit')",
  "#/rules": "details",
  "#/gateway": "main .card, main .problem",
  "#/reloads": "main .card",
  "#/playground": "#candidate",
};

/** Returns true if the element with the focus has this selector, and this text if one is given. */
function hasFocus(page, selector, text = null) {
  return page.evaluate(([wanted, words]) => document.activeElement.matches(wanted)
    && (words === null || document.activeElement.textContent === words), [selector, text]);
}

/** Presses Tab until such an element has the focus. */
async function tabTo(page, selector, text = null) {
  for (let pressed = 0; pressed < 60; pressed += 1) {
    if (await hasFocus(page, selector, text)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`${selector} ${text} is not reached by keyboard`);
}

module.exports = {
  async "axe-core finds nothing serious in any view, light and dark"(test) {
    await test.check({ method: "GET", path: "/api/reports", ip: "192.0.2.1", user: "axe" }, 25);
    for (const colorScheme of ["light", "dark"]) {
      const page = await test.open("", { colorScheme });
      for (const [view, ready] of Object.entries(VIEWS)) {
        await page.evaluate((hash) => { location.hash = hash; }, view);
        await page.locator(ready).first().waitFor();
        await openDetails(page);
        assert.deepEqual(await findings(page), [], `${view} ${colorScheme}`);
      }
      await page.evaluate(() => { location.hash = "#/keys?rule=reports&key=user%3Daxe"; });
      await page.getByRole("button", { name: "Block…", exact: true }).click();
      assert.deepEqual(await findings(page), [], `dialog ${colorScheme}`);
    }
    test.expected.push(/status of 401/);
    const form = await test.open("", { address: test.servers.guarded });
    await form.getByLabel("Token").waitFor();
    assert.deepEqual(await findings(form), [], "form for a token");
  },

  async "everything is reached and used by keyboard alone"(test) {
    await test.check({ method: "GET", path: "/api/reports", ip: "192.0.2.1", user: "keyboard" }, 20);
    const page = await test.open();
    await page.keyboard.press("Tab");
    assert.ok(await hasFocus(page, "a", "Skip to content"));
    await page.keyboard.press("Enter");
    assert.ok(await hasFocus(page, "#main"));

    await page.reload();
    await tabTo(page, "a[data-view=keys]");
    await page.keyboard.press("Enter");
    await page.locator("main[data-view=keys] h1").waitFor();
    assert.ok(await hasFocus(page, "#main"), "a new view has the focus");
    await tabTo(page, "#key-rule");
    await page.keyboard.type("reports");
    await page.keyboard.press("Tab");
    await page.keyboard.type("keyboard");
    await page.keyboard.press("Enter");
    await page.getByText("0 of 20").waitFor();

    await tabTo(page, "button", "Grant…");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    // The focus stays inside the dialog.
    for (let pressed = 0; pressed < 8; pressed += 1) {
      await page.keyboard.press("Tab");
      assert.ok(await page.evaluate(() => document.activeElement === document.body || Boolean(document.activeElement.closest("dialog"))));
    }
    await tabTo(page, "#grant-units");
    await page.keyboard.press("Control+A");
    await page.keyboard.type("5");
    await page.keyboard.press("Enter");
    await page.locator(".done", { hasText: "Granted 5 units" }).waitFor();
    assert.ok(await hasFocus(page, "button", "Grant…"), "the focus is back");

    await tabTo(page, "#theme");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
  },

  async "nothing sticks out of its view, on a phone and on a desk"(test) {
    for (const width of [390, 1280]) {
      const page = await test.open("", { viewport: { width, height: 844 } });
      for (const [view, ready] of Object.entries(VIEWS)) {
        await page.evaluate((hash) => { location.hash = hash; }, view);
        await page.locator(ready).first().waitFor();
        await openDetails(page);
        assert.deepEqual(await page.evaluate(outside), [], `${view} at ${width}`);
      }
    }
  },
};
