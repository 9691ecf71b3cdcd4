// Numbers, durations and times as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
export const DASH = "–";

/** Stands for a value that the server does not show. */
const HIDDEN = "(not shown)";

/** Returns true if a key has a value that is not shown, so that it names no caller. */
export function isHidden(key) {
  return String(key).includes(HIDDEN);
}

/** A whole number with separators: 12,345. */
export function count(number) {
  return isNumber(number) ? WHOLE.format(number) : DASH;
}

/** A number in at most three digits: 12.3K. */
export function short(number) {
  if (!isNumber(number)) return DASH;
  return number < 1000 ? count(number) : SHORT.format(number);
}

/** Requests a second: 0, 0.4, 12, 1.2K. */
export function rate(number) {
  if (!isNumber(number)) return DASH;
  return number > 0 && number < 9.95 ? String(Math.round(number * 10) / 10) : short(number);
}

/** A part of a whole: 12.3 %. */
export function share(part, whole) {
  if (!isNumber(part) || !whole) return DASH;
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.05) return "< 0.1 %";
  return `${percent < 9.95 ? Math.round(percent * 10) / 10 : Math.round(percent)} %`;
}

/** Microseconds: 850 ns, 12 µs, 3.4 ms, 1.2 s. */
export function micros(us) {
  if (!isNumber(us)) return DASH;
  if (us > 0 && us < 1) return `${Math.round(us * 1000)} ns`;
  if (us < 1000) return `${digits(us)} µs`;
  return us < 1e6 ? `${digits(us / 1000)} ms` : millis(us / 1000);
}

/** Milliseconds: 160 ms, 4.2 s, 3 min 20 s, 5 h 12 min, 3 d 4 h. */
export function millis(ms) {
  if (!isNumber(ms)) return DASH;
  if (ms < 1000) return `${Math.ceil(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const two = (large, small, unit, part) => {
    const rest = Math.floor((whole % large) / small);
    return `${Math.floor(whole / large)} ${unit}${rest ? ` ${rest} ${part}` : ""}`;
  };
  if (whole < 3600) return two(60, 1, "min", "s");
  return whole < 86400 ? two(3600, 60, "h", "min") : two(86400, 3600, "d", "h");
}

/** The time of day: 14:03:27, in the reader's zone. Other days get their date. */
export function clock(at, withSeconds = true) {
  const date = at instanceof Date ? at : new Date(typeof at === "number" ? at * 1000 : at);
  if (Number.isNaN(date.getTime())) return DASH;
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}${withSeconds ? `:${two(date.getSeconds())}` : ""}`;
  return time;
}

/** Date and time of day, with the reader's zone: texts of the server have times in UTC. */
export function moment(at) {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return DASH;
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(date)} ${zone(date)}`;
}

/** The reader's zone at a time: UTC, UTC+1, UTC-3:30. */
export function zone(at = new Date()) {
  const minutes = -at.getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? "-" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

/** Bytes: 512 KiB. */
export function bytes(number) {
  if (!isNumber(number)) return DASH;
  if (number < 1024) return `${number} B`;
  return number < 1 << 20 ? `${digits(number / 1024)} KiB` : `${digits(number / (1 << 20))} MiB`;
}

/** `1 request`, `2 requests`. */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** A word of the API as people write it: `store_unavailable` → `store unavailable`. */
export function words(text) {
  return String(text ?? DASH).replaceAll("_", " ");
}

function digits(number) {
  return number < 9.95 ? String(Math.round(number * 10) / 10) : String(Math.round(number));
}

function isNumber(number) {
  return typeof number === "number" && Number.isFinite(number);
}
