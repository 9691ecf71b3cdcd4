// The rules of axe-core about pages for everybody.
"use strict";

const fs = require("node:fs");

const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** What axe-core finds on the page that is serious or critical, as lines. */
async function findings(page) {
  // Through the debugger: the page's policy forbids foreign scripts.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
    .flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html} ${node.failureSummary}`));
}

module.exports = { findings };
