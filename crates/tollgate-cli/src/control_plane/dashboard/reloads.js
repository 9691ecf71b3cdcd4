// Reloads: what has changed the rules, with the difference, what failed and why, and a button to read the files again.

import { get, post } from "./api.js";
import { badge, el, missing, problem, replace } from "./dom.js";
import { ask } from "./dialog.js";
import { count, moment, plural } from "./format.js";
import { live, poll } from "./live.js";

/** Lines of a difference that are shown; the server bounds its length as well. */
const DIFF_LINES_MAX = 1000;
const CAUSES = { files: "the files changed", keys: "tokens or certificate changed", "POST /api/reload": "asked for by POST /api/reload",
  "PUT /api/rules": "sent by PUT /api/rules", SIGHUP: "asked for by SIGHUP" };
const RESULTS = { loaded: "good", unchanged: "idle", refused: "bad" };

export function showReloads(main, parameters, signal) {
  const list = el("ul", { class: "rows" });
  const answer = el("div", { role: "status" });
  const problems = el("div");
  const button = el("button", { type: "button", class: "primary", onclick: async () => {
    const told = await ask({
      title: "Read the files again?", confirm: "Reload",
      text: "Reads the rules, tokens and certificate again. Rules set through the API end. If the files have a mistake, the rules in force stay.",
      action: () => post("/api/reload"),
    }).catch((error) => replace(answer, problem(error)));
    if (told) replace(answer, el("p", { class: "done" }, told.result === "unchanged" ? "Nothing has changed." : `Version ${told.version} is in force.`));
    load();
  } }, "Reload…");
  replace(main,
    el("div", { class: "head" }, el("h1", {}, "Reloads"), button),
    answer, el("section", { class: "card", "aria-label": "Changes of the rules, newest first" }, problems, list));
  let shown = "";
  const load = async () => {
    try {
      const { reloads } = await get("/api/reloads", { signal });
      replace(problems);
      // Redrawn only if there is something new: an open difference stays where it is.
      const newest = `${reloads.length} ${reloads[0]?.at}`;
      if (newest === shown) return;
      shown = newest;
      replace(list, reloads.length ? reloads.map(rowOf) : el("li", { class: "empty" }, "The rules have not been read again since the start."));
    } catch (error) {
      if (error.name !== "AbortError") replace(problems, missing(error));
    }
  };
  live.on("reload", load, signal);
  poll(load, 15000, signal);
}

function rowOf(reload, at) {
  const [diff, diagnostics] = [reload.diff, reload.diagnostics];
  const details = (name, open, content) => el("details", { class: "more", open }, el("summary", {}, name), content);
  return el("li", {},
    el("div", { class: "reload-line" }, badge(RESULTS[reload.result] ?? "idle", reload.result), el("span", { class: "number" }, moment(reload.at)),
      el("span", {}, reload.version ? `version ${reload.version}` : ""),
      el("span", {}, reload.result === "refused" ? plural(reload.errors ?? 1, "error") : changesText(reload.changes)),
      el("span", { class: "muted" }, CAUSES[reload.cause] ?? reload.cause)),
    diagnostics ? details("What is wrong", at === 0, el("pre", { tabindex: "0" }, diagnostics)) : null,
    diff ? details("Difference", at === 0, diffOf(diff)) : null);
}

function changesText(changes) {
  if (!changes) return "";
  const named = ["added", "removed", "changed"].filter((what) => changes[what]?.length);
  const parts = named.map((what) => `${what}: ${namesText(changes[what])}`);
  if (changes.settings) parts.push("settings");
  if (changes.overrides) parts.push("overrides");
  return parts.join("; ");
}

/** A few names; a change may concern thousands. */
function namesText(names) {
  const shown = names.slice(0, 5).join(", ");
  return names.length > 5 ? `${shown} and ${count(names.length - 5)} more` : shown;
}

/** A unified diff; the signs at the beginning of lines stay, so that colour is not the only sign. */
export function diffOf(diff) {
  const lines = diff.trimEnd().split("\n");
  const kind = (line) => (/^(---|\+\+\+|@@) /.test(line) ? "place" : { "+": "added", "-": "removed" }[line[0]]);
  const more = lines.length > DIFF_LINES_MAX ? el("span", { class: "place" }, `… ${plural(lines.length - DIFF_LINES_MAX, "more line")}`) : null;
  return el("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": "Difference" },
    lines.slice(0, DIFF_LINES_MAX).map((line) => el("span", { class: kind(line) }, line)), more);
}
