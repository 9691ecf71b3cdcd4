// Overview: what the server decides now, over time, and for whom.

import { get, query } from "./api.js";
import { LineChart, powersAxis, sparkline } from "./charts.js";
import { badge, el, field, missing, pairs, replace, table } from "./dom.js";
import { DASH, bytes, clock, count, micros, millis, plural, rate, share, short } from "./format.js";
import { drawer, live, poll, pushBounded, recentRates } from "./live.js";
import { callerLink, ruleInput } from "./links.js";

const RANGES = { "5m": "5 minutes", "1h": "1 hour", "24h": "24 hours" };
/** Seconds that "now" is the mean of. */
const NOW_SECONDS = 5;
/** Seconds that the small lines show. */
const SPARK_SECONDS = 60;
/** Rows of each list. */
const RULES_SHOWN = 10;
const REFUSALS_SHOWN = 10;

const OUTCOMES = [
  { name: "allowed", label: "Allowed", area: true },
  { name: "refused", label: "Refused", area: true },
  { name: "shadow", label: "Shadow" },
  { name: "delayed", label: "Delayed" },
];
const LATENCIES = [{ name: "p50_us", label: "Median" }, { name: "p99_us", label: "99th percentile" }];

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

  let status = null;
  let notRecorded = 0;
  const draw = drawer(() => {
    replace(tiles, tilesOf(live.tick));
    replace(facts, serverFacts(live.tick, status));
    replaceKeepingFocus(rules, busiestRules());
  }, signal);
  const drawRefusals = drawer(() => replaceKeepingFocus(refusals, recentRefusals(notRecorded)), signal);
  draw();
  live.on("tick", draw, signal);
  live.on("refusal", drawRefusals, signal);
  // What was missed while the stream was closed, or was too slow for this page, is in the history.
  live.on("state", (state) => state === "live" && chart.load(), signal);
  live.on("lost", () => chart.load(), signal);
  poll(async () => {
    status = await get("/api/status", { signal });
    draw();
  }, 5000, signal);
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
  const tile = (name, value, unit, key) => el("div", { class: "tile" },
    el("dt", {}, key && el("span", { class: `key key-${key}` }), name),
    el("dd", {}, value, unit && el("small", {}, ` ${unit}`)));
  const decided = now && now.allowed + now.refused;
  return [
    tile("Allowed", rate(now?.allowed), "/s", "allowed"),
    tile("Refused", rate(now?.refused), now && decided > 0 ? `/s · ${share(now.refused, decided)}` : "/s", "refused"),
    tile("Shadow", rate(now?.shadow), "/s", "shadow"),
    tile("Delayed", rate(now?.delayed), "/s", "delayed"),
    tile("Latency, median", micros(tick?.latency_us?.p50)),
    tile("Latency, 99th", micros(tick?.latency_us?.p99)),
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
  const open = store.breaker_open;
  return [el("h2", {}, "Server and store"), pairs([
    ["Store", store.kind && [`${store.kind} `, store.up ? badge("good", "up") : badge("bad", "down")]],
    ["Circuit breaker", store.kind && store.kind !== "memory" ? (open ? badge("bad", "open") : badge("good", "closed")) : null],
    ["Servers on the store", store.kind && store.kind !== "memory" ? count(store.instances) : null],
    ["Answered without the store", store.degraded ? count(store.degraded) : null],
    ["Keys in use", store.slots ? `${short(store.keys)} of ${short(store.slots)}` : count(store.keys)],
    ["Blocked callers", status && count(store.blocked)],
    ["States evicted early", store.evicted ? count(store.evicted) : null],
    ["Exact logs", store.log_bytes ? bytes(store.log_bytes) : null],
    ["Waiting requests", tick && count(tick.waiting)],
    ["Open tunnels", tick && count(tick.tunnels)],
    ["Rules", status && rulesFact(status.rules)],
    ["Running for", status && millis(status.uptime_s * 1000)],
    ["Version", status?.version],
  ])];
}

function rulesFact(rules) {
  const loaded = `${count(rules.count)}, version ${rules.version}`;
  return rules.failed ? el("a", { href: "#/reloads" }, badge("bad", `${loaded}; the last change was refused`)) : loaded;
}

function busiestRules() {
  const names = new Map();
  for (const tick of live.ticks.slice(-NOW_SECONDS)) {
    for (const rule of tick.rules) names.set(rule.name, (names.get(rule.name) ?? 0) + rule.allowed + rule.refused + rule.shadow + rule.soft);
  }
  const busiest = [...names].sort((a, b) => b[1] - a[1]).slice(0, RULES_SHOWN);
  const lines = live.ticks.slice(-SPARK_SECONDS);
  const rows = busiest.map(([name]) => {
    const now = recentRates(NOW_SECONDS, name);
    const past = lines.map((tick) => {
      const rule = tick.rules.find((one) => one.name === name);
      return rule ? ((rule.allowed + rule.refused) * 1000) / tick.interval_ms : 0;
    });
    // What was before the page was opened is unknown.
    while (past.length < SPARK_SECONDS) past.unshift(null);
    return [el("a", { class: "quiet-link", href: `#/overview${query({ rule: name })}` }, name), sparkline(past, "allowed"),
      rate(now.allowed), rate(now.refused), rate(now.shadow), rate(now.delayed)];
  });
  return table("Busiest rules, requests per second",
    [["Rule", "long"], ["Last minute", "spacious"], ["Allowed", "number"], ["Refused", "number"], ["Shadow", "number"], ["Delayed", "number"]],
    rows, "No request in the last seconds.");
}

