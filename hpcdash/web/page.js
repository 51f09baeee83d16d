"use strict";
// textual.js starts the terminal once the page is loaded; here is what it leaves to its page.
const terminal = document.getElementById("terminal");
terminal.dataset.sessionWebsocketUrl = new URL("socket", location.href).href.replace(/^http/, "ws");
document.querySelector("#ended button").addEventListener("click", () => location.reload());
// A font that comes later would leave the cells as wide as those of another one.
for (const style of ["normal", "italic"])
  for (const weight of ["normal", "bold"]) document.fonts.load(`${style} ${weight} 16px "Roboto Mono"`);
// The app begins without focus, so it is given to one that has begun.
new MutationObserver((_, observer) => {
  if (document.body.classList.contains("-first-byte")) {
    observer.disconnect();
    document.querySelector(".xterm-helper-textarea").focus();
  }
}).observe(document.body, { attributes: true, attributeFilter: ["class"] });
