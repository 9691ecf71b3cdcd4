// The banner above every view: what is wrong with the server now. A figure that is good only because nothing arrives any
// more must not be the whole story, whatever view is open.

import { badge, el, replace, setText } from "./dom.js";
import { clock, count, plural, rate, words } from "./format.js";
import { NOW_SECONDS, drawer, live, poll, recentRates } from "./live.js";

/** Stores and upstreams that are named; more are only counted. */
const NAMES_MAX = 3;

/** Keeps the banner up to date until the signal ends it. */
export function showBanner(place, signal) {
  let shown = "";
  const draw = drawer(() => {
    const problems = problemsNow();
    // Redrawn only for another problem: screen readers read it out. Figures change each second, and are not.
    const text = JSON.stringify(problems.map(({ figure, ...rest }) => rest));
    if (text !== shown) replace(place, problems.map(lineOf));
    shown = text;
    problems.forEach(({ figure = "" }, at) => setText(place.children[at].querySelector(".figure"), figure));
  }, signal);
  for (const name of ["tick", "status", "state"]) live.on(name, draw, signal);
  live.on("reload", () => live.loadStatus(signal), signal);
  live.on("state", (state) => state === "live" && live.loadStatus(signal), signal);
  poll(() => live.loadStatus(signal), 5000, signal);
  // Silence is no event: somebody has to look whether it lasts.
  poll(async () => draw(), 1000, signal);
  signal.addEventListener("abort", () => replace(place));
}

function lineOf({ kind, title, text, link }) {
  return el("p", { class: `banner-line ${kind}` }, badge(kind, title), " ", text, " ", el("span", { class: "figure", "aria-live": "off" }),
    link && [" ", el("a", { href: link[0] }, link[1])]);
}

function problemsNow() {
  const problems = [staleData()];
  const status = live.isStatusFresh ? live.status : null;
  if (live.tick || status) problems.push(storeDown(status));
  if (status) problems.push(rulesRefused(status.rules), filesRefused(status), upstreamsDown(status.upstreams));
  return problems.filter(Boolean);
}

/** No tick for a while, or none at all: rates and charts end there. */
function staleData() {
  if (!live.isSilent) return null;
  const since = live.lastTickAt;
  return { kind: "bad", title: "Old data",
    text: `${since === null ? "Nothing" : `Nothing since ${clock(since)}`}: ${live.problem ?? "the server is silent."}` };
}

function storeDown(status) {
  const stores = (status?.store.stores ?? []).filter((store) => !store.up);
  const up = live.tick ? live.tick.store.up : status.store.up;
  if (up) return null;
  const now = recentRates(NOW_SECONDS);
  const names = stores.slice(0, NAMES_MAX).map((store) => `${store.name}${store.error ? `: ${store.error}` : ""}.`);
  if (stores.length > NAMES_MAX) names.push(`And ${plural(stores.length - NAMES_MAX, "more store")}.`);
  const isRefusing = now?.unavailable > 0;
  return { kind: "bad", title: "Store down", text: [...names, isRefusing ? "" : "Rules follow their on_store_failure."].join(" ").trim(),
    figure: isRefusing ? `${rate(now.unavailable)} requests a second are refused because of it.` : "" };
}

function rulesRefused(rules) {
  if (!rules.failed) return null;
  const errors = rules.failed.errors ? ` (${plural(rules.failed.errors, "error")})` : "";
  return { kind: "bad", title: "Rules refused", text: `The files were changed and are wrong${errors}: version ${count(rules.version)} stays in force.`,
    link: ["#/reloads", "What is wrong"] };
}

function filesRefused({ rules, credentials }) {
  const failed = [rules.keys_failed && "a file that the rules name", credentials?.failed && "tokens or certificate"].filter(Boolean);
  if (failed.length === 0) return null;
  return { kind: "bad", title: "File refused", text: `${failed.join(" and ")} could not be read again: the last good content is used.`,
    link: ["#/reloads", "What is wrong"] };
}

/** Servers behind the gateway that get no requests, or whose requests fail. */
function upstreamsDown({ without_server: without = 0, problems = [] } = {}) {
  if (problems.length === 0) return null;
  const named = problems.slice(0, NAMES_MAX).map(({ upstream, server, state, reason }) => `${server} of ${upstream} is ${state}${reason ? `: ${words(reason)}` : ""}.`);
  if (problems.length > NAMES_MAX) named.push(`And ${plural(problems.length - NAMES_MAX, "more server")}.`);
  if (without > 0) named.push(`${plural(without, "upstream")} without any server.`);
  return { kind: without > 0 ? "bad" : "warn", title: "Upstream trouble", text: named.join(" "), link: ["#/gateway", "Gateway"] };
}
