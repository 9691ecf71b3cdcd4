// The playground: explanations of requests and refusals, and rules that are not in force.
"use strict";

const assert = require("node:assert/strict");

module.exports = {
  async "a request is explained and not charged"(test) {
    const caller = { method: "GET", path: "/api/reports", ip: "192.0.2.9", user: "curious" };
    await test.check(caller, 19);
    const page = await test.open("#/playground");
    await page.getByLabel("Path").fill(caller.path);
    await page.getByLabel("Client address").fill(caller.ip);
    await page.getByLabel("User").fill(caller.user);
    const verdict = page.locator(".verdict");
    const explain = () => page.getByRole("button", { name: "Explain", exact: true }).click();
    for (let asked = 0; asked < 3; asked += 1) {
      await explain();
      await verdict.filter({ hasText: /^Allowed/ }).waitFor();
    }
    const story = page.locator(".story", { has: page.locator("h3", { hasText: /^reports$/ }) });
    assert.match(await story.innerText(), /user=curious/);
    assert.equal((await test.admin("/api/keys/reports/user%3Dcurious")).limits[0].remaining, 1, "nothing is charged");

    await test.check(caller, 1);
    await explain();
    await verdict.filter({ hasText: /^Refused/ }).waitFor();
    assert.match(await story.locator(".arithmetic").first().innerText(), /does not fit/);
    await page.locator(".retry").waitFor();
    await page.getByText(/rules had no part in it/).click();
    await page.locator(".conditions .fails", { hasText: "path matches /api/checkout" }).waitFor();
    await story.getByRole("link").click();
    await page.locator("main[data-view=keys] h2", { hasText: "user=curious" }).waitFor();
  },

  async "a recent refusal leads to its explanation"(test) {
    const caller = { method: "GET", path: "/api/reports", ip: "192.0.2.10", user: "refused" };
    // On a server without other traffic: the list is short, and a sample when refusals come fast.
    const { guarded, guarded_http, token } = test.servers;
    await test.check(caller, 21, guarded_http);
    const prepare = (opened) => opened.addInitScript((kept) => sessionStorage.setItem("tollgate-token", kept), token);
    const page = await test.open("", { address: guarded, prepare });
    const list = page.locator("table", { hasText: "Recent refusals" });
    await list.locator("tr", { hasText: "user=refused" }).first().getByTitle("Explain this refusal").click();
    await page.locator("main[data-view=playground] .verdict", { hasText: /^Refused by reports/ }).waitFor();
    assert.match(await page.locator(".arithmetic").first().innerText(), /20\/hour/);
    await page.goto(`${guarded}/#/playground?refusal=0-1`);
    test.expected.push(/status of 404/);
    await page.reload();
    await page.getByText("This refusal has been forgotten").waitFor();
  },

  async "candidate rules are tried on recorded traffic, and their mistakes shown"(test) {
    test.expected.push(/status of (400|409)/);
    await test.check({ method: "GET", path: "/api/reports", ip: "192.0.2.11", user: "recorded" }, 15);
    const page = await test.open("#/playground");
    const editor = page.getByLabel("Rules file");
    const attempt = () => page.getByRole("button", { name: "Try on recorded traffic" }).click();
    const rules = (limit) => `rules:\n  - name: reports\n    match: { path: /api/reports }\n    key: "{user}"\n    limits: [${limit}]\n`;
    await editor.fill(rules("10/hourly"));
    await attempt();
    await page.locator(".problem pre", { hasText: "10/hourly" }).waitFor();

    await editor.fill(rules("10/hour"));
    await attempt();
    await page.locator(".verdict b", { hasText: /^[1-9][0-9,]* answers would change/ }).waitFor();
    const byRule = page.locator("table", { hasText: "Refused, by rule" }).locator("tr", { hasText: "reports" });
    const [now, then] = await byRule.locator("td").allInnerTexts();
    assert.ok(Number(then.replace(",", "")) > Number(now.replace(",", "")), `${now} ${then}`);
    await page.locator("path.line-then_refused").waitFor();
    const left = await test.admin("/api/keys/reports/user%3Drecorded");
    assert.equal(left.limits[0].limit, "20/hour", "nothing is put in force");
    // What was typed is there when the view is shown again.
    await page.getByRole("link", { name: "Keys", exact: true }).click();
    await page.getByRole("link", { name: "Playground", exact: true }).click();
    assert.equal(await editor.inputValue(), rules("10/hour"));
  },

  async "a mistake in a request is told"(test) {
    const page = await test.open("#/playground");
    await page.getByLabel("Header fields").fill("no colon");
    await page.getByRole("button", { name: "Explain", exact: true }).click();
    await page.getByText('Write header fields as NAME: VALUE, not "no colon".').waitFor();
  },
};
