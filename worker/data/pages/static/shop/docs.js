// Shows the OpenAPI description in the vendored viewer; without it the page's table of routes remains.
"use strict";

const place = document.getElementById("viewer");

function giveUpMain() {
  // The viewer brings the page's main part; there may be only one.
  const main = document.querySelector("main");
  const part = document.createElement("div");
  part.id = main.id;
  part.className = main.className;
  part.tabIndex = -1;
  part.append(...main.childNodes);
  main.replaceWith(part);
}

const script = document.createElement("script");
script.src = place.dataset.script;
script.addEventListener("load", () => {
  document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);
  SwaggerUIBundle({
    url: place.dataset.spec,
    domNode: place,
    presets: [SwaggerUIBundle.presets.apis],
    defaultModelsExpandDepth: -1,
    docExpansion: "list",
    // Requests are paid for; the pages of capabilities let visitors try.
    supportedSubmitMethods: [],
    // It would ask a validator elsewhere.
    validatorUrl: null,
    onComplete: () => {
      document.getElementById("plain-routes").open = false;
      giveUpMain();
    },
  });
});
document.head.append(script);
