// Gateway: upstreams and their servers, queues, tunnels, and adaptive concurrency.

import { get } from "./api.js";
import { badge, el, missing, replace, table } from "./dom.js";
import { clock, count, micros, plural, share, words } from "./format.js";
import { live, poll } from "./live.js";

/** Looks of the states of a server. One that fails still gets requests. */
const STATES = { available: ["good", "up"], failing: ["warn", "failing"], ejected: ["bad", "ejected"], down: ["bad", "down"] };
/** Rows of each table: a rules file may have more. */
const ROWS_MAX = 100;

export function showGateway(main, parameters, signal) {
  const place = el("div", { class: "parts" });
  const told = el("p", {});
  replace(main, el("div", { class: "head" }, el("h1", {}, "Gateway"), told), place);
  poll(async () => {
    try {
      const state = await get("/api/upstreams", { signal });
      replace(told, state.gateway ? `${count(live.tick?.waiting ?? 0)} waiting, ${count(state.tunnels?.open ?? 0)} tunnels open` : "");
      replace(place, sections(state));
    } catch (error) {
      if (error.name !== "AbortError") replace(place, el("div", { class: "card" }, missing(error)));
    }
  }, 2000, signal);
}

function sections({ gateway, upstreams = [], queues = [], adaptive = [] }) {
  const none = !gateway && el("p", { class: "card" }, "This server runs no gateway. Start it with ", el("code", {}, "--gateway ADDRESS"),
    " and upstreams in the rules file. Rules that let requests wait and adaptive concurrency are shown here as well.");
  const parts = [none, ...upstreams.slice(0, ROWS_MAX).map(upstreamOf)];
  if (gateway || queues.length) parts.push(card(queueTable(queues)));
  if (gateway || adaptive.length) parts.push(card(adaptiveTable(adaptive)));
  return parts;
}

/** A mean, with a digit behind the point where that says something. */
function milliseconds(ms) {
  return micros(ms === null ? null : ms * 1000);
}

function card(...content) {
  return el("section", { class: "card" }, content);
}

function upstreamOf({ name, servers }) {
  const requests = servers.reduce((sum, server) => sum + server.requests, 0);
  const rows = servers.slice(0, ROWS_MAX).map((server) => [
    [el("span", { class: "mono" }, server.url), whyNotUp(server)], stateOf(server), count(server.in_flight),
    count(server.requests), share(server.requests, requests), failuresOf(server), milliseconds(server.mean_ms),
  ]);
  return card(table(`Upstream ${name}`, [["Server", "long"], ["State", ""], ["In flight", "number spacious"], ["Requests", "number"],
    ["Share", "number spacious"], ["Failures", "number"], ["Mean time", "number"]], rows, "No servers."));
}

function stateOf({ up, state = up ? "available" : "down" }) {
  return badge(...(STATES[state] ?? ["warn", state]));
}

/** The reason why a server is not simply up, and since when. */
function whyNotUp({ state, reason, since_ms: since }) {
  if (!state || state === "available" || (!reason && !since)) return null;
  return el("div", { class: "hint" }, [reason && words(reason), since && `since ${clock(new Date(since))}`].filter(Boolean).join(", "));
}

/** Failures, with the part of them that are health checks and no requests. */
function failuresOf({ failures, failed_checks: checks }) {
  return checks ? `${count(failures)} (${plural(checks, "check")})` : count(failures);
}

function queueTable(queues) {
  const rows = queues.slice(0, ROWS_MAX).map((queue) =>
    [queue.rule, count(queue.waiting), count(queue.admitted), count(queue.expired), milliseconds(queue.mean_ms)]);
  return table("Queues", [["Rule", "long"], ["Waiting", "number"], ["Admitted", "number"], ["Expired", "number"], ["Mean wait", "number"]],
    rows, "No rule lets requests wait (queue or fair).");
}

function adaptiveTable(adaptive) {
  const rows = adaptive.slice(0, ROWS_MAX).map((one) =>
    [one.rule, count(one.keys), count(one.limit), count(one.in_flight), milliseconds(one.base_latency_ms), milliseconds(one.latency_ms)]);
  return table("Adaptive concurrency", [["Rule", "long"], ["Keys", "number"], ["Limit", "number"], ["In flight", "number"],
    ["Latency without queue", "number"], ["Latency now", "number"]], rows, "No rule has concurrency: adaptive in use.");
}
