// Follows a task live: each event of its stream renews the page's content. Opens a task by the token in a link.
"use strict";

const PAUSE_MS = 150;
let source = null;
let timer = 0;

async function renew() {
  timer = 0;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("task");
  const shown = document.getElementById("task");
  if (!fresh || !shown) return;
  for (const button of fresh.querySelectorAll("button[data-copy]")) button.hidden = false;
  shown.replaceWith(fresh);
  document.title = page.title;
  if (!fresh.dataset.stream && source) source.close();
}

function renewSoon() {
  // Several events at once are one change.
  if (!timer) timer = setTimeout(renew, PAUSE_MS);
}

function follow(task) {
  source = new EventSource(task.dataset.stream);
  for (const kind of task.dataset.events.split(" ")) source.addEventListener(kind, renewSoon);
  // The server ends the stream with the task; a broken connection is opened again by the browser.
  source.addEventListener("error", renewSoon);
}

async function openByContract(event) {
  const id = event.target.elements.token.value.trim();
  if (!id.startsWith("ctr_")) return;
  event.preventDefault();
  // A contract's id travels in its header only.
  const answer = await fetch(location.pathname, { method: "POST", headers: { "X-Contract-ID": id } });
  if (answer.ok) location.reload();
  else event.target.querySelector("[role=alert]").textContent = "There is no such task of this contract.";
}

function openByLink(form) {
  const token = location.hash.slice(1);
  if (!/^tok_[0-9a-f]{40}$/.test(token)) return;
  // The token leaves the address bar and the history.
  history.replaceState(null, "", location.pathname);
  form.elements.token.value = token;
  form.submit();
}

const task = document.getElementById("task");
if (task?.dataset.stream) follow(task);
const form = document.querySelector("form[data-opens]");
if (form) {
  form.addEventListener("submit", openByContract);
  openByLink(form);
}
