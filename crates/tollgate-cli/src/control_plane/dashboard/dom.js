// Builds elements. Text from the server goes into text nodes and attributes only, never through a parser, so that a
// key or rule name cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an HTML element: `el("p", { class: "note" }, "text", child)`. Functions named `on…` are listeners. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces all children. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Sets the text if it has changed: an unchanged node costs no layout, and screen readers hear no repetition. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table: `columns` are `[heading, class]`, rows are lists of cells. The first cell of a row is its heading. */
export function table(caption, columns, rows, empty = "Nothing yet.") {
  const head = el("tr", {}, columns.map(([name, kind]) => el("th", { scope: "col", class: kind }, name)));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell, at) => {
    const attributes = { class: columns[at][1] };
    return at === 0 ? el("th", { scope: "row", ...attributes }, cell) : el("td", attributes, cell);
  })));
  if (rows.length === 0) body.push(el("tr", {}, el("td", { class: "empty", colspan: columns.length }, empty)));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body)));
}

/** Name and value pairs; `kind` is `wide` where names and values would stand far apart. */
export function pairs(entries, kind = "") {
  const rows = entries.filter(([, value]) => value !== null && value !== undefined);
  return el("dl", { class: `pairs ${kind}` }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** A labelled form field. */
export function field(label, input, hint) {
  if (hint) {
    const id = `hint-${input.id}`;
    input.setAttribute("aria-describedby", id);
    hint = el("span", { class: "hint", id }, hint);
  }
  return el("div", { class: "field" }, el("label", { for: input.id }, label), input, hint);
}

/** A word with a mark in front, so that colour is never the only sign. */
export function badge(kind, text) {
  return el("span", { class: `badge ${kind}` }, text);
}

/** Says why a part of a view is empty: a server that does not offer it is no failure. */
export function missing(error) {
  return error.status === 404 ? el("p", { class: "muted" }, error.message) : problem(error);
}

/** A message about something that went wrong, with the server's diagnostics. */
export function problem(error) {
  return el("div", { class: "problem", role: "alert" }, el("p", {}, error.message),
    error.diagnostics ? el("pre", { tabindex: "0" }, error.diagnostics) : null);
}
