// Requests to the admin API: the token, the header of a write, and errors with what the server says about them.

const TOKEN = "tollgate-token";
export const NO_ANSWER = "The server does not answer. The page tries again.";
/** The token of this tab, if storage is forbidden. */
let remembered = null;

export class ApiError extends Error {
  constructor(status, message, diagnostics) {
    super(message);
    this.status = status;
    this.diagnostics = diagnostics || null;
  }
}

export function token() {
  try {
    return sessionStorage.getItem(TOKEN) ?? remembered;
  } catch {
    return remembered;
  }
}

/** Keeps the token until the tab is closed; `null` forgets it. */
export function setToken(value) {
  remembered = value;
  try {
    if (value === null) sessionStorage.removeItem(TOKEN);
    else sessionStorage.setItem(TOKEN, value);
  } catch {
    // `remembered` is all there is.
  }
}

/** Called when the server wants a token, or another one. app.js shows the form. */
let whenUnauthorized = () => {};

export function onUnauthorized(listener) {
  whenUnauthorized = listener;
}

/** Sends a request and returns the response, or throws an `ApiError`. */
export async function send(path, { method = "GET", body, signal, headers = {} } = {}) {
  const held = token();
  if (held) headers.Authorization = `Bearer ${held}`;
  if (method !== "GET") headers["X-Tollgate-Admin"] = "1";
  let response;
  try {
    response = await fetch(path, { method, body, signal, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, NO_ANSWER);
  }
  if (response.ok) return response;
  const text = await response.text();
  let told = {};
  try {
    told = JSON.parse(text);
  } catch {
    told = { message: text };
  }
  if (response.status === 401) whenUnauthorized();
  throw new ApiError(response.status, messageOf(response.status, told.message, path), told.diagnostics);
}

function messageOf(status, message, path) {
  // The page stays open while the server is replaced, also by an older one.
  if (status === 404 && message?.startsWith("There is no such path")) {
    return `This server does not offer ${path.split("?")[0]}: it is older than this page. Everything else works.`;
  }
  return message || `The server answered ${status}.`;
}

export async function get(path, options) {
  return (await send(path, options)).json();
}

export async function post(path, body, options) {
  const text = typeof body === "string" ? body : JSON.stringify(body ?? {});
  return (await send(path, { method: "POST", body: text, ...options })).json();
}

export async function remove(path) {
  return (await send(path, { method: "DELETE" })).json();
}

/** The path of one caller. */
export function keyPath(rule, key) {
  return `/api/keys/${encodeURIComponent(rule)}/${encodeURIComponent(key)}`;
}

/** A query string; empty values are left out. */
export function query(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(kept).toString();
  return text ? `?${text}` : "";
}
