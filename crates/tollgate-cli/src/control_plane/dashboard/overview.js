// Overview: what the server decides now, over time, and for whom.

import { get, query } from "./api.js";
import { sparkline } from "./charts.js";
import { badge, el, missing, pairs, replace, table } from "./dom.js";
import { DASH, bytes, clock, count, micros, millis, plural, rate, share, short, words } from "./format.js";
import { HistoryCharts, OUTCOMES } from "./history_charts.js";
import { NOW_SECONDS, drawer, live, nothingRefused, poll, recentRates } from "./live.js";
import { callerLink } from "./links.js";

/** Seconds that the small lines show. */
const SPARK_SECONDS = 60;
/** Rows of each list. */
const RULES_SHOWN = 10;
const REFUSALS_SHOWN = 10;

export function showOverview(main, parameters, signal) {
  const chart = new HistoryCharts(parameters, signal);
  const tiles = el("dl", { class: "tiles" });
  const facts = el("section", { class: "card" });
  const rules = el("section", { class: "card" });
  const refusals = el("section", { class: "card" });
  const hottest = el("section", { class: "card" });
  const refused = el("section", { class: "card" });
  replace(main,
    el("h1", { class: "visually-hidden" }, "Overview"),
    tiles,
    chart.element,
    el("div", { class: "columns wide-first" }, chart.latencyElement, facts),
    el("div", { class: "columns" }, rules, refusals),
    el("div", { class: "columns" }, hottest, refused));

  let notRecorded = 0;
  const draw = drawer(() => {
    replace(tiles, tilesOf(live.tick));
    replace(facts, serverFacts(live.tick, live.status));
    replaceKeepingFocus(rules, busiestRules());
  }, signal);
  const drawRefusals = drawer(() => replaceKeepingFocus(refusals, recentRefusals(notRecorded)), signal);
  draw();
  live.on("tick", draw, signal);
  live.on("refusal", drawRefusals, signal);
  // What was missed while the stream was closed, or was too slow for this page, is in the history.
  live.on("state", (state) => state === "live" && chart.load(), signal);
  live.on("lost", () => chart.load(), signal);
  live.on("status", draw, signal);
  // Rates that are not renewed disappear.
  poll(async () => live.isSilent && draw(), 1000, signal);
  poll(async () => {
    try {
      const told = await get("/api/refusals?n=50", { signal });
      live.addRefusals(told.refusals);
      notRecorded = told.not_recorded;
      drawRefusals();
    } catch (error) {
      if (live.refusals.length === 0 && error.name !== "AbortError") replace(refusals, el("h2", {}, "Recent refusals"), missing(error));
    }
  }, 5000, signal);
  poll(async () => {
    const [by_requests, by_refusals] = await Promise.all(
      ["requests", "refusals"].map((by) => get(`/api/top?by=${by}&n=10`, { signal })));
    replaceKeepingFocus(hottest, topKeys(by_requests));
    replaceKeepingFocus(refused, mostRefusedKeys(by_refusals));
  }, 3000, signal);
}

/** Replaces the content of a list that is drawn often; a link that has the focus keeps it. */
function replaceKeepingFocus(place, ...content) {
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  replace(place, content);
  if (focused === null) return;
  const same = [...place.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused);
  (same ?? place.querySelector("a"))?.focus({ preventScroll: true });
}

function tilesOf(tick) {
  const now = recentRates(NOW_SECONDS);
  const tile = (name, value, unit, key, title) => el("div", { class: "tile", title },
    el("dt", {}, key && el("span", { class: `key key-${key}` }), name),
    el("dd", {}, value, unit && el("small", {}, ` ${unit}`)));
  const decided = now ? now.allowed + now.refused + now.unavailable : 0;
  const unit = (name) => (decided > 0 && ["refused", "unavailable"].includes(name) ? `/s · ${share(now[name], decided)}` : "/s");
  return [
    ...OUTCOMES.map(({ name, label, hint }) => tile(label, rate(now?.[name]), unit(name), name, hint)),
    tile("Time, median", micros(tick?.latency_us?.p50)),
    tile("Time, 99th", micros(tick?.latency_us?.p99)),
    tile("Connections", count(connections(tick))),
  ];
}

/** A number, or one for each listener. */
function connections(tick) {
  const open = tick?.connections;
  return open && typeof open === "object" ? Object.values(open).reduce((sum, one) => sum + one, 0) : open;
}

function serverFacts(tick, status) {
  const store = { ...status?.store, ...tick?.store };
  const isKnown = tick !== null || live.isStatusFresh;
  const isShared = store.kind && store.kind !== "memory";
  return [el("h2", {}, "Server and store"), pairs([
    ["Store", store.kind && [`${store.kind} `, stateBadge(isKnown, store.up, "up", "down")]],
    ["Circuit breaker", isShared ? breakerBadge(isKnown, store) : null],
    ["Servers on the store", isShared ? count(store.instances) : null],
    ["Answered without the store", withoutStore(store.degraded)],
    ["Keys in use", store.slots ? `${short(store.keys)} of ${short(store.slots)}` : count(store.keys)],
    ["Blocked callers", status && count(store.blocked)],
    ["States evicted early", store.evicted ? count(store.evicted) : null],
    ["Exact logs", store.log_bytes ? bytes(store.log_bytes) : null],
    ["Waiting requests", count(tick?.waiting)],
    ["Open tunnels", count(tick?.tunnels)],
    ["Rules", status && rulesFact(status.rules)],
    ["Running for", status && (live.isStatusFresh ? millis(status.uptime_s * 1000) : DASH)],
    ["Version", status?.version],
  ])];
}

