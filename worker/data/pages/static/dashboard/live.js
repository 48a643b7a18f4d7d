// Keeps a page of the dashboard up to date: when the stream says that something has changed, the page is
// fetched again and its contents replaced, except where somebody is just typing or reading.
"use strict";

const region = document.getElementById("live");
const pulse = document.getElementById("pulse");
let wanted = false;
let fetching = false;
let pressed = false;

// A form that is filled in, a text that is marked and a button that is pressed must not be taken away.
function inUse() {
  if (pressed) return true;
  const at = document.activeElement;
  if (at && region.contains(at) && at.matches("input, textarea, select")) return true;
  const changed = (field) => field.type !== "hidden" && field.value !== field.defaultValue;
  if ([...region.querySelectorAll("input, textarea")].some(changed)) return true;
  return !getSelection().isCollapsed;
}

// What the visitor opened, scrolled or focused, found again by its place in the page.
function kept() {
  const details = [...region.querySelectorAll("details")].map((each) => each.open);
  const scrolled = [...region.querySelectorAll(".scroll, pre")].map((each) => [each.scrollLeft, each.scrollTop]);
  const stops = [...region.querySelectorAll("a, button, summary, [tabindex]")];
  return { details, scrolled, focus: stops.indexOf(document.activeElement) };
}

function restore({ details, scrolled, focus }) {
  region.querySelectorAll("details").forEach((each, at) => { if (at in details) each.open = details[at]; });
  region.querySelectorAll(".scroll, pre").forEach((each, at) => {
    if (at in scrolled) [each.scrollLeft, each.scrollTop] = scrolled[at];
  });
  if (focus >= 0) region.querySelectorAll("a, button, summary, [tabindex]")[focus]?.focus({ preventScroll: true });
}

async function refresh() {
  if (fetching) return;
  fetching = true;
  try {
    while (wanted && !inUse()) {
      wanted = false;
      const answer = await fetch(location.href.split("#")[0], { headers: { Accept: "text/html" } });
      if (answer.redirected || !answer.ok) return location.reload();
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      // Somebody may have begun to type while the page was on its way.
      if (inUse()) {
        wanted = true;
        return;
      }
      const before = kept();
      region.replaceChildren(...next.getElementById("live").childNodes);
      restore(before);
      document.title = next.title;
      say("Live");
    }
  } catch {
    say("Not reached; trying again");
  } finally {
    fetching = false;
  }
}

function say(text) {
  if (pulse) pulse.textContent = text;
}

const stream = new EventSource(region.dataset.live);
stream.addEventListener("open", () => say("Live"));
stream.addEventListener("error", () => say("Not reached; trying again"));
stream.addEventListener("change", () => { wanted = true; refresh(); });
addEventListener("pointerdown", () => { pressed = true; });
addEventListener("pointerup", () => setTimeout(() => { pressed = false; refresh(); }, 300));
document.addEventListener("focusout", () => setTimeout(refresh, 200));
document.addEventListener("visibilitychange", refresh);
addEventListener("pagehide", () => stream.close());
