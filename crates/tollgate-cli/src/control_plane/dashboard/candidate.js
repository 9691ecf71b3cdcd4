// Candidate rules: what other rules would have done to the recorded traffic. Nothing is put in force.

import { post } from "./api.js";
import { LineChart, perSecond } from "./charts.js";
import { badge, el, field, problem, replace, table } from "./dom.js";
import { clock, count, moment, plural, rate, share } from "./format.js";

const EXAMPLE = `rules:
  - name: api
    match: { path: "/api/{*rest}" }
    key: "{user|ip}"
    limits: [100/minute]
`;
/** Rows of each table. */
const ROWS_MAX = 25;
const SERIES = [
  { name: "offered", label: "Offered", area: true },
  { name: "now_refused", label: "Refused by the rules in force" },
  { name: "then_refused", label: "Refused by these rules" },
];
/** What was typed last, so that it is there when the view is shown again. */
let remembered = EXAMPLE;

export function candidatePart(signal) {
  const editor = el("textarea", { id: "candidate", class: "editor", spellcheck: "false", autocomplete: "off", autocapitalize: "off", wrap: "off" }, remembered);
  const answer = el("div", { class: "candidate-answer", "aria-live": "polite" });
  const button = el("button", { class: "primary" }, "Try on recorded traffic");
  return el("section", { class: "card", "aria-labelledby": "candidate-title" },
    el("h2", { id: "candidate-title" }, "Try other rules"),
    el("form", { class: "candidate-form", onsubmit: async (event) => {
      event.preventDefault();
      remembered = editor.value;
      button.disabled = true;
      try {
        replace(answer, resultOf(await post("/api/candidate", editor.value, { signal }), signal));
      } catch (error) {
        if (error.name !== "AbortError") replace(answer, problem(error));
      }
      button.disabled = false;
    } }, field("Rules file", editor, "What these rules would have done to the traffic that this server has recorded. They are not put in force."),
    el("div", { class: "buttons" }, button)),
    answer);
}

function resultOf(told, signal) {
  const { recorded, now, then } = told;
  const span = recorded.from && recorded.to ? ` from ${moment(recorded.from)} to ${clock(recorded.to)}` : "";
  const chart = new LineChart({ title: "Requests per second", series: SERIES, format: rate, height: 180, signal });
  const parts = [
    el("p", { class: "verdict" }, `Of ${plural(recorded.requests, "request")}${span}, `,
      el("b", {}, `${plural(told.changed, "answer")} would change`), `: ${count(now.refused)} were refused (${share(now.refused, recorded.requests)}), `,
      `${count(then.refused)} would be (${share(then.refused, recorded.requests)}).`),
    el("p", { class: "muted" }, [recorded.sampled && `Recorded: ${recorded.sampled}.`, recorded.note].filter(Boolean).join(" ")),
    told.warnings?.length ? el("pre", { tabindex: "0" }, String(told.warnings)) : null,
    told.series ? chart.element : null,
    el("div", { class: "columns" }, rulesTable(told.rules ?? []), callersTable(told.callers ?? [])),
    examplesTable(told.examples ?? []),
  ];
  if (told.series) queueMicrotask(() => chart.show(perSecond(told.series, SERIES.map(({ name }) => name))));
  return parts;
}

function rulesTable(rules) {
  const rows = rules.slice(0, ROWS_MAX).map((rule) => [rule.name, count(rule.now_refused), count(rule.then_refused)]);
  return table("Refused, by rule", [["Rule", "long"], ["In force", "number"], ["These rules", "number"]], rows, "No rule refused anything.");
}

function callersTable(callers) {
  const rows = callers.slice(0, ROWS_MAX).map((caller) => [el("span", {}, el("b", {}, caller.rule), " ", el("span", { class: "mono" }, caller.key ?? caller.hash)),
    count(caller.requests), count(caller.now_refused), count(caller.then_refused)]);
  return table("Callers most affected", [["Rule and key", "long"], ["Requests", "number"], ["In force", "number"], ["These rules", "number"]], rows, "Nobody would notice.");
}

function examplesTable(examples) {
  const verdict = ({ allowed, rule }) => [badge(allowed ? "good" : "bad", allowed ? "allowed" : "refused"), rule && el("span", { class: "muted" }, ` · ${rule}`)];
  const rows = examples.slice(0, ROWS_MAX).map((one) => [clock(one.at), `${one.method ?? ""} ${one.path ?? ""}`, el("span", { class: "mono" }, one.key ?? ""),
    verdict(one.now), verdict(one.then)]);
  return table("Requests whose answer would change", [["Time", "nowrap"], ["Request", "long"], ["Key", "long"], ["In force", ""], ["These rules", ""]], rows, "None.");
}
