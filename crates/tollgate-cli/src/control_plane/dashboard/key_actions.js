// What an operator can do with a caller: reset, block, here or in all rules, grant, override. Each asks back once, and the server writes each
// into its audit log.

import { keyPath, post, remove } from "./api.js";
import { el, field } from "./dom.js";
import { ask } from "./dialog.js";
import { isHidden, millis, plural, zone } from "./format.js";

/** What servers that share a store say about a change. */
const SHARED = {
  yes: " The other servers apply it within a second.",
  later: " The store does not answer: the other servers will apply it when it is back.",
  no: " The store does not answer: it applies to this server only. Repeat it when the store is back.",
  no_room: " The store is full of such changes: it applies to this server only.",
};

/** Rules that a sentence names; more are only counted. */
const RULES_NAMED = 10;

/** Questions in the order of the buttons. Each has the text of its dialog, its request, and a sentence about the result. */
const ACTIONS = [
  ["Reset…", resetQuestion], ["Block…", blockQuestion], ["Lift block…", liftQuestion], ["Grant…", grantQuestion],
  ["Set own limits…", overrideQuestion], ["Remove own limits…", removeQuestion],
];
/** Questions about the caller in all rules. A key without a fact, that of all callers together, is in no other rule. */
const ACTIONS_IN_ALL_RULES = [["Block in all rules…", blockEverywhereQuestion], ["Lift blocks in all rules…", liftEverywhereQuestion]];

/** Buttons for the caller of a key as it was written. `caller()` is its state as last seen; `done(text, state)` gets the result, with the
 * new state if the response has it. */
export function actionsFor(rule, key, caller, done) {
  const path = keyPath(rule, key);
  const button = ([name, question], result) => el("button", { type: "button", onclick: async () => {
    const now = caller();
    const whom = `${rule} ${isHidden(now.key) ? now.key : key}`;
    const { told: sentence, ...rest } = question(path, whom, { ...now, parts: partsOf(now.parts ?? [], key) });
    const told = await ask(rest);
    if (told) done(`${sentence(told)}${SHARED[told.shared] ?? ""} The change is in the server's log.`, result(told));
  } }, name);
  // Servers that are older than the page tell no parts.
  const everywhere = partsOf(caller().parts ?? [], key).length > 0 ? ACTIONS_IN_ALL_RULES : [];
  return [...ACTIONS.map((one) => button(one, (told) => told)), ...everywhere.map((one) => button(one, () => null))];
}

/** The parts of a key, as they are shown and as the server takes them: a part that is not shown as it was written in the key. */
function partsOf(parts, key) {
  const texts = parts.length === 1 ? [key.trimStart().replaceAll(",", "%2C")] : key.split(",").map((text) => text.trimStart());
  return parts.flatMap((shown, at) => {
    if (!isHidden(shown)) return [{ shown, text: shown }];
    const name = shown.slice(0, shown.indexOf("=") + 1);
    const text = texts[at] ?? "";
    return text === "" || isHidden(text) ? [] : [{ shown, text: text.startsWith(name) ? text : `${name}${text}` }];
  });
}

function resetQuestion(path, whom) {
  return {
    title: "Reset this key?", danger: true, confirm: "Reset",
    text: `Forgets all usage of ${whom}, any block, and refusals that count towards a ban. Own limits stay.`,
    action: () => remove(path),
    told: (told) => (told.reset ? "Reset: all limits are full." : "There was nothing to forget."),
  };
}

function blockQuestion(path, whom) {
  const time = el("input", { id: "block-time", value: "15m", required: true, autocomplete: "off" });
  return {
    title: "Block this key?", danger: true, confirm: "Block",
    text: `All requests of ${whom} are refused until the time has passed or the block is lifted.`,
    inputs: [field("For how long", time, "30s, 15m, 2h, 7d. A longer block that exists already stays.")],
    action: () => post(path, { block: time.value.trim() }),
    told: (told) => `Blocked for ${millis(told.blocked_for_ms)}.`,
  };
}

function liftQuestion(path, whom) {
  return {
    title: "Lift the block?", confirm: "Lift block",
    text: `Requests of ${whom} are decided by the limits again.`,
    action: () => post(path, { block: null }),
    told: () => "Not blocked any more.",
  };
}

