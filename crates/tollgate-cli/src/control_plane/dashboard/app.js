"use strict";

async function showStatus() {
  const answer = await fetch("/api/status");
  const text = answer.ok
    ? `Tollgate ${(await answer.json()).version} answers.`
    : `The server answered ${answer.status}.`;
  document.getElementById("status").textContent = text;
}

showStatus();
