// Playground: describe a request and see how it would be decided, or try other rules on traffic that was recorded.

import { get, post, query } from "./api.js";
import { candidatePart } from "./candidate.js";
import { el, field, problem, replace } from "./dom.js";
import { explanationOf } from "./explanation.js";

const METHODS = ["", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
/** What was typed last, so that it is there when the view is shown again. */
let remembered = { method: "GET", path: "/api/search", ip: "192.0.2.1" };

export function showPlayground(main, parameters, signal) {
  const answer = el("section", { class: "card", "aria-label": "Explanation", "aria-live": "polite" });
  const form = requestForm(async (body) => {
    remembered = body;
    await show(answer, () => post("/api/explain", body, { signal }));
  });
  replace(main,
    el("div", { class: "head" }, el("h1", {}, "Playground"), el("p", {}, "Nothing here is charged, and nothing is changed.")),
    el("div", { class: "columns request-and-story" }, form, answer),
    candidatePart(signal));
  const refusal = parameters.get("refusal");
  if (refusal) show(answer, () => get(`/api/explain${query({ refusal })}`, { signal }), true);
  else replace(answer, el("p", { class: "muted" }, "Describe a request and choose Explain, or choose a refusal of the overview: which rules apply and why, ",
    "what is left in each limit, and when the same request would pass."));
}

async function show(place, load, isRefusal = false) {
  try {
    replace(place, explanationOf(await load()));
  } catch (error) {
    if (error.name === "AbortError") return;
    const forgotten = isRefusal && error.status === 404;
    replace(place, problem(forgotten ? Object.assign(error, { message: "This refusal has been forgotten: only recent ones are kept." }) : error));
  }
}

/** The form of a request: the fields of the body of /v1/check. Empty fields are left out. */
function requestForm(submit) {
  const text = (id, placeholder = "") => el("input", { id: `fact-${id}`, value: remembered[id] ?? "", placeholder, autocomplete: "off", spellcheck: "false" });
  const method = el("select", { id: "fact-method" }, METHODS.map((name) =>
    el("option", { value: name, selected: name === (remembered.method ?? "") }, name || "(none)")));
  const inputs = { path: text("path", "/api/search?q=a"), ip: text("ip", "192.0.2.1"), user: text("user"), tier: text("tier"), api_key: text("api_key") };
  const cost = el("input", { id: "fact-cost", type: "number", min: "0", step: "1", value: remembered.cost ?? "", placeholder: "as the rules say" });
  const headers = el("textarea", { id: "fact-headers", rows: "3", class: "headers", spellcheck: "false", placeholder: "X-Tenant: acme" },
    Object.entries(remembered.headers ?? {}).map(([name, value]) => `${name}: ${value}\n`).join(""));
  const wrong = el("p", { class: "form-answer", role: "alert" });
  return el("form", { class: "card", "aria-label": "Request", onsubmit: (event) => {
    event.preventDefault();
    const body = {};
    if (method.value) body.method = method.value;
    for (const [name, input] of Object.entries(inputs)) if (input.value) body[name] = input.value;
    if (cost.value) body.cost = Number(cost.value);
    const lines = headers.value.split("\n").filter((line) => line.trim());
    const bad = lines.find((line) => !line.includes(":"));
    replace(wrong, bad ? `Write header fields as NAME: VALUE, not "${bad}".` : "");
    if (bad) return;
    if (lines.length) body.headers = Object.fromEntries(lines.map((line) => line.split(/:(.*)/s).slice(0, 2).map((part) => part.trim())));
    submit(body);
  } },
  el("h2", {}, "Request"),
  el("div", { class: "fields" }, field("Method", method), field("Path", inputs.path), field("Client address", inputs.ip), field("User", inputs.user),
    field("Tier", inputs.tier), field("API key", inputs.api_key), field("Cost", cost)),
  field("Header fields", headers, "One a line. Facts left out above are derived from them, as the rules say."),
  wrong, el("div", { class: "buttons" }, el("button", { class: "primary" }, "Explain")));
}