/** What a server that does not answer said last is not known to be so. */
function stateBadge(isKnown, isGood, good, bad) {
  if (!isKnown) return badge("idle", "unknown");
  return isGood ? badge("good", good) : badge("bad", bad);
}

/** A closed breaker in front of a store without a connection is no good sign: there is nothing to send to. */
function breakerBadge(isKnown, { up, breaker_open: isOpen, stores = [] }) {
  const open = isOpen ?? stores.some((store) => store.breaker_open);
  if (isKnown && !up && !open) return badge("warn", "not reached: no connection");
  return stateBadge(isKnown, !open, "closed", "open");
}

/** Decisions without the store; the status has them by policy. */
function withoutStore(degraded) {
  const sum = typeof degraded === "object" && degraded ? Object.values(degraded).reduce((all, one) => all + one, 0) : degraded;
  return sum ? count(sum) : null;
}

function rulesFact(rules) {
  const loaded = `${count(rules.count)}, version ${rules.version}`;
  return rules.failed ? el("a", { href: "#/reloads" }, badge("bad", `${loaded}; the last change was refused`)) : loaded;
}

function busiestRules() {
  const title = "Busiest rules, requests per second";
  if (!live.tick) return table(title, [["Rule", "long"]], [], "The server tells nothing now.");
  const names = new Map();
  for (const tick of live.ticks.slice(-NOW_SECONDS)) {
    for (const rule of tick.rules) names.set(rule.name, (names.get(rule.name) ?? 0) + decisions(rule));
  }
  const busiest = [...names].sort((a, b) => b[1] - a[1]).slice(0, RULES_SHOWN);
  const lines = live.ticks.slice(-SPARK_SECONDS);
  // Outcomes that no rule had in this minute need no column.
  const shown = OUTCOMES.filter(({ name }) => ["allowed", "refused"].includes(name) || lines.some((tick) => tick.rules.some((rule) => rule[name] > 0)));
  const rows = busiest.map(([name]) => {
    const now = recentRates(NOW_SECONDS, name);
    const past = lines.map((tick) => {
      const rule = tick.rules.find((one) => one.name === name);
      return rule ? (decisions(rule) * 1000) / tick.interval_ms : 0;
    });
    // What was before the page was opened is unknown.
    while (past.length < SPARK_SECONDS) past.unshift(null);
    return [el("a", { class: "quiet-link", href: `#/overview${query({ rule: name })}` }, name), sparkline(past, "allowed"),
      ...shown.map((outcome) => rate(now?.[outcome.name]))];
  });
  return table(title, [["Rule", "dense long"], ["Last minute", "spacious"], ...shown.map(({ label }) => [label, "number"])],
    rows, "No request in the last seconds.");
}

/** Decisions of a rule; one that was delayed is one that was allowed. */
function decisions({ allowed, refused, unavailable, shadow, soft, refused_by_other: other }) {
  return allowed + refused + (unavailable ?? 0) + shadow + soft + (other ?? 0);
}

function recentRefusals(notRecorded) {
  const rows = live.refusals.slice(0, REFUSALS_SHOWN).map((refusal) => [
    el("a", { class: "quiet-link", href: `#/playground${query({ refusal: refusal.id })}`, title: "Explain this refusal" }, clock(refusal.at)),
    callerLink(refusal.rule, refusal.key), `${refusal.method ?? ""} ${refusal.path ?? ""}`.trim() || DASH,
    refusal.reason === "store_unavailable" ? words(refusal.reason) : retryText(refusal),
  ]);
  const list = table("Recent refusals", [["Time", "nowrap"], ["Rule and key", "long"], ["Request", "long spacious"], ["Retry in", "number"]],
    rows, "Nothing was refused lately.");
  return [list, notRecorded > 0 && el("p", { class: "hint" }, `A sample: ${plural(notRecorded, "more refusal")} since the start came too fast to be recorded.`)];
}

function retryText({ retry_after_ms: wait }) {
  return wait === null ? "never" : millis(wait);
}

function topKeys({ top, window_s }) {
  const rows = top.map((one) => [callerLink(one.rule, one.key), estimate(one.count, one.error),
    one.refused ? `${estimate(one.refused, one.refused_error)} (${share(one.refused, one.count)})` : "0"]);
  return table(`Hottest keys of the last ${millis(window_s * 1000)}`,
    [["Rule and key", "long"], ["Requests", "number"], ["Refused", "number"]], rows, "No requests in the last minutes.");
}

function mostRefusedKeys({ top, window_s }) {
  const rows = top.map((one) => [callerLink(one.rule, one.key), el("span", { class: "mono muted" }, one.hash), estimate(one.count, one.error)]);
  return table(`Most refused keys of the last ${millis(window_s * 1000)}`,
    [["Rule and key", "long"], ["Hash in logs", "spacious"], ["Refused", "number"]], rows, nothingRefused());
}

/** A count of many keys in bounded memory may be too high by its error. */
function estimate(number, error) {
  return `${error ? "≈ " : ""}${count(number)}`;
}
