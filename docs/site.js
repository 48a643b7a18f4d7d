// A page that was opened as a file may not read others, so its search results are titles without excerpts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// What the theme leaves out for people who use a keyboard or a screen reader.
document.addEventListener("DOMContentLoaded", () => {
  for (const wide of document.querySelectorAll("pre, .table-wrapper")) wide.tabIndex = 0;
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.ariaLevel = 2;
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");
});
