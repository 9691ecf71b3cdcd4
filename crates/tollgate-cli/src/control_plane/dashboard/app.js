// The frame of the page: which view is shown, the state of the connection, and the form that asks for a token.
// A view is a function `(main, parameters, signal)` that fills `main`; the signal ends its timers and listeners.

import { get, onUnauthorized, setToken, token } from "./api.js";
import { showBanner } from "./banner.js";
import { el, field, replace, setText } from "./dom.js";
import { live } from "./live.js";
import { showOverview } from "./overview.js";
import { showKeys } from "./keys.js";
import { showRules } from "./rules.js";
import { showGateway } from "./gateway.js";
import { showReloads } from "./reloads.js";
import { showPlayground } from "./playground.js";

const VIEWS = [
  ["overview", "Overview", showOverview],
  ["keys", "Keys", showKeys],
  ["rules", "Rules", showRules],
  ["gateway", "Gateway", showGateway],
  ["reloads", "Reloads", showReloads],
  ["playground", "Playground", showPlayground],
];

const STATES = {
  connecting: "Connecting",
  live: "Live",
  reconnecting: "Reconnecting",
  token: "Token needed",
  missing: "No live data",
};

const main = document.getElementById("main");
/** Ends the view that is shown. */
let current = new AbortController();
/** Ends what stands above every view. */
let frame = new AbortController();

/** `#/keys?rule=api&key=user=42` → `["keys", URLSearchParams]`. */
function route() {
  const [name, parameters] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return [VIEWS.some(([view]) => view === name) ? name : "overview", new URLSearchParams(parameters ?? "")];
}

function showView({ focus = true } = {}) {
  current.abort();
  current = new AbortController();
  const [name, parameters] = route();
  const [, title, show] = VIEWS.find(([view]) => view === name);
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} · Tollgate`;
  replace(main);
  main.dataset.view = name;
  // Begins with an empty `main` each time: views never share elements.
  show(main, parameters, current.signal);
  if (focus) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

/** Asks for a token instead of showing a view. */
function showTokenForm() {
  if (main.dataset.view === "token") return;
  current.abort();
  current = new AbortController();
  frame.abort();
  live.stop();
  main.dataset.view = "token";
  showState("token");
  const input = el("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const answer = el("p", { class: "form-answer", role: "alert" },
    token() ? "The server does not accept this token." : "");
  const form = el("form", { class: "card narrow", onsubmit: async (event) => {
    event.preventDefault();
    setToken(input.value.trim());
    try {
      await get("/api/status");
    } catch (error) {
      if (error.status === 401) setToken(null);
      setText(answer, error.status === 401 ? "The server does not accept this token." : error.message);
      input.select();
      return;
    }
    begin();
  } },
  el("h1", {}, "Token needed"),
  el("p", {}, "This server was started with an admin token file. Enter one of its tokens. It is kept until this tab is closed."),
  field("Token", input), answer, el("button", { class: "primary" }, "Open the dashboard"));
  replace(main, form);
  input.focus();
}

function showState(state) {
  const place = document.getElementById("connection");
  place.dataset.state = state;
  setText(place, STATES[state]);
  document.getElementById("log-out").hidden = token() === null || state === "token";
}

function begin() {
  main.dataset.view = "";
  showState(live.state === "token" ? "connecting" : live.state);
  live.start();
  frame.abort();
  frame = new AbortController();
  showBanner(document.getElementById("banner"), frame.signal);
  showView({ focus: false });
}

function logOut() {
  setToken(null);
  live.forget();
  live.stop();
  showTokenForm();
}

function start() {
  replace(document.getElementById("views"), VIEWS.map(([name, title]) =>
    el("li", {}, el("a", { href: `#/${name}`, "data-view": name }, title))));
  document.getElementById("log-out").addEventListener("click", logOut);
  // The skip link is not a view.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  onUnauthorized(showTokenForm);
  live.on("state", showState);
  addEventListener("hashchange", () => main.dataset.view !== "token" && showView());
  begin();
}

start();
