// What the server has told since the page was opened, in bounded lists, and who wants to hear of it.

import { get } from "./api.js";
import { EventStream } from "./events.js";
import { rate } from "./format.js";

/** Seconds of ticks that are kept: what the shortest chart shows. */
const TICKS_MAX = 300;
/** Refusals that are kept. The server sends at most 5 a second. */
const REFUSALS_MAX = 100;
/** Age at which the last tick says nothing about now: the server ticks every second. */
const TICK_MS_MAX = 4000;

/** Seconds that "now" is the mean of. */
export const NOW_SECONDS = 5;

/** Adds an element at the end and drops the oldest beyond the bound. */
export function pushBounded(list, element, bound) {
  list.push(element);
  if (list.length > bound) list.splice(0, list.length - bound);
}

/** Age at which the last status says nothing about now: it is asked for every 5 s. */
const STATUS_MS_MAX = 12000;
/** Numbers of a second and of a rule in it. No request counts as two of the first three. */
const COUNTS = ["allowed", "refused", "unavailable", "shadow", "soft", "delayed"];

class LiveData extends EventTarget {
  /** Ticks, oldest first. */
  ticks = [];
  /** Time at which the last tick arrived, on the clock of `performance.now()`. */
  #tickedAt = -Infinity;
  /** Refusals, newest first; each id once. */
  refusals = [];
  /** Events that this page was too slow for. */
  lost = 0;
  /** The state of the stream: see EventStream. */
  state = "connecting";
  #stateAt = performance.now();

  /** The last response of /api/status. */
  status = null;
  #statusAt = -Infinity;
  /** The reason why the stream is not open, as the server or the browser gave it. */
  problem = null;

  #stream = new EventStream((name, data) => this.#take(name, data), (state, problem) => this.#setState(state, problem));
  #isWanted = false;
  #isLeft = false;

  constructor() {
    super();
    // A browser opens six connections to a server, and each stream holds one of them: a page that nobody sees has none.
    document.addEventListener("visibilitychange", () => this.#follow());
    addEventListener("pagehide", () => this.#setLeft(true));
    addEventListener("pageshow", () => this.#setLeft(false));
  }

  start() {
    this.#isWanted = true;
    this.#stream.stop();
    this.#follow();
  }

  stop() {
    this.#isWanted = false;
    this.#follow();
  }

  /** Follows the server if somebody looks. */
  #follow() {
    if (!this.#isWanted || this.#isLeft || document.hidden) this.#stream.stop();
    else if (!this.#stream.isOpen) this.#stream.start();
  }

  #setLeft(isLeft) {
    this.#isLeft = isLeft;
    this.#follow();
  }

  /** Drops everything: after a logout the page holds no data. */
  forget() {
    this.ticks = [];
    this.refusals = [];
    this.lost = 0;
    this.status = null;
    this.#tickedAt = this.#statusAt = -Infinity;
  }

  /** Calls the listener with each event of this name, until the signal ends it. */
  on(name, listener, signal) {
    this.addEventListener(name, (event) => listener(event.detail), { signal });
  }

  /** The last tick; `null` if it is too old to speak of now. */
  get tick() {
    return performance.now() - this.#tickedAt < TICK_MS_MAX ? this.ticks.at(-1) : null;
  }

  /** True if ticks should arrive and do not. A stream that has just been opened has a moment for its first one. */
  get isSilent() {
    if (this.tick || this.state === "token" || this.state === "missing") return false;
    return this.state === "reconnecting" || performance.now() - this.#stateAt > TICK_MS_MAX;
  }

  /** Time of the last tick in seconds since 1970, on the server's clock; `null` before the first. */
  get lastTickAt() {
    return this.ticks.at(-1)?.at_s ?? null;
  }

  get isStatusFresh() {
    return performance.now() - this.#statusAt < STATUS_MS_MAX;
  }

  /** Asks for the status and tells the listeners of `status`, also of a failure. */
  async loadStatus(signal) {
    try {
      this.status = await get("/api/status", { signal });
      this.#statusAt = performance.now();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#statusAt = -Infinity;
    }
    this.dispatchEvent(new CustomEvent("status"));
  }

  /** Puts older refusals behind those that arrived by the stream. */
  addRefusals(older) {
    const known = new Set(this.refusals.map((refusal) => refusal.id));
    const all = [...this.refusals, ...older.filter((refusal) => !known.has(refusal.id))];
    this.refusals = all.sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : 0)).slice(0, REFUSALS_MAX);
  }

  #take(name, data) {
    if (name === "tick") {
      pushBounded(this.ticks, data, TICKS_MAX);
      this.#tickedAt = performance.now();
    }
    else if (name === "refusal") this.addRefusals([data]);
    else if (name === "lost") this.lost += data.events;
    this.dispatchEvent(new CustomEvent(name, { detail: data }));
  }

  #setState(state, problem = null) {
    this.problem = problem;
    if (state === this.state) return;
    this.state = state;
    this.#stateAt = performance.now();
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}

export const live = new LiveData();

/** Rates of the last seconds; of one rule if a name is given. `null` if the server tells nothing now. */
export function recentRates(seconds, rule = null) {
  if (live.tick === null) return null;
  const recent = live.ticks.filter((tick) => tick.at_s > live.lastTickAt - seconds);
  const span = recent.reduce((sum, tick) => sum + tick.interval_ms, 0) / 1000;
  if (span === 0) return null;
  const each = recent.map((tick) => (rule === null ? tick : tick.rules.find((one) => one.name === rule)));
  const sum = (name) => each.reduce((all, counts) => all + (counts?.[name] ?? 0), 0);
  return Object.fromEntries(COUNTS.map((name) => [name, sum(name) / span]));
}

/** The reason why no key was refused: while the store is down, requests are answered "unavailable" and no limit refuses them. */
export function nothingRefused() {
  const unavailable = recentRates(NOW_SECONDS)?.unavailable ?? 0;
  if (unavailable === 0) return "Nothing was refused lately.";
  return `No key was refused by its limit. The store does not answer: ${rate(unavailable)} requests a second are answered "unavailable".`;
}

/** Repeats an action while the page is visible and the signal allows it; the next run begins after the last has ended. */
export function poll(action, pauseMs, signal) {
  let timer = 0;
  const run = async () => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (!document.hidden) {
      try {
        await action();
      } catch {
        // The action shows its own problems; a server that is gone shows in the header.
      }
    }
    if (!signal.aborted) timer = setTimeout(run, pauseMs);
  };
  document.addEventListener("visibilitychange", () => !document.hidden && run(), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  run();
}

/** Draws at most once per frame, and not at all while the page is hidden. */
export function drawer(draw, signal) {
  let wanted = false;
  const frame = () => {
    wanted = false;
    if (!signal.aborted && !document.hidden) draw();
  };
  const want = () => {
    if (wanted || document.hidden) return;
    wanted = true;
    requestAnimationFrame(frame);
  };
  document.addEventListener("visibilitychange", want, { signal });
  return want;
}
