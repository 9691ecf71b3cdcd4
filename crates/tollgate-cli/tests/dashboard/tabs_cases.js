// Many tabs and many visits: a browser opens six connections to a server, so a page that nobody sees must hold none.
"use strict";

const assert = require("node:assert/strict");
const { RealTabs } = require("./real_tabs.js");

/** More than a browser has connections for. */
const MANY = 8;

const STATE = "document.getElementById('connection')?.dataset.state";

async function withTabs(test, act) {
  const tabs = await RealTabs.of(test.browser);
  try {
    await act(tabs);
  } finally {
    await tabs.close();
  }
}

/** Waits until the page follows the server and shows numbers. */
async function followsServer(test, tab, which) {
  await test.until(`${which} to follow the server`, async () => (await tab.evaluate(STATE)) === "live"
    && (await tab.evaluate("document.querySelector('.tile dd')?.textContent")) !== "– /s");
}


module.exports = {
  async "every one of many tabs follows the server when it is in front"(test) {
    await withTabs(test, async (tabs) => {
      for (let opened = 1; opened <= MANY; opened += 1) {
        const tab = await tabs.open(`${test.servers.admin}/`);
        await followsServer(test, tab, `tab ${opened}`);
      }
      const [first, second] = tabs.opened;
      assert.equal(await first.evaluate("document.visibilityState"), "hidden");
      await first.show();
      await followsServer(test, first, "the first tab");
      await second.show();
      await followsServer(test, second, "the second tab");
      assert.equal(await first.evaluate("document.visibilityState"), "hidden");
    });
  },

  async "every visit follows the server, and so does a page that is returned to"(test) {
    await withTabs(test, async (tabs) => {
      const tab = await tabs.open(`${test.servers.admin}/`);
      await followsServer(test, tab, "visit 1");
      for (let visit = 2; visit <= MANY; visit += 1) {
        await tab.goto(`${test.servers.admin}/?visit=${visit}`);
        await test.until("the next page", async () => (await tab.evaluate("location.search")) === `?visit=${visit}`);
        await followsServer(test, tab, `visit ${visit}`);
      }
      // Back from the cache the page is as it was left, and goes on.
      await tab.evaluate("window.wasHere = true");
      await tab.goto(`${test.servers.http}/openapi.json`);
      await test.until("the other page", async () => (await tab.evaluate("location.pathname")) === "/openapi.json");
      await tab.goBack();
      await test.until("the page from the cache", async () => (await tab.evaluate("window.wasHere")) === true);
      const before = await tab.evaluate("document.querySelector('path.line-allowed').getAttribute('d')");
      await followsServer(test, tab, "the page from the cache");
      await test.until("the chart to move", async () => (await tab.evaluate("document.querySelector('path.line-allowed').getAttribute('d')")) !== before);
    });
  },
};
