// Keys: the state of a caller, and what an operator can do with it.
"use strict";

const assert = require("node:assert/strict");

/** Opens an action's dialog, changes its input, confirms it, and waits for the sentence about the result. */
async function act(page, button, confirm, input, told) {
  await page.getByRole("button", { name: button, exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.waitFor();
  if (input) await dialog.getByLabel(input[0], { exact: true }).fill(input[1]);
  await dialog.getByRole("button", { name: confirm, exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  await page.locator(".done", { hasText: told }).waitFor();
}

module.exports = {
  async "a key is blocked, unblocked, granted, given limits and reset; each asks back once and is in the log"(test) {
    const caller = { method: "GET", path: "/api/reports", ip: "192.0.2.1", user: "42" };
    const key = "/api/keys/reports/user%3D42";
    await test.check(caller, 20);
    const page = await test.open("#/keys?rule=reports&key=user%3D42");
    const writes = [];
    page.on("request", (request) => request.method() !== "GET" && writes.push(request.method()));
    await page.getByText("0 of 20").waitFor();

    // Every action asks, and a dismissed question changes nothing.
    for (const name of ["Reset…", "Block…", "Lift block…", "Grant…", "Set own limits…", "Remove own limits…", "Block in all rules…",
      "Lift blocks in all rules…"]) {
      await page.getByRole("button", { name, exact: true }).click();
      await page.keyboard.press("Escape");
      await page.getByRole("dialog").waitFor({ state: "detached" });
      assert.ok(await page.getByRole("button", { name, exact: true }).evaluate((button) => button === document.activeElement));
    }
    assert.deepEqual(writes, []);

    const rows = [
      ["Block…", "Block", ["For how long", "2h"], /Blocked for 2 h/, "a key was blocked", (now) => now.blocked_for_ms > 7_000_000],
      ["Lift block…", "Lift block", null, /Not blocked/, "a block was removed", (now) => now.blocked_for_ms === null],
      ["Grant…", "Grant", ["Units", "7"], /Granted 7 units/, "a key was granted units", (now) => now.limits[0].remaining === 7],
      ["Set own limits…", "Set limits", ["Limits", "50/minute, 500/hour"], /Own limits: 50\/minute, 500\/hour/, "an override was set",
        (now) => now.override.limits.join() === "50/minute,500/hour"],
      ["Remove own limits…", "Remove own limits", null, /The rule's limits apply/, "an override was removed", (now) => now.override === null],
      ["Reset…", "Reset", null, /all limits are full/, "a key was reset", (now) => now.limits.every((limit) => limit.remaining === limit.max)],
    ];
    for (const [at, [button, confirm, input, told, logged, holds]] of rows.entries()) {
      await act(page, button, confirm, input, told);
      assert.match(await test.ask(`log ${logged} rule=reports`), /rule=reports/);
      const now = await test.admin(key);
      assert.ok(holds(now), `${button} ${JSON.stringify(now)}`);
      assert.equal(writes.length, at + 1, "one request for each action");
      if (confirm === "Block") await page.locator("td", { hasText: /^in (2 h|1 h 59 min) \(blocked\)$/ }).first().waitFor();
    }
    await page.getByText("20 of 20").waitFor();
  },

  async "the limits that are proposed as own limits are accepted as they are, and stay the same"(test) {
    const zone = await test.open("", { timezoneId: "Asia/Kathmandu" });
    for (const [rule, key] of [["thumbnails", "ip=192.0.2.77"], ["search", "user=own"], ["reports", "user=own"]]) {
      const path = `/api/keys/${rule}/${encodeURIComponent(key)}`;
      const before = (await test.admin(path)).limits;
      await zone.goto(`${test.servers.admin}/#/keys${`?rule=${rule}&key=${encodeURIComponent(key)}`}`);
      await zone.locator("h2", { hasText: key }).waitFor();
      await zone.getByRole("button", { name: "Set own limits…", exact: true }).click();
      await zone.getByText("In your time zone, UTC+5:45.").waitFor();
      await zone.getByRole("dialog").getByRole("button", { name: "Set limits", exact: true }).click();
      await zone.locator(".done", { hasText: "Own limits:" }).waitFor();
      const after = (await test.admin(path)).limits;
      const own = before.filter((limit) => limit.tier === null).map((limit) => limit.limit);
      assert.deepEqual(after.map((limit) => limit.limit), own);
    }
  },

  async "a mistake in an action is told in the dialog, which stays"(test) {
    test.expected.push(/status of (400|404)/);
    const page = await test.open("#/keys?rule=reports&key=user%3D43");
    await page.getByRole("button", { name: "Block…", exact: true }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("For how long").fill("soon");
    await dialog.getByRole("button", { name: "Block", exact: true }).click();
    assert.match(await dialog.getByRole("alert").innerText(), /block/);
    await dialog.getByLabel("For how long").fill("1m");
    await dialog.getByRole("button", { name: "Block", exact: true }).click();
    await dialog.waitFor({ state: "detached" });
    await page.getByText(/Blocked for/).waitFor();
  },

  async "a wrong rule or key says what is wrong"(test) {
    test.expected.push(/status of 404/);
    const page = await test.open("#/keys?rule=report&key=user%3D1");
    assert.match(await page.locator(".problem").innerText(), /report/);
  },

  async "a caller is blocked in all rules that count by it, and the others are named with their reason"(test) {
    const page = await test.open("#/keys?rule=export&key=user%3Dsha256%3Aba7816bf8f01cfea414140de5dae2223%2Cpath%3D%2Fexport%2Fa", { address: test.servers.by_api_key });
    const user = "user=sha256:ba7816bf8f01cfea414140de5dae2223";
    await page.getByText("10 of 10").waitFor();
    await page.getByRole("button", { name: "Block in all rules…", exact: true }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Caller", { exact: true }).selectOption(user);
    await test.picture(page, "block-in-all-rules");
    await page.keyboard.press("Escape");
    const blocked = /Blocked under api, login\. Not under export: its key is \{user\}:\{path\}: block the whole key under this rule\. The change is in/;
    await act(page, "Block in all rules…", "Block in all rules", ["For how long", "2h"], blocked);
    await test.picture(page, "blocked-in-all-rules");
    const state = async (rule) => (await fetch(`${test.servers.by_api_key}/api/keys/${rule}/${encodeURIComponent(user)}`)).json();
    for (const rule of ["api", "login"]) assert.ok((await state(rule)).blocked_for_ms > 7_000_000, rule);
    await act(page, "Lift blocks in all rules…", "Lift blocks", null, /Not blocked any more under api, login\. Not under export/);
    assert.equal((await state("api")).blocked_for_ms, null);
  },

  async "a comma in a name belongs to it when it is blocked in all rules, and the key of all callers has no such button"(test) {
    const page = await test.open("#/keys?rule=reports&key=user%3Da%2Cb");
    await page.getByText("20 of 20").waitFor();
    await act(page, "Block in all rules…", "Block in all rules", ["For how long", "2h"], /Blocked under .*checkout.*reports/);
    assert.ok((await test.admin("/api/keys/reports/user%3Da%2Cb")).blocked_for_ms > 0);
    await act(page, "Lift blocks in all rules…", "Lift blocks", null, /Not blocked any more under .*checkout/);
    assert.equal((await test.admin("/api/keys/reports/user%3Da%2Cb")).blocked_for_ms, null);
  },

  async "an API key is found by itself, and neither the page nor its address shows it"(test) {
    test.expected.push(/status of 400/);
    const page = await test.open("#/keys", { address: test.servers.by_api_key });
    await page.locator(".hint", { hasText: "Users are identified by their API keys here" }).waitFor();
    const find = async (key) => {
      await page.getByLabel("Rule", { exact: true }).fill("api");
      await page.getByLabel("Key", { exact: true }).fill(key);
      await page.getByRole("button", { name: "Show", exact: true }).click();
    };
    await find("user=cust-42");
    assert.match(await page.locator(".problem").innerText(), /Users are identified by their API keys.+api_key=KEY/s);
    await test.picture(page, "no-such-user");
    for (const key of ["a-secret-key", "api_key=a-secret-key"]) {
      await find(key);
      await page.waitForFunction(() => /^user=sha256:[0-9a-f]{32}$/.test(document.getElementById("key-key").value));
      await page.locator("h2", { hasText: /user=sha256:[0-9a-f]{32}$/ }).waitFor();
      const shown = await page.evaluate(() => [location.href, document.body.innerText, document.getElementById("key-key").value].join(" "));
      assert.ok(!shown.includes("secret"), shown);
    }
    await test.picture(page, "api-key-found");
    // Where users have names, nothing is said of API keys.
    const other = await test.open("#/keys");
    await other.getByText("Nothing was refused").or(other.locator("tbody a.caller").first()).first().waitFor();
    assert.equal(await other.locator(".api-key-hint").innerText(), "");
  },

  async "a caller whose key is not shown is found, blocked in all rules and reset by the key that was entered"(test) {
    const address = test.servers.by_api_key;
    await test.check({ path: "/api", user: "raw-user-1" }, 1, test.servers.by_api_key_http);
    const page = await test.open("#/keys", { address });
    const rows = [
      ["sessions", "raw-session-1", "header.x-session-id=(not shown)", "7 of 7", "sessions", "header.x-session-id=raw-session-1"],
      ["sessions", "header.x-session-id=raw-session-2", "header.x-session-id=(not shown)", "7 of 7", "sessions", "raw-session-2"],
      ["api", "user=raw-user-1", "user=(not shown)", "4 of 5", "api, login", "user=raw-user-1"],
    ];
    for (const [rule, key, shown, left, rules, same] of rows) {
      await page.getByLabel("Rule", { exact: true }).fill(rule);
      await page.getByLabel("Key", { exact: true }).fill(key);
      await page.getByRole("button", { name: "Show", exact: true }).click();
      await page.locator("h2", { hasText: `${rule} ${shown}` }).waitFor();
      await page.getByText(left).waitFor();
      await act(page, "Block in all rules…", "Block in all rules", ["For how long", "2h"], new RegExp(`Blocked under ${rules}\\.`));
      const state = async () => (await fetch(`${address}/api/keys/${rule}/${encodeURIComponent(same)}`)).json();
      assert.ok((await state()).blocked_for_ms > 7_000_000, key);
      await act(page, "Lift blocks in all rules…", "Lift blocks", null, new RegExp(`Not blocked any more under ${rules}\\.`));
      await act(page, "Block…", "Block", ["For how long", "2h"], /Blocked for 2 h/);
      await act(page, "Reset…", "Reset", null, /all limits are full/);
      assert.equal((await state()).blocked_for_ms, null, key);
      const seen = await page.evaluate(() => [location.href, document.body.innerText, document.getElementById("key-key").value].join(" "));
      assert.ok(!seen.includes("raw-"), seen);
    }
    await test.picture(page, "key-not-shown");
    // The lists show such a user in the same way, and lead nowhere.
    const { top } = await (await fetch(`${address}/api/top?n=100`)).json();
    assert.ok(top.some((one) => one.key === "user=(not shown)") && !JSON.stringify(top).includes("raw-"));
    const lists = await test.open("#/overview", { address });
    await lists.locator("tbody", { hasText: "user=(not shown)" }).first().waitFor();
    assert.equal(await lists.locator("a.caller", { hasText: "(not shown)" }).count(), 0);
  },
};
