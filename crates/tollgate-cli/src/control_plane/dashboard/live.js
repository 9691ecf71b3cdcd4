// What the server has told since the page was opened, in bounded lists, and who wants to hear of it.

import { EventStream } from "./events.js";

/** Seconds of ticks that are kept: what the shortest chart shows. */
const TICKS_MAX = 300;
/** Refusals that are kept. The server sends at most 5 a second. */
const REFUSALS_MAX = 100;

/** Adds an element at the end and drops the oldest beyond the bound. */
export function pushBounded(list, element, bound) {
  list.push(element);
  if (list.length > bound) list.splice(0, list.length - bound);
}

class LiveData extends EventTarget {
  /** Ticks, oldest first. */
  ticks = [];
  /** Refusals, newest first; each id once. */
  refusals = [];
  /** Events that this page was too slow for. */
  lost = 0;
  /** The state of the stream: see EventStream. */
  state = "connecting";

  #stream = new EventStream((name, data) => this.#take(name, data), (state) => this.#setState(state));

  start() {
    this.#stream.start();
  }

  stop() {
    this.#stream.stop();
  }

  /** Drops everything: after a logout the page holds no data. */
  forget() {
    this.ticks = [];
    this.refusals = [];
    this.lost = 0;
  }

  /** Calls the listener with each event of this name, until the signal ends it. */
  on(name, listener, signal) {
    this.addEventListener(name, (event) => listener(event.detail), { signal });
  }

  get tick() {
    return this.ticks.at(-1) ?? null;
  }

  /** Puts older refusals behind those that arrived by the stream. */
  addRefusals(older) {
    const known = new Set(this.refusals.map((refusal) => refusal.id));
    const all = [...this.refusals, ...older.filter((refusal) => !known.has(refusal.id))];
    this.refusals = all.sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : 0)).slice(0, REFUSALS_MAX);
  }

  #take(name, data) {
    if (name === "tick") pushBounded(this.ticks, data, TICKS_MAX);
    else if (name === "refusal") this.addRefusals([data]);
    else if (name === "lost") this.lost += data.events;
    this.dispatchEvent(new CustomEvent(name, { detail: data }));
  }

  #setState(state) {
    if (state === this.state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}

export const live = new LiveData();

/** Sums of all ticks of the last seconds, as rates; per rule if a name is given. */
export function recentRates(seconds, rule = null) {
  const recent = live.ticks.slice(-seconds);
  const span = recent.reduce((sum, tick) => sum + tick.interval_ms, 0) / 1000;
  if (span === 0) return null;
  const total = { allowed: 0, refused: 0, shadow: 0, soft: 0, delayed: 0, unavailable: 0 };
  for (const tick of recent) {
    const from = rule === null ? tick : tick.rules.find((one) => one.name === rule);
    for (const name of Object.keys(total)) total[name] += from?.[name] ?? 0;
  }
  for (const name of Object.keys(total)) total[name] /= span;
  return total;
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
