// The stream of events: the page follows it, and continues when it has ended or lost something.
"use strict";

const assert = require("node:assert/strict");
const { startTraffic } = require("./traffic.js");

const tick = (at_s, allowed) => ({
  at_s, interval_ms: 1000, allowed, refused: 0, shadow: 0, soft: 0, delayed: 0, unavailable: 0, latency_us: { p50: 1, p99: 2, max: 3 },
  rules: [{ name: "search", allowed, refused: 0, shadow: 0, soft: 0, delayed: 0 }], other_rules: null,
  store: { kind: "memory", up: true, keys: 1, breaker_open: false, instances: 1, degraded: 0 }, waiting: 0, tunnels: 0, connections: 1,
});
const event = (id, name, data) => `id: ${id}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`;

module.exports = {
  async "numbers, charts and lists follow the traffic"(test) {
    const stopTraffic = startTraffic(test.servers.busy);
    try {
      const page = await test.open("", { address: test.servers.busy.admin });
      const tile = (name) => page.locator(".tile", { has: page.locator("dt", { hasText: name }) }).locator("dd");
      await page.locator("#connection[data-state=live]").waitFor();
      for (const name of ["Allowed", "Refused", "Shadow"]) await tile(name).filter({ hasText: /^[1-9]/ }).waitFor();
      await tile("Time, median").filter({ hasText: /[nµm]?s$/ }).waitFor();
      await page.locator("table", { hasText: "Busiest rules" }).getByRole("link", { name: "search", exact: true }).waitFor();
      await page.locator("table", { hasText: "Hottest keys" }).getByText("ip=198.51.100.23").first().waitFor();
      // The line moves with each tick.
      const line = () => page.locator("path.line-allowed").first().getAttribute("d");
      const seen = new Set();
      await test.until("three states of the chart", async () => seen.add(await line()).size >= 3);
      const elements = await page.evaluate(() => document.querySelectorAll("*").length);
      assert.ok(elements < 2500, `${elements} elements`);
    } finally {
      stopTraffic();
    }
  },

  async "the page goes on after a restart of the server"(test) {
    test.expected.push(/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|status of 503/);
    const page = await test.open("", { address: test.servers.restarted });
    const connection = (state) => page.locator(`#connection[data-state=${state}]`).waitFor();
    await connection("live");
    await page.evaluate(() => {
      const place = document.getElementById("connection");
      window.statesSeen = [];
      new MutationObserver(() => window.statesSeen.push(place.dataset.state)).observe(place, { attributes: true });
    });
    await test.ask("restart now");
    await page.waitForFunction(() => window.statesSeen.includes("reconnecting") && window.statesSeen.at(-1) === "live");
  },

  async "a stream that ends is continued after its last event, and history is asked again after a loss"(test) {
    const streams = [];
    let histories = 0;
    const now = Math.floor(Date.now() / 1000);
    const page = await test.open("", { prepare: async (opened) => {
      await opened.route("**/api/history*", (route) => {
        histories += 1;
        return route.fulfill({ status: 200, json: { step_s: 1, from_s: now - 2, rule: null, allowed: [1, 2], refused: [0, 0], shadow: [0, 0],
          soft: [0, 0], delayed: [0, 0], unavailable: [0, 0], p50_us: [1, 1], p99_us: [2, 2] } });
      });
      await opened.route("**/api/events", (route) => {
        streams.push(route.request().headers()["last-event-id"] ?? null);
        const body = event(streams.length, "tick", tick(now + streams.length, 7000)) + event(`${streams.length}-b`, "lost", { events: 3 });
        return route.fulfill({ status: 200, contentType: "text/event-stream", body });
      });
    } });
    await page.locator("#connection[data-state=reconnecting]").waitFor();
    await page.locator(".tile", { hasText: "7K" }).first().waitFor();
    await test.until("four streams", () => streams.length >= 4);
    assert.deepEqual(streams.slice(0, 4), [null, "1-b", "2-b", "3-b"]);
    await test.until("history after the losses", () => histories >= 4);
  },

  async "the last step of a long range is a rate of the time that is over"(test) {
    const now = Math.floor(Date.now() / 1000);
    const steady = (value, last) => [value, value, last];
    // One second of the last step is over.
    const page = await test.open("", { prepare: (opened) => opened.route("**/api/history?range=1h*", (route) => {
      const none = [0, 0, 0];
      return route.fulfill({ status: 200, json: { step_s: 10, last_step_s: 1, from_s: now - 21, rule: null, allowed: steady(5000, 500),
        refused: steady(700, 70), shadow: none, soft: none, delayed: none, unavailable: none, p50_us: [1, 1, 1], p99_us: [2, 2, 2] } });
    }) });
    await page.getByRole("button", { name: "1 hour" }).click();
    const value = (name) => page.locator(".legend li", { hasText: name }).locator(".value");
    await value("Allowed").filter({ hasText: /^500$/ }).waitFor();
    await value("Refused").filter({ hasText: /^70$/ }).waitFor();
    const line = await page.locator("path.line-allowed").first().getAttribute("d");
    const heights = new Set(line.match(/,[0-9.]+/g));
    assert.equal(heights.size, 1, `the line is level: ${line}`);
  },

  async "a server without events is told, and every other view works"(test) {
    test.expected.push(/status of 404/);
    const page = await test.open("", { prepare: (opened) => opened.route(/\/api\/(events|history|refusals|reloads|upstreams|explain|candidate)/, (route) =>
      route.fulfill({ status: 404, json: { error: "Not Found", message: "There is no such path. There are: …" } })) });
    await page.locator("#connection", { hasText: "No live data" }).waitFor();
    await page.getByText("This server does not offer /api/history").waitFor();
    await page.getByText("This server does not offer /api/refusals").waitFor();
    await page.locator("caption", { hasText: "Hottest keys" }).waitFor();
    for (const [view, path] of [["Gateway", "upstreams"], ["Reloads", "reloads"]]) {
      await page.getByRole("link", { name: view, exact: true }).click();
      await page.getByText(`This server does not offer /api/${path}`).waitFor();
    }
    await page.getByRole("link", { name: "Playground", exact: true }).click();
    await page.getByRole("button", { name: "Explain", exact: true }).click();
    await page.getByText("This server does not offer /api/explain").waitFor();
  },
};
