// Copy buttons: each copies the text of the element that its data-copy names.
"use strict";

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  const text = source.textContent.trim();
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No permission, or no secure context: select the text, so that one key copies it.
    getSelection().selectAllChildren(source);
    return announce(button, "Selected");
  }
  announce(button, "Copied");
}

function announce(button, said) {
  const label = button.dataset.label ?? (button.dataset.label = button.textContent);
  button.textContent = said;
  clearTimeout(Number(button.dataset.timer));
  button.dataset.timer = setTimeout(() => { button.textContent = label; }, 1600);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copy(button);
});
// They do nothing without this script, so the templates hide them.
for (const button of document.querySelectorAll("button[data-copy][hidden]")) button.hidden = false;
