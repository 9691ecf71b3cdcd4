// Line charts over time, as SVG. Series differ in colour, dash and label; the legend shows the values at the pointer or
// the latest ones, and hides a series when it is pressed. A table has the same numbers for those who cannot see the lines.

import { el, replace, setText, svg, table } from "./dom.js";
import { clock } from "./format.js";

/** Points a line has at most: more than a screen shows. Others are merged. */
const POINTS_MAX = 360;
/** Rows of the table at most. */
const ROWS_MAX = 60;
const MARGIN = { left: 46, right: 10, top: 8, bottom: 20 };

export class LineChart {
  /**
   * `series` are `{ name, label }`; `format` writes a value; the class of a line is `line-NAME`; `axis` makes the
   * axis of values; `empty` says why there is nothing to draw; `controls` stand beside the title.
   */
  constructor({ title, series, format, height = 190, axis = linearAxis, empty = "No data yet.", controls = null, signal }) {
    Object.assign(this, { title, series, format, height, axis, empty });
    this.hidden = new Set();
    this.pointed = null;
    this.data = null;
    /** True if the data ends before now: then the title says where. */
    this.isOld = false;
    this.svg = svg("svg", { class: "chart", role: "img", height });
    this.legend = el("ul", { class: "legend" }, series.map((one) => this.legendItem(one)));
    this.tablePlace = el("div");
    this.details = el("details", { class: "numbers", ontoggle: () => this.drawTable() },
      el("summary", {}, "As a table"), this.tablePlace);
    this.caption = el("figcaption", {}, title);
    this.element = el("figure", {}, controls ? el("div", { class: "chart-head" }, this.caption, controls) : this.caption,
      this.legend, this.svg, this.details);
    this.svg.addEventListener("pointermove", (event) => this.point(event), { signal });
    this.svg.addEventListener("pointerleave", () => this.point(null), { signal });
    const resized = new ResizeObserver(() => this.draw());
    resized.observe(this.svg);
    signal?.addEventListener("abort", () => resized.disconnect());
  }

  legendItem(one) {
    const value = el("span", { class: "value" });
    const sample = svg("svg", { width: 22, height: 8, "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 22, y1: 4, y2: 4, class: `line line-${one.name}` }));
    const button = el("button", { type: "button", "aria-pressed": "true", onclick: () => {
      if (!this.hidden.delete(one.name)) this.hidden.add(one.name);
      button.setAttribute("aria-pressed", String(!this.hidden.has(one.name)));
      this.draw();
    } }, sample, one.label, value);
    one.value = value;
    return el("li", {}, button);
  }

  /** Shows `{ from_s, step_s, NAME: [numbers or null] }`. */
  show(data) {
    this.data = merged(data, this.series.map((one) => one.name));
    this.draw();
    this.drawTable();
  }

  draw() {
    const width = Math.floor(this.svg.getBoundingClientRect().width);
    if (!this.data || width === 0) return;
    const { from_s, step_s, length } = this.data;
    const inner = { width: width - MARGIN.left - MARGIN.right, height: this.height - MARGIN.top - MARGIN.bottom };
    const shown = this.series.filter((one) => !this.hidden.has(one.name));
    const { part, marks } = this.axis(shown.flatMap((one) => this.data[one.name].filter((value) => value !== null)));
    const x = (at) => MARGIN.left + (inner.width * at) / Math.max(1, length - 1);
    const y = (value) => MARGIN.top + inner.height * (1 - part(value));
    this.x = x;
    const values = marks.map(({ value, labelled }, at) => [
      svg("line", { class: at === 0 ? "axis" : "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      labelled && svg("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)),
    ]);
    const times = timeMarks(from_s, step_s * (length - 1), inner.width / 90).map(({ at, text }) =>
      svg("text", { x: x((at - from_s) / step_s), y: this.height - 4, "text-anchor": "middle" }, text));
    const lines = shown.map((one) => [
      one.area && svg("path", { class: `area area-${one.name}`, d: areaOf(this.data[one.name], x, y) }),
      svg("path", { class: `line line-${one.name}`, d: lineOf(this.data[one.name], x, y) }),
    ]);
    const pointer = this.pointed !== null &&
      svg("line", { class: "pointer", x1: x(this.pointed), x2: x(this.pointed), y1: MARGIN.top, y2: MARGIN.top + inner.height });
    const known = shown.some((one) => this.data[one.name].some((value) => value !== null));
    const note = !known && svg("text", { x: MARGIN.left + inner.width / 2, y: MARGIN.top + inner.height / 2, "text-anchor": "middle" }, this.empty);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    replace(this.svg, values, times, lines, pointer, note);
    this.drawValues();
  }

  drawValues() {
    const at = this.pointed ?? lastValue(this.data, this.series);
    for (const one of this.series) setText(one.value, this.format(this.data[one.name][at]));
    const minutes = Math.round((this.data.step_s * this.data.length) / 60);
    const told = this.series.map((one) => {
      const known = this.data[one.name].filter((value) => value !== null);
      if (known.length === 0) return `${one.label}: no data`;
      return `${one.label}: ${this.format(known.at(-1))} now, at most ${this.format(Math.max(...known))}`;
    });
    this.svg.setAttribute("aria-label", `${this.title}, last ${minutes} minutes. ${told.join("; ")}.`);
    const time = clock(this.data.from_s + at * this.data.step_s);
    const when = this.pointed === null ? (this.isOld ? ` until ${time}` : "") : ` at ${time}`;
    setText(this.caption, this.title + when);
  }

  point(event) {
    if (!this.data || !this.x) return;
    const before = this.pointed;
    this.pointed = event && Math.round(((event.offsetX - MARGIN.left) / (this.x(1) - MARGIN.left)) || 0);
    if (this.pointed !== null) this.pointed = Math.max(0, Math.min(this.data.length - 1, this.pointed));
    if (this.pointed !== before) this.draw();
  }

  drawTable() {
    if (!this.details.open || !this.data) return;
    const step = Math.max(1, Math.ceil(this.data.length / ROWS_MAX));
    const rows = [];
    for (let at = this.data.length - 1; at >= 0; at -= step) {
      const values = this.series.map((one) => this.format(this.data[one.name][at]));
      rows.push([clock(this.data.from_s + at * this.data.step_s), ...values]);
    }
    const columns = [["Time", ""], ...this.series.map((one) => [one.label, "number"])];
    replace(this.tablePlace, table(`${this.title}, newest first`, columns, rows));
  }
}

/** Counts of a step become rates. The last step of an answer may have begun just now: `last_step_s` of it are over. */
export function perSecond({ from_s, step_s, last_step_s = step_s, ...told }, names) {
  const span = (at, values) => (at === values.length - 1 ? last_step_s : step_s);
  const rateOf = (value, at, values) => (value === null || span(at, values) === 0 ? null : value / span(at, values));
  return { from_s, step_s, ...Object.fromEntries(names.map((name) => [name, told[name].map(rateOf)])) };
}

/** Merges points so that no line has too many: the mean of those that are known. */
function merged(data, names) {
  const length = Math.max(0, ...names.map((name) => data[name]?.length ?? 0));
  const by = Math.max(1, Math.ceil(length / POINTS_MAX));
  const result = { from_s: data.from_s, step_s: data.step_s * by, length: Math.ceil(length / by) };
  for (const name of names) {
    const values = data[name] ?? [];
    result[name] = Array.from({ length: result.length }, (_, at) => {
      const known = values.slice(at * by, at * by + by).filter((value) => typeof value === "number");
      return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    });
  }
  return result;
}

function lastValue(data, series) {
  for (let at = data.length - 1; at > 0; at -= 1) {
    if (series.some((one) => data[one.name][at] !== null)) return at;
  }
  return 0;
}

/** An axis from 0: `part(value)` is how far up a value is, from 0 to 1; `marks` are its lines. */
export function linearAxis(values) {
  const top = roundUp(Math.max(0, ...values));
  return { part: (value) => value / top, marks: [0, 1, 2, 3, 4].map((at) => ({ value: (top * at) / 4, labelled: at % 2 === 0 })) };
}

/** An axis whose lines are powers of ten, for values of very different size. */
export function powersAxis(values) {
  const powers = values.filter((value) => value > 0).map(Math.log10);
  const low = powers.length ? Math.floor(Math.min(...powers)) : 0;
  const high = Math.max(low + 1, powers.length ? Math.ceil(Math.max(...powers)) : 1);
  const marks = Array.from({ length: high - low + 1 }, (_, at) => ({ value: 10 ** (low + at), labelled: true }));
  return { part: (value) => (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low), marks };
}

/** The next number of which half and a quarter are short as well. */
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10];
  return (steps.find((step) => step * power >= value * 1.02) ?? 12) * power;
}

