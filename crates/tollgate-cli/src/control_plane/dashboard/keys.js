// Keys: one caller under one rule. Its state in every limit, counting down, and what an operator can do about it.

import { get, keyPath, query } from "./api.js";
import { bar } from "./charts.js";
import { badge, el, field, pairs, problem, replace, setText, table } from "./dom.js";
import { DASH, count, isHidden, millis, moment, words } from "./format.js";
import { actionsFor } from "./key_actions.js";
import { callerLink, ruleInput } from "./links.js";
import { drawer, live, nothingRefused, poll } from "./live.js";

/** Proposals shown before a key is chosen. */
const PROPOSALS = 20;

/** Added to the hint where no user has another name than the hash of a key. */
const API_KEY_HINT = " Users are identified by their API keys here: enter the key itself, or its hash as in the lists, user=sha256:…. "
  + "The page and its address show the hash only.";

export function showKeys(main, parameters, signal) {
  const [rule, key] = [parameters.get("rule") ?? "", parameters.get("key") ?? ""];
  const rules = ruleInput("key-rule", rule, signal);
  rules.required = true;
  const keys = el("input", { id: "key-key", value: key, required: true, autocomplete: "off", spellcheck: "false" });
  const place = el("div", { class: "card" });
  const part = partOfView(signal);
  const apiKeys = el("span", { class: "api-key-hint" });
  const form = el("form", { class: "card", role: "search", onsubmit: (event) => {
    event.preventDefault();
    find(place, rules.value.trim(), keys, part());
  } }, el("div", { class: "bar-of-controls" },
    field("Rule", rules), field("Key", keys), el("button", { class: "primary" }, "Show")),
  el("p", { class: "hint" }, "A key is written as in the lists: user=42, ip=192.0.2.1, or user=42,path=/export for one of several parts. ",
    "The bare value works where it is unambiguous.", apiKeys));
  const hint = () => setText(apiKeys, usersAreApiKeys() ? API_KEY_HINT : "");
  hint();
  live.on("status", hint, signal);
  replace(main, el("div", { class: "head" }, el("h1", {}, "Keys")), form, place);
  if (rule && key) showCaller(place, { rule, key }, key, part());
  else propose(place, part());
}

/** Makes signals for what is shown in one place: each ends the one before it, and all end with the view. */
function partOfView(signal) {
  let shown = new AbortController();
  return () => {
    shown.abort();
    shown = new AbortController();
    return AbortSignal.any([signal, shown.signal]);
  };
}

function usersAreApiKeys() {
  return live.status?.rules.users_by_api_key === true;
}

/** Shows a caller. The server is asked for its normal form first: an API key becomes its hash before it is in an address, which
 * the browser remembers. A key that is not shown gets no address. */
async function find(place, rule, input, signal) {
  const key = input.value;
  let found = { rule, key };
  try {
    found = await get(keyPath(rule, key), { signal });
  } catch (error) {
    if (error.name === "AbortError") return;
    // Without an answer the view of the caller asks again.
    if (error.status !== 0 || usersAreApiKeys()) {
      replace(place, problem(error));
      return;
    }
  }
  if (isHidden(found.key)) {
    input.value = "";
    showCaller(place, found, key, signal);
    return;
  }
  const wanted = `#/keys${query({ rule: found.rule, key: found.key })}`;
  if (wanted === location.hash) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = wanted;
}

/** Without a key: those that an operator most likely looks for. */
function propose(place, signal) {
  poll(async () => {
    const { top, window_s } = await get(`/api/top?by=refusals&n=${PROPOSALS}`, { signal });
    const rows = top.map((one) => [callerLink(one.rule, one.key), el("span", { class: "mono" }, one.hash), count(one.count)]);
    replace(place, table(`Most refused keys of the last ${millis(window_s * 1000)}`,
      [["Rule and key", "long"], ["Hash in logs", "spacious"], ["Refused", "number"]], rows, `${nothingRefused()} Enter a rule and a key above.`));
  }, 10000, signal);
}

