// The charts of the overview: decisions over time by what became of them, and the time that they took.

import { get, query } from "./api.js";
import { LineChart, perSecond, powersAxis } from "./charts.js";
import { el, field, missing, replace } from "./dom.js";
import { micros, rate } from "./format.js";
import { drawer, live, poll, pushBounded } from "./live.js";
import { ruleInput } from "./links.js";

const RANGES = { "5m": "5 minutes", "1h": "1 hour", "24h": "24 hours" };

/** What becomes of requests, in the order of tiles, lines and columns. */
export const OUTCOMES = [
  { name: "allowed", label: "Allowed", area: true },
  { name: "refused", label: "Refused", area: true },
  { name: "unavailable", label: "Unavailable", area: true, hint: "Refused because the store does not answer" },
  { name: "shadow", label: "Shadow", hint: "Would be refused, if the rule were enforced" },
  { name: "soft", label: "Soft", hint: "Over a soft limit, which only warns" },
  { name: "delayed", label: "Delayed", hint: "Waited, and was then allowed" },
];
const LATENCIES = [{ name: "p50_us", label: "Median" }, { name: "p99_us", label: "99th percentile" }];

/** The two charts over time, for all rules or one. */
export class HistoryCharts {
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
    poll(async () => live.isSilent && draw(), 1000, signal);
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
      this.data = { ...perSecond(told, OUTCOMES.map(({ name }) => name)), p50_us: told.p50_us, p99_us: told.p99_us };
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
    for (const chart of [this.decisions, this.latency]) {
      chart.isOld = live.isSilent;
      chart.show(this.data);
    }
  }
}
