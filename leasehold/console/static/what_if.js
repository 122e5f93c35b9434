"use strict";
// The page What if: the focus goes to the comparison, and applied rules are shown as the ones in force.
document.addEventListener("htmx:afterSwap", (event) => {
  if (event.target.id === "preview") event.target.focus();
  if (event.target.id === "applied" && event.target.querySelector(".done")) {
    document.getElementById("apply").disabled = true;
    window.leasehold.toast("The rules are in force from the next tick on.");
  }
});
