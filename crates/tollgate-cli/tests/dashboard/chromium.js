// Starts Debian's Chromium; playwright-core brings no browser.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { chromium } = require("playwright-core");

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
  "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
];

function chromiumPath() {
  const places = process.env.PATH.split(":").map((folder) => path.join(folder, "chromium"));
  const found = places.find((place) => fs.existsSync(place));
  if (!found) throw new Error("chromium is not there: `cargo xtask test --only packages` installs it");
  return found;
}

/** A browser with a profile of its own that asks nobody but these addresses. Like those of users it keeps pages that were left. */
function launch(addresses = ["127.0.0.1"]) {
  const known = ["MAP * ~NOTFOUND", ...addresses.map((address) => `EXCLUDE ${address}`)].join(", ");
  const args = [...FLAGS, `--host-resolver-rules=${known}`];
  return chromium.launch({ executablePath: chromiumPath(), args, ignoreDefaultArgs: ["--disable-back-forward-cache"] });
}

module.exports = { launch };