function grantQuestion(path, whom) {
  const units = el("input", { id: "grant-units", type: "number", min: "1", step: "1", value: "10", required: true });
  return {
    title: "Grant units?", confirm: "Grant",
    text: `Gives units back to ${whom} under every limit of the rule, at most as many as are used.`,
    inputs: [field("Units", units)],
    action: () => post(path, { grant: Number(units.value) }),
    told: () => `Granted ${plural(Number(units.value), "unit")}.`,
  };
}

/** The limits that apply, as they are written: those of the caller's tier, or of one, if it is not known. */
function proposedLimits(limits) {
  const tier = (limits.find((limit) => limit.current) ?? limits.find((limit) => limit.tier === null) ?? limits[0])?.tier;
  return limits.filter((limit) => limit.tier === tier).map((limit) => limit.rate ?? limit.limit);
}

function overrideQuestion(path, whom, caller) {
  const limits = el("input", { id: "override-limits", required: true, autocomplete: "off", spellcheck: "false",
    value: proposedLimits(caller?.limits ?? []).join(", ") });
  const until = el("input", { id: "override-until", type: "datetime-local" });
  return {
    title: "Set own limits?", confirm: "Set limits",
    text: `These limits replace the rule's for ${whom}. Those set here last until the server stops, or in a shared store until they are removed.`,
    inputs: [field("Limits", limits, "Separated by commas, as in a rules file: 100/minute, 1000/hour"), field("Until (optional)", until, `In your time zone, ${zone()}.`)],
    action: () => {
      const override = { limits: limits.value.split(",").map((limit) => limit.trim()).filter(Boolean) };
      if (until.value) override.until = new Date(until.value).toISOString();
      return post(path, { override });
    },
    told: (told) => `Own limits: ${told.override?.limits.join(", ")}.`,
  };
}

function removeQuestion(path, whom) {
  return {
    title: "Remove own limits?", confirm: "Remove own limits",
    text: `The rule's limits apply to ${whom} again. Limits from a file stay.`,
    action: () => post(path, { override: null }),
    told: (told) => (told.override ? "The limits from the file apply." : "The rule's limits apply."),
  };
}

function blockEverywhereQuestion(path, whom, { parts }) {
  const [part, inputs] = partInput(parts);
  const time = el("input", { id: "block-all-time", value: "15m", required: true, autocomplete: "off" });
  return {
    title: "Block in all rules?", danger: true, confirm: "Block in all rules",
    text: `All requests of ${parts.length > 1 ? "the caller" : parts[0].shown} are refused under every rule that counts by this fact alone. Rules that are added later do not have the block.`,
    inputs: [...inputs, field("For how long", time, "30s, 15m, 2h, 7d. A longer block that exists already stays.")],
    action: () => post(keyPath("*", part()), { block: time.value.trim() }),
    told: (told) => `Blocked under ${named(told.blocked)}.${leftOut(told.skipped)}`,
  };
}

function liftEverywhereQuestion(path, whom, { parts }) {
  const [part, inputs] = partInput(parts);
  return {
    title: "Lift the blocks in all rules?", confirm: "Lift blocks",
    text: `Requests of ${parts.length > 1 ? "the caller" : parts[0].shown} are decided by the limits again, under every rule that counts by this fact alone.`,
    inputs,
    action: () => post(keyPath("*", part()), { block: null }),
    told: (told) => `${told.unblocked.length > 0 ? `Not blocked any more under ${named(told.unblocked)}` : "Not blocked under any rule"}.${leftOut(told.skipped)}`,
  };
}

/** The part of the key that other rules count by, and the inputs that choose it if there are several. */
function partInput(parts) {
  if (parts.length === 1) return [() => parts[0].text, []];
  const select = el("select", { id: "part-in-all-rules" }, parts.map(({ shown, text }) => el("option", { value: text }, shown)));
  return [() => select.value, [field("Caller", select, "The key has several parts; other rules count by one of them.")]];
}

function named(rules) {
  const rest = rules.length - RULES_NAMED;
  return `${rules.slice(0, RULES_NAMED).join(", ")}${rest > 0 ? ` and ${plural(rest, "more rule")}` : ""}`;
}

function leftOut(skipped) {
  const shown = skipped.slice(0, RULES_NAMED).map(({ rule, reason }) => ` Not under ${rule}: ${reason.replace(/\.$/, "")}.`);
  const rest = skipped.length - RULES_NAMED;
  return `${shown.join("")}${rest > 0 ? ` And not under ${plural(rest, "more rule")}.` : ""}`;
}
