// A server with tokens: the form, a wrong token, the tab's storage, and logging out.
"use strict";

const assert = require("node:assert/strict");

module.exports = {
  async "a token is asked for, kept for the tab only, and forgotten by logging out"(test) {
    test.expected.push(/status of (401|404)/);
    const page = await test.open("#/rules", { address: test.servers.guarded });
    const input = page.getByLabel("Token");
    await input.waitFor();
    assert.ok(await input.evaluate((it) => it === document.activeElement), "the input has the focus");
    assert.equal(await input.getAttribute("type"), "password");

    await input.fill("this-is-not-the-token");
    await page.keyboard.press("Enter");
    await page.getByText("The server does not accept this token.").waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0, "a wrong token is not kept");

    await input.fill(test.servers.token);
    await page.keyboard.press("Enter");
    await page.locator("main[data-view=rules] details").first().waitFor();
    const stored = () => page.evaluate(() => [JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie, location.href]);
    const [session, ...elsewhere] = await stored();
    assert.ok(session.includes(test.servers.token));
    assert.ok(!elsewhere.join().includes(test.servers.token));

    await page.reload();
    await page.locator("main[data-view=rules] details").first().waitFor();

    await page.getByRole("button", { name: "Log out" }).click();
    await input.waitFor();
    assert.ok(!(await stored()).join().includes(test.servers.token));
    assert.equal(await page.locator("main[data-view=rules]").count(), 0);
  },

  async "a token that ends while the page is open leads to the form"(test) {
    test.expected.push(/status of (401|404)/);
    const page = await test.open("#/rules", { address: test.servers.guarded });
    await page.getByLabel("Token").fill(test.servers.token);
    await page.keyboard.press("Enter");
    await page.locator("main[data-view=rules] details").first().waitFor();
    await page.evaluate(() => sessionStorage.setItem("tollgate-token", "another-token-that-has-ended"));
    await page.getByRole("link", { name: "Keys" }).click();
    await page.getByText("The server does not accept this token.").waitFor();
  },
};