function recentRefusals(notRecorded) {
  const rows = live.refusals.slice(0, REFUSALS_SHOWN).map((refusal) => [
    el("a", { class: "quiet-link", href: `#/playground${query({ refusal: refusal.id })}`, title: "Explain this refusal" }, clock(refusal.at)),
    callerLink(refusal.rule, refusal.key), `${refusal.method ?? ""} ${refusal.path ?? ""}`.trim() || DASH,
    refusal.retry_after_ms === null ? "never" : millis(refusal.retry_after_ms),
  ]);
  const list = table("Recent refusals", [["Time", "nowrap"], ["Rule and key", "long"], ["Request", "long spacious"], ["Retry in", "number"]],
    rows, "Nothing was refused lately.");
  return [list, notRecorded > 0 && el("p", { class: "hint" }, `A sample: ${plural(notRecorded, "more refusal")} since the start came too fast to be recorded.`)];
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
    [["Rule and key", "long"], ["Hash in logs", "spacious"], ["Refused", "number"]], rows, "Nothing was refused lately.");
}

/** A count of many keys in bounded memory may be too high by its error. */
function estimate(number, error) {
  return `${error ? "≈ " : ""}${count(number)}`;
}

/** The two charts over time, for all rules or one. */
class HistoryCharts {
  constructor(parameters, signal) {
    this.signal = signal;
    this.rule = parameters.get("rule") || null;
    this.range = "5m";
    this.data = null;
    this.decisions = new LineChart({ title: "Decisions per second", series: OUTCOMES, format: rate, height: 220, controls: this.controls(), signal });
    this.latency = new LineChart({ title: "Time to decide", series: LATENCIES, format: micros, height: 170, axis: powersAxis,
      empty: "No decision was timed. Those of the gateway are not.", signal });
    this.answer = el("div", { role: "status" });
    this.element = el("section", { class: "card", "aria-label": "Decisions over time" }, this.answer, this.decisions.element);
    this.latencyElement = el("section", { class: "card", "aria-label": "Latency over time" }, this.latency.element);
    const draw = drawer(() => this.draw(), signal);
    live.on("tick", (tick) => this.take(tick, draw), signal);
    poll(() => this.range !== "5m" && this.load(), 15000, signal);
    this.load();
  }

  controls() {
    const ranges = Object.entries(RANGES).map(([name, label]) => el("button", { type: "button", "aria-pressed": String(name === this.range),
      onclick: (event) => {
        this.range = name;
        for (const button of event.target.parentElement.children) button.setAttribute("aria-pressed", String(button === event.target));
        this.load();
      } }, label));
    const input = ruleInput("chart-rule", this.rule ?? "", this.signal, (name) => {
      this.rule = name || null;
      this.load();
    });
    input.placeholder = "All rules";
    const rule = field("Rule", input);
    rule.classList.add("inline");
    return el("div", { class: "bar-of-controls" },
      el("div", { class: "choice", role: "group", "aria-label": "Range of time" }, ranges), rule);
  }

  async load() {
    const asked = query({ range: this.range, rule: this.rule });
    this.asked = asked;
    try {
      const told = await get(`/api/history${asked}`, { signal: this.signal });
      if (this.asked !== asked) return;
      replace(this.answer);
      this.data = perSecond(told);
    } catch (error) {
      if (error.name === "AbortError" || this.asked !== asked) return;
      replace(this.answer, missing(error));
      this.data = null;
    }
    this.draw();
  }

  /** Appends a second to the shortest range; the others are asked for again. */
  take(tick, draw) {
    if (this.range !== "5m" || !this.data) return;
    const from = this.rule === null ? tick : tick.rules.find((rule) => rule.name === this.rule);
    const gap = Math.round(tick.at_s) - (this.data.from_s + this.data.allowed.length);
    if (gap < 0) return;
    // The history has the seconds that did not arrive.
    if (gap > 0) return void this.load();
    this.push((name) => (name.endsWith("_us") ? tick.latency_us?.[name.slice(0, 3)] ?? null : ((from?.[name] ?? 0) * 1000) / tick.interval_ms));
    draw();
  }

  push(value) {
    const length = this.data.allowed.length;
    for (const { name } of [...OUTCOMES, ...LATENCIES]) pushBounded(this.data[name], value(name), 300);
    if (length === this.data.allowed.length) this.data.from_s += 1;
  }

  draw() {
    if (!this.data) return;
    this.decisions.show(this.data);
    this.latency.show(this.data);
  }
}

/** Counts of a step become rates; latencies stay. */
function perSecond(told) {
  const result = { from_s: told.from_s, step_s: told.step_s };
  for (const { name } of OUTCOMES) result[name] = told[name].map((value) => (value === null ? null : value / told.step_s));
  for (const { name } of LATENCIES) result[name] = [...told[name]];
  return result;
}
