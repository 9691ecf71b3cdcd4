// Links to callers, and the input that proposes names of rules. With 10,000 rules a list of all would be too long, so
// the server is asked for those that match.

import { get, query } from "./api.js";
import { el, replace } from "./dom.js";
import { isHidden } from "./format.js";

/** Names that are proposed at once. */
const PROPOSALS = 20;

/** A link to the state of a caller: rule and key. Some refusals are not those of one caller under one rule, and a key that is
 * not shown leads nowhere. */
export function callerLink(rule, key) {
  if (!rule || !key) return el("span", {}, rule ?? "–");
  if (isHidden(key)) return el("span", {}, el("b", {}, rule), " ", el("span", { class: "mono" }, key));
  return el("a", { class: "caller", href: `#/keys${query({ rule, key })}` }, el("b", {}, rule), " ", el("span", { class: "mono" }, key));
}

/** An input for the name of a rule; `onChoice` gets the name when it is entered or chosen. */
export function ruleInput(id, value, signal, onChoice) {
  const names = el("datalist", { id: `${id}-names` });
  const input = el("input", { id, value, list: names.id, autocomplete: "off", spellcheck: "false" });
  let asked = 0;
  const propose = async () => {
    const number = (asked += 1);
    try {
      const { rules } = await get(`/api/rules${query({ q: input.value, n: PROPOSALS })}`, { signal });
      if (number === asked) replace(names, rules.map((rule) => el("option", { value: rule.name })));
    } catch {
      // The name can be typed.
    }
  };
  input.addEventListener("focus", propose, { once: true });
  input.addEventListener("input", propose);
  input.addEventListener("change", () => onChoice?.(input.value.trim()));
  // The list is where the input is, wherever that is put.
  queueMicrotask(() => input.after(names));
  return input;
}
