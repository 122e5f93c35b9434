"use strict";
// The page Events: new events are added at the top while "Follow" is checked and the page is visible.
(() => {
  const MOST_ROWS = 500;
  const table = document.getElementById("events");
  const body = table.tBodies[0];
  const follow = document.getElementById("follow");
  let newest = table.dataset.newest;

  async function look() {
    if (!follow.checked || document.hidden) return;
    const query = new URLSearchParams(location.search);
    query.set("after", newest);
    const answer = await fetch(`${window.leasehold.prefix}/events/new?${query}`);
    if (!answer.ok) return;
    // The template escapes every text; a table's rows cannot be parsed outside of a table.
    const parsed = new DOMParser().parseFromString(`<table><tbody>${await answer.text()}</tbody></table>`, "text/html");
    const rows = [...parsed.querySelectorAll("tr")];
    if (!rows.length) return;
    newest = rows[0].dataset.newest;
    document.querySelector(".empty")?.remove();
    body.prepend(...rows);
    while (body.rows.length > MOST_ROWS) body.lastElementChild.remove();
  }

  setInterval(() => look().catch(() => {}), 1500);
})();
