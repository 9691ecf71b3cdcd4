// An explanation as a story: the verdict, what the request was taken for, and each rule with its conditions and arithmetic.

import { bar } from "./charts.js";
import { badge, el, pairs } from "./dom.js";
import { count, moment, plural, words, zone } from "./format.js";
import { callerLink } from "./links.js";

/** Results of rules and how they look. Rules that had nothing to do with the request are folded away. */
const RESULTS = {
  refused: "bad", blocked: "bad", closed: "bad", store_unavailable: "bad", allowed: "good", shadow: "warn", soft: "warn",
  missing_facts: "warn", not_matched: "idle", off: "idle", exempt: "idle", not_needed: "idle",
};
const ASIDE = new Set(["not_matched", "off", "not_needed"]);
/** Rules of one kind that are drawn: there may be 10,000. */
const RULES_MAX = 50;

export function explanationOf(told) {
  const allowed = told.decision?.allowed !== false;
  const main = told.rules.filter((rule) => !ASIDE.has(rule.result));
  const aside = told.rules.filter((rule) => ASIDE.has(rule.result));
  return [
    el("h2", {}, told.refusal ? `Refusal at ${moment(told.at)}` : "Explanation"),
    zone() === "UTC" ? null : el("p", { class: "hint" }, "Times in the text are in UTC."),
    el("p", { class: "verdict" }, verdictOf(allowed, told.summary)),
    told.retry ? el("p", { class: "retry" }, told.retry.text) : null,
    factsOf(told.facts),
    main.slice(0, RULES_MAX).map(ruleStory), more(main),
    aside.length ? el("details", { class: "more" }, el("summary", {}, `${plural(aside.length, "rule")} had no part in it`),
      el("div", { class: "stories" }, aside.slice(0, RULES_MAX).map(ruleStory), more(aside))) : null,
    told.decision ? el("details", { class: "more" }, el("summary", {}, "The decision as /v1/check answers it"),
      el("pre", { tabindex: "0", class: "decision" }, JSON.stringify(told.decision, null, 2))) : null,
  ];
}

/** The summary; its first word is the verdict and gets the mark. */
function verdictOf(allowed, summary) {
  const word = allowed ? "Allowed" : "Refused";
  return [badge(allowed ? "good" : "bad", word), summary.startsWith(word) ? summary.slice(word.length) : ` ${summary}`];
}

function more(rules) {
  return rules.length > RULES_MAX ? el("p", { class: "muted" }, `… and ${plural(rules.length - RULES_MAX, "more rule")}.`) : null;
}

function factsOf(facts = []) {
  if (facts.length === 0) return null;
  return el("div", {}, el("h3", {}, "Seen as"), pairs(facts.map((fact) =>
    [fact.name, [el("span", { class: "mono" }, fact.value), fact.note && el("span", { class: "muted" }, ` (${fact.note})`)]])));
}

function ruleStory(rule) {
  const override = rule.override && `own limits: ${(rule.override.limits ?? []).join(", ")}`;
  return el("section", { class: `story ${rule.result}` },
    el("div", { class: "line-of" }, el("h3", {}, rule.name), badge(RESULTS[rule.result] ?? "idle", words(rule.result)),
      rule.tier && el("span", { class: "muted" }, `tier ${rule.tier.name}${rule.tier.why ? ` (${rule.tier.why})` : ""}`), override),
    el("p", {}, rule.why),
    rule.conditions?.length ? el("ul", { class: "conditions" }, rule.conditions.map(conditionOf)) : null,
    rule.key ? keyOf(rule) : null,
    rule.ban ? el("p", { class: "muted" }, `Ban: ${rule.ban}.`) : null,
    rule.cost ? el("p", {}, `Costs ${plural(rule.cost.units, "unit")}${rule.cost.why ? `: ${rule.cost.why}` : ""}`) : null,
    (rule.limits ?? []).map(limitOf));
}

function conditionOf({ text, holds, found }) {
  return el("li", { class: holds ? "holds" : "fails" }, el("span", { class: "mark", "aria-hidden": "true" }, holds ? "✓" : "✕"),
    el("span", { class: "visually-hidden" }, holds ? "holds: " : "does not hold: "),
    el("span", {}, text, found !== null && found !== undefined && el("span", { class: "muted" }, ` · found ${found}`)));
}

function keyOf(rule) {
  const parts = (rule.key.parts ?? []).filter((part) => part.why).map((part) => `${part.name}: ${part.why}`);
  return el("p", {}, "Counted as ", callerLink(rule.name, rule.key.text), " by ", el("code", {}, rule.key.template),
    parts.length ? el("span", { class: "muted" }, ` (${parts.join("; ")})`) : null);
}

function limitOf(limit) {
  const aside = [limit.algorithm && words(limit.algorithm), limit.decided_by && `decided by ${words(limit.decided_by)}`, !limit.enforced && "not enforced"];
  return el("div", { class: "arithmetic" },
    el("div", { class: "line-of" }, badge(limit.allowed ? "good" : "bad", limit.allowed ? "fits" : "does not fit"), el("b", {}, limit.limit),
      el("span", { class: "muted" }, aside.filter(Boolean).join(" · "))),
    bar(limit.remaining ?? 0, limit.max ?? 0, limit.allowed ? "" : "low"),
    el("p", {}, limit.arithmetic ?? `${count(limit.remaining)} of ${count(limit.max)} left`));
}
