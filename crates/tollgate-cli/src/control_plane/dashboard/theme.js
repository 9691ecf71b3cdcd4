// Sets the theme before anything is drawn, so that the page does not flash. Not a module: modules run later.
// The button in the header cycles through `auto` (what the system says), `light` and `dark`.
"use strict";

const THEMES = ["auto", "light", "dark"];

function savedTheme() {
  try {
    const saved = localStorage.getItem("tollgate-theme");
    return THEMES.includes(saved) ? saved : "auto";
  } catch {
    return "auto"; // storage is forbidden
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("tollgate-theme", theme);
  } catch {
    // The choice lasts as long as the page.
  }
}

setTheme(savedTheme());

document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const show = () => {
    button.textContent = `Theme: ${document.documentElement.dataset.theme}`;
  };
  button.addEventListener("click", () => {
    const now = THEMES.indexOf(document.documentElement.dataset.theme);
    setTheme(THEMES[(now + 1) % THEMES.length]);
    show();
  });
  show();
});
