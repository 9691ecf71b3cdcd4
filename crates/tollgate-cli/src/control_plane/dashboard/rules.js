// Rules: all of them as compiled, a page at a time: with 10,000 rules neither the response nor the table may be longer.

import { get, query } from "./api.js";
import { badge, el, field, pairs, problem, replace } from "./dom.js";
import { count, millis, plural, share, words } from "./format.js";
import { poll } from "./live.js";

const PAGE = 50;
const ORDERS = { order: "Order of the files", name: "Name", requests: "Most requests", refused: "Most refused" };

export function showRules(main, parameters, signal) {
  const wanted = { q: parameters.get("q") ?? "", sort: parameters.get("sort") ?? "order", from: Number(parameters.get("from")) || 0 };
  const summary = el("p", { role: "status" });
  const list = el("ul", { class: "rows" });
  const pages = el("div", { class: "buttons" });
  const problems = el("div");
  const search = el("input", { id: "rules-search", type: "search", value: wanted.q, autocomplete: "off", spellcheck: "false" });
  const order = el("select", { id: "rules-order" }, Object.entries(ORDERS).map(([value, text]) =>
    el("option", { value, selected: value === wanted.sort }, text)));
  replace(main,
    el("div", { class: "head" }, el("h1", {}, "Rules"), summary),
    el("section", { class: "card", "aria-label": "Rules in force" },
      el("div", { class: "bar-of-controls", role: "search" }, field("Name contains", search), field("Sorted by", order)), problems, list, pages));

  let asked = 0;
  const load = async (keepOpen) => {
    const number = (asked += 1);
    try {
      const told = await get(`/api/rules${query({ q: wanted.q, sort: wanted.sort, from: wanted.from, n: PAGE })}`, { signal });
      if (number !== asked) return;
      replace(problems);
      draw(told, keepOpen);
    } catch (error) {
      if (error.name !== "AbortError" && number === asked) replace(problems, problem(error));
    }
  };
  const draw = (told, keepOpen) => {
    const { matching = told.rules.length, total = matching, rules } = told;
    replace(summary, wanted.q ? `${count(matching)} of ${plural(total, "rule")}` : plural(total, "rule"), `, version ${told.version}, from ${told.origin}`);
    drawRows(list, rules.slice(0, PAGE), keepOpen);
    const turn = (text, from, possible) => el("button", { type: "button", disabled: !possible, onclick: () => {
      wanted.from = from;
      load(false);
      list.scrollIntoView({ block: "nearest" });
    } }, text);
    replace(pages, matching > PAGE && [
      turn("Previous", Math.max(0, wanted.from - PAGE), wanted.from > 0),
      turn("Next", wanted.from + PAGE, wanted.from + PAGE < matching),
      el("span", { class: "muted" }, `${count(wanted.from + 1)} to ${count(Math.min(matching, wanted.from + PAGE))} of ${count(matching)}`),
    ]);
  };
  const change = () => {
    Object.assign(wanted, { q: search.value.trim(), sort: order.value, from: 0 });
    load(false);
  };
  search.addEventListener("input", change, { signal });
  order.addEventListener("change", change, { signal });
  poll(() => load(true), 5000, signal);
}

/** Rows that were open stay open, and the one that had the focus keeps it. */
function drawRows(list, rules, keepOpen) {
  const open = new Set(keepOpen ? [...list.querySelectorAll("details[open]")].map((row) => row.dataset.rule) : []);
  const focused = keepOpen ? document.activeElement?.closest?.("details")?.dataset.rule : undefined;
  const rows = rules.map((rule) => rowOf(rule, open.has(rule.name)));
  if (rows.length === 0) rows.push(el("li", { class: "empty" }, "No rule has such a name."));
  replace(list, rows);
  if (focused === undefined) return;
  [...list.querySelectorAll("details")].find((row) => row.dataset.rule === focused)?.querySelector("summary").focus({ preventScroll: true });
}

function rowOf(rule, open) {
  const { tally } = rule;
  const row = el("details", { open, "data-rule": rule.name, ontoggle: () => row.open && fillRow(row, rule) },
    el("summary", {}, el("span", { class: "rule-line" },
      el("b", {}, rule.name), modeBadge(rule),
      el("span", { class: "muted rule-limits" }, rule.limits.map(limitText).join(", ") || rule.concurrency || "no limit for everybody"),
      el("span", { class: "number" }, countsText(tally)))));
  if (open) fillRow(row, rule);
  return el("li", {}, row);
}

/** What became of the requests of a rule, in a line. A rule that refuses nothing shows what it would have refused. */
function countsText(tally) {
  const { refused, shadow, soft, store_unavailable: unavailable = 0 } = tally;
  const decided = Object.values(tally).reduce((sum, one) => sum + one, 0);
  const [number, what] = shadow ? [shadow, "would be refused"] : soft ? [soft, "warned"] : [refused, "refused"];
  const lost = unavailable ? `, ${count(unavailable)} without the store` : "";
  return `${count(number)} ${what} of ${count(decided)} (${share(number, decided)})${lost}`;
}

/** Details are built when a row is opened: 50 closed rows stay small. */
function fillRow(row, rule) {
  if (row.children.length > 1) return;
  const { tally, waits } = rule;
  const tiers = Object.entries(rule.tiers ?? {}).map(([tier, limits]) => [`Tier ${tier}`, limits.map(limitText).join(", ")]);
  row.append(pairs([
    ["Applies to", rule.match ?? null], ["Key", el("span", { class: "mono" }, rule.key)], ["Cost", costText(rule.cost)],
    ...rule.limits.map((limit, at) => ["Limit", compiledText(limitText(limit), rule.compiled?.[at])]), ...tiers,
    ["Requests in progress", rule.concurrency],
    ["Allowed", count(tally.allowed)], ["Refused", count(tally.refused)], ["Would be refused (shadow)", tally.shadow ? count(tally.shadow) : null],
    ["Warned (soft)", tally.soft ? count(tally.soft) : null],
    ["Refused by another rule", tally.refused_by_other ? count(tally.refused_by_other) : null],
    ["Store unavailable", tally.store_unavailable ? count(tally.store_unavailable) : null],
    ["Waiting", waits ? `${count(waits.waiting)} now, ${count(waits.admitted)} admitted, ${count(waits.expired)} expired` : null],
    ["Ban", rule.ban ? `${rule.ban}: ${plural(rule.bans, "caller")} banned${rule.shadow_bans ? `, ${count(rule.shadow_bans)} in shadow` : ""}` : null],
    ["Over time", el("a", { href: `#/overview${query({ rule: rule.name })}` }, "Chart of this rule")],
  ], "wide"));
}

function limitText(limit) {
  return typeof limit === "string" ? limit : limit.limit;
}

/** A limit as it is written, and what that means in numbers. */
function compiledText(text, compiled) {
  if (!compiled) return text;
  const { algorithm, units, period_ms, capacity } = compiled;
  return [text, el("span", { class: "muted" }, ` · ${words(algorithm)}, ${count(units)} per ${millis(period_ms)}, room for ${count(capacity)}`)];
}

function costText(cost) {
  return cost === undefined || cost === null ? null : String(cost);
}

function modeBadge(rule) {
  if (rule.soft) return badge("warn", "soft");
  if (rule.mode === "enforce") return badge("good", "enforced");
  return badge(rule.mode === "off" ? "idle" : "warn", rule.mode);
}
