// Asks back before a change. The browser's modal dialog keeps the focus inside, closes with Escape and gives the focus
// back to the button that opened it.

import { el, problem, replace } from "./dom.js";

/**
 * Asks once; `action` runs when it is confirmed. While it runs the buttons wait; if it fails, the dialog says why and
 * stays open. Resolves to the result of the action, or to `null` if the question was dismissed.
 */
export function ask({ title, text, inputs = [], confirm, danger = false, action }) {
  return new Promise((resolve) => {
    let result = null;
    const answer = el("div");
    const yes = el("button", { class: danger ? "danger" : "primary" }, confirm);
    const no = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = el("form", { onsubmit: async (event) => {
      event.preventDefault();
      yes.disabled = true;
      replace(answer);
      try {
        result = await action();
        dialog.close();
      } catch (error) {
        replace(answer, problem(error));
        yes.disabled = false;
      }
    } }, el("h2", { id: "dialog-title" }, title), el("p", {}, text), inputs, answer, el("div", { class: "buttons" }, no, yes));
    const dialog = el("dialog", { "aria-labelledby": "dialog-title", onclose: () => {
      dialog.remove();
      resolve(result);
    } }, form);
    document.body.append(dialog);
    dialog.showModal();
    // An input comes first; without one the harmless button does.
    (form.querySelector("input, select, textarea") ?? no).focus();
  });
}