/** Shows the caller of a key; `shown` is the key as the page shows it. */
function showCaller(place, { rule, key: shown }, key, signal) {
  place.removeAttribute("class");
  place.className = "card";
  const answer = el("div", { role: "status" });
  const state = el("div", { class: "card-part" });
  const actions = el("div", { class: "buttons" });
  const name = el("span", { class: "mono" }, shown);
  const heading = el("h2", {}, rule, " ", name);
  replace(place, heading, answer, state, actions);
  let caller = null;
  let at = 0;
  const show = (told) => {
    caller = told;
    at = performance.now();
    if (isHidden(told.key)) setText(name, told.key);
    draw();
  };
  const draw = drawer(() => caller && drawCaller(state, caller, performance.now() - at), signal);
  const load = async () => {
    try {
      show(await get(keyPath(rule, key), { signal }));
      if (!actions.hasChildNodes()) {
        replace(actions, actionsFor(rule, key, () => caller, (text, told = null) => {
          replace(answer, el("p", { class: "done" }, text));
          if (told) show(told);
          load();
        }));
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      // A server that restarts must not take the buttons away while somebody reads.
      if (caller === null) replace(state, problem(error));
      else replace(answer, problem(error));
    }
  };
  poll(load, 2000, signal);
  // Between two answers of the server, times count down here.
  poll(async () => draw(), 500, signal);
}

/** Draws in place: what changes is text, so that a screen reader or a selection is not thrown back to the start. */
function drawCaller(place, caller, passed) {
  const shape = JSON.stringify([caller.limits.map((limit) => [limit.tier, limit.limit, limit.max]), caller.override, caller.mode,
    caller.exempt, caller.closed, caller.soft, caller.enforced, caller.blocked_for_ms !== null, caller.seen, caller.tier]);
  if (place.dataset.shape !== shape) {
    place.dataset.shape = shape;
    replace(place, neverSeen(caller), factsOf(caller), limitsOf(caller));
  }
  const left = (ms) => (typeof ms === "number" ? Math.max(0, ms - passed) : null);
  const blocked = place.querySelector(".blocked-for");
  if (blocked) setText(blocked, millis(left(caller.blocked_for_ms)));
  place.querySelectorAll("tbody tr").forEach((row, at) => {
    const limit = caller.limits[at];
    if (!limit) return;
    const cells = row.children;
    const remaining = typeof limit.balance === "number" ? limit.balance : limit.remaining;
    setText(cells[1].firstElementChild, `${count(remaining)} of ${count(limit.max)}`);
    const drawn = bar(limit.remaining ?? 0, limit.max, limit.allowed && caller.blocked_for_ms === null ? "" : "low");
    cells[1].lastElementChild.replaceWith(drawn);
    setText(cells[2], limit.reset_after_ms === null ? DASH : left(limit.reset_after_ms) === 0 ? "full" : millis(left(limit.reset_after_ms)));
    setText(cells[3], nextRequest(caller, limit, left));
  });
}

/** The time of the next request that passes. A block and a rule that is closed come before what is left in the limit. */
function nextRequest({ blocked_for_ms: blockedFor, closed }, limit, left) {
  if (closed) return "never (closed)";
  if (limit.reason === "store_unavailable") return "when the store answers";
  const isNever = !limit.allowed && limit.retry_after_ms === null;
  if (isNever) return `never (${words(limit.reason)})`;
  const [block, wait] = [left(blockedFor) ?? 0, limit.allowed ? 0 : left(limit.retry_after_ms)];
  if (block >= wait && block > 0) return `in ${millis(block)} (blocked)`;
  return wait === 0 ? "now" : `in ${millis(wait)}`;
}

/** A key with a slip of the pen has a state as well: that of a caller who has used nothing. */
function neverSeen({ seen }) {
  if (seen !== false) return null;
  return el("p", { class: "note-of-doubt" }, badge("warn", "Never seen"), " The server knows nothing of this key, or saw it so long ago that nothing is kept: ",
    "is it spelt as in the lists?");
}

function factsOf(caller) {
  const until = caller.override?.until;
  return pairs([
    ["Hash in logs", el("span", { class: "mono" }, caller.hash)],
    ["Rule", modeOf(caller)],
    ["Blocked", caller.blocked_for_ms === null ? badge("idle", "no")
      : [badge("bad", "blocked"), " for another ", el("span", { class: "blocked-for" })]],
    ["Own limits", caller.override
      ? `${caller.override.limits.join(", ")}${until ? ` until ${moment(until)}` : ""} (${caller.override.run_time ? "set at run time" : "from a file"})` : "none"],
  ], "wide");
}

function modeOf(caller) {
  if (caller.exempt) return badge("idle", "the caller is exempt: no rule applies");
  if (caller.closed) return badge("warn", "closed: allows nothing");
  if (caller.enforced) return badge("good", "enforced for this caller");
  return badge("warn", `${caller.soft ? "soft: warns only" : `mode ${caller.mode}`}; refuses nothing for this caller`);
}

function limitsOf(caller) {
  const rows = caller.limits.map((limit) => [
    el("span", {}, limit.limit, limit.tier && el("span", { class: "muted" }, ` · tier ${limit.tier}${limit.current ? ", this caller's" : ""}`),
      limit.decided_by === "overflow" && el("span", { class: "muted" }, " · shared state, the table is full")),
    [el("span", { class: "number" }), bar(0, 1)], "", "",
  ]);
  return table("State in every limit",
    [["Limit", "long"], ["Left", "left"], ["Full in", "number"], ["Next request", "next"]], rows, "This rule has no limit for this caller.");
}
