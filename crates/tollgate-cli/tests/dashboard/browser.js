// Runs the cases of this folder in one Chromium, each on pages of its own. The argument is JSON with the addresses of
// the servers (see case_context.js). `DASHBOARD_CASES` runs only the cases whose name contains its text;
// `DASHBOARD_PICTURES` names a folder for the pictures that cases take of what is to be looked at.
"use strict";

const { CaseContext } = require("./case_context.js");
const { launch } = require("./chromium.js");

/** All cases: an async function by a name that says what it shows. */
const CASES = {
  // The longest case is the first, so that the others run beside it.
  ...require("./access_cases.js"),
  ...require("./page_cases.js"),
  ...require("./key_cases.js"),
  ...require("./token_cases.js"),
  ...require("./hostile_cases.js"),
  ...require("./playground_cases.js"),
  ...require("./stream_cases.js"),
  ...require("./busy_cases.js"),
  ...require("./outage_cases.js"),
  ...require("./tabs_cases.js"),
};

/** Deadline of a case; one that passes takes a few seconds. */
const CASE_MS = 60000;

/** Cases that run at the same time: most of their time they wait for the next answer or tick. */
const CASES_AT_ONCE = 3;

/** Runs a case; returns what went wrong, or `null`. */
async function problemOf(run, context) {
  try {
    const late = new Promise((_, reject) => setTimeout(() => reject(new Error("the case does not end")), CASE_MS).unref());
    await Promise.race([run(context), late]);
    return context.complaints.length ? context.complaints.join("\n") : null;
  } catch (error) {
    return [error.stack, ...context.complaints].join("\n");
  } finally {
    await context.close();
  }
}

async function main() {
  const servers = JSON.parse(process.argv[2]);
  const browser = await launch(["127.0.0.1", new URL(servers.restarted).hostname]);
  const wanted = Object.entries(CASES).filter(([name]) => name.includes(process.env.DASHBOARD_CASES ?? ""));
  let failures = 0;
  const runNext = async () => {
    const [name, run] = wanted.shift();
    const begun = performance.now();
    const problem = await problemOf(run, new CaseContext(browser, servers));
    console.log(`${problem === null ? "passed" : "FAILED"} ${name} (${Math.round(performance.now() - begun)} ms)`);
    if (problem !== null) {
      failures += 1;
      console.log(problem.replace(/^/gm, "    "));
    }
    if (wanted.length > 0) await runNext();
  };
  await Promise.all(Array.from({ length: Math.min(CASES_AT_ONCE, wanted.length) }, runNext));
  await browser.close();
  process.exit(failures === 0 ? 0 : 1);
}

main();