/** Round times of day, at most `wanted` of them. */
function timeMarks(from, span, wanted) {
  const steps = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];
  const step = steps.find((one) => span / one <= Math.max(2, wanted)) ?? 86400;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const marks = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= from + span; at += step) {
    if (at - from > span * 0.03 && from + span - at > span * 0.03) marks.push({ at, text: clock(at, step < 60) });
  }
  return marks;
}

/** The path of a line, interrupted where there is no data. */
function lineOf(values, x, y) {
  let path = "";
  values.forEach((value, at) => {
    if (value === null) return;
    const begins = at === 0 || values[at - 1] === null;
    path += `${begins ? "M" : "L"}${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    // A point between two gaps is a dot.
    if (begins && (at === values.length - 1 || values[at + 1] === null)) path += "h0.01";
  });
  return path;
}

function areaOf(values, x, y) {
  let path = "";
  values.forEach((value, at) => {
    if (value === null) return;
    if (at === 0 || values[at - 1] === null) path += `M${x(at).toFixed(1)},${y(0).toFixed(1)}`;
    path += `L${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    if (at === values.length - 1 || values[at + 1] === null) path += `L${x(at).toFixed(1)},${y(0).toFixed(1)}Z`;
  });
  return path;
}

/** A horizontal bar: how much of a capacity is left. The text beside it says the same. */
export function bar(part, whole, kind = "") {
  const percent = whole > 0 ? Math.max(0, Math.min(100, (100 * part) / whole)) : 0;
  return svg("svg", { class: `bar ${kind}`, width: "100%", height: 8, "aria-hidden": "true" },
    svg("rect", { class: "bar-track", width: "100%", height: 8, rx: 3 }),
    percent > 0 && svg("rect", { class: "bar-fill", width: `${percent}%`, height: 8, rx: 3 }));
}

/** A small line without axes, for a row of a table. */
export function sparkline(values, name) {
  const [width, height] = [70, 20];
  const top = Math.max(1e-9, ...values.map((value) => value ?? 0));
  const x = (at) => (width * at) / Math.max(1, values.length - 1);
  const y = (value) => height - 2 - ((height - 4) * value) / top;
  return svg("svg", { class: "sparkline", width, height, "aria-hidden": "true" },
    svg("path", { class: `line line-${name}`, d: lineOf(values, x, y) }));
}
