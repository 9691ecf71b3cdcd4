// The event stream. Read with fetch, because EventSource cannot send a token. When it ends, it is opened again after a
// pause that doubles up to 10 s, and continues after the last event that arrived.

import { ApiError, NO_ANSWER, send } from "./api.js";

const PAUSE_MS = [500, 1000, 2000, 4000, 8000, 10000];
/** Longest event that is kept while it arrives: a broken server must not fill the memory. */
const EVENT_CHARACTERS_MAX = 1 << 20;
/** A server that is silent for so long is gone: it ticks every second. */
const SILENCE_MS = 10000;

/**
 * `listener(name, data)` gets every event, `onState(state, problem)` one of `connecting`, `live`, `reconnecting` (with the
 * problem), `token` (the server wants one), `missing` (it has no events).
 */
export class EventStream {
  constructor(listener, onState) {
    this.listener = listener;
    this.onState = onState;
    this.lastId = null;
    this.failures = 0;
    this.control = null;
    this.timer = null;
  }

  /** True while the stream is open, is being opened, or waits for the next attempt. */
  get isOpen() {
    return this.control !== null || this.timer !== null;
  }

  /** Opens the stream, or opens it again at once. */
  start() {
    this.stop();
    if (this.failures === 0) this.onState("connecting");
    const control = new AbortController();
    this.control = control;
    this.read(control).catch((error) => {
      if (this.control !== control) return;
      if (error instanceof ApiError && error.status === 401) return this.onState("token");
      if (error instanceof ApiError && error.status === 404) return this.onState("missing");
      this.retry(error);
    });
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
    this.control?.abort();
    this.control = null;
  }

  retry(error) {
    this.control?.abort();
    this.control = null;
    const pause = PAUSE_MS[Math.min(this.failures, PAUSE_MS.length - 1)];
    this.failures += 1;
    // The browser's own words about a broken connection say nothing to a reader.
    this.onState("reconnecting", error instanceof ApiError ? error.message : NO_ANSWER);
    this.timer = setTimeout(() => this.start(), pause);
  }

  async read(control) {
    const headers = { Accept: "text/event-stream" };
    if (this.lastId !== null) headers["Last-Event-ID"] = this.lastId;
    const response = await send("/api/events", { headers, signal: control.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    let watch = 0;
    try {
      for (;;) {
        clearTimeout(watch);
        watch = setTimeout(() => control.abort(), SILENCE_MS);
        const { done, value } = await reader.read();
        if (done) break;
        this.failures = 0;
        this.onState("live");
        text = this.takeEvents(text + value);
        if (text.length > EVENT_CHARACTERS_MAX) break;
      }
    } finally {
      clearTimeout(watch);
    }
    throw new ApiError(0, NO_ANSWER);
  }

  /** Handles all complete events and returns the rest. */
  takeEvents(text) {
    for (;;) {
      const end = text.indexOf("\n\n");
      if (end < 0) return text;
      this.takeEvent(text.slice(0, end));
      text = text.slice(end + 2);
    }
  }

  takeEvent(block) {
    let name = "message";
    let data = "";
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      const value = line.slice(colon + 1).replace(/^ /, "");
      const what = colon < 0 ? line : line.slice(0, colon);
      if (what === "id") this.lastId = value;
      else if (what === "event") name = value;
      else if (what === "data") data += value;
    }
    if (data) this.listener(name, JSON.parse(data));
  }
}
