"use strict";
// The page Events: new events of the stream are added at the top while "Follow" is checked and the page is visible.
(() => {
  const MOST_ROWS = 500;
  const FILTERS = ["reservation", "slot", "name"];
  const table = document.getElementById("events");
  const body = table.tBodies[0];
  const follow = document.getElementById("follow");
  const query = new URLSearchParams(location.search);
  const isShown = (row) => row.name !== "reservation_cores" || query.get("cores") || query.get("name") === row.name;
  let newest = Number(table.dataset.newest);
  let looking = false;
  let again = false;
  const retry = window.leasehold.retries(() => look());

  function add(html, number) {
    // The template escapes every text; a table's rows cannot be parsed outside of a table.
    const parsed = new DOMParser().parseFromString(`<table><tbody>${html}</tbody></table>`, "text/html");
    const rows = [...parsed.querySelectorAll("tr")];
    newest = Math.max(newest, number);
    if (!rows.length) return;
    document.querySelector(".empty")?.remove();
    body.prepend(...rows);
    while (body.rows.length > MOST_ROWS) body.lastElementChild.remove();
  }

  // Events that the stream did not bring: before it began, while it was lost, and more than one update has.
  async function look() {
    if (!follow.checked || document.hidden) return;
    again = looking;
    if (looking) return;
    looking = true;
    try {
      const wanted = new URLSearchParams(query);
      wanted.set("after", newest);
      const answer = await fetch(`${window.leasehold.prefix}/events/new?${wanted}`);
      if (answer.status >= 500) retry.again();
      if (!answer.ok) return;
      const html = await answer.text();
      retry.done();
      const first = new DOMParser().parseFromString(`<table><tbody>${html}</tbody></table>`, "text/html").querySelector("tr");
      if (!first) return;
      // Older events than these may be missing between them and the rows of the page.
      if (first.dataset.cut !== undefined) body.replaceChildren();
      add(html, Number(first.dataset.newest));
    } catch {
      retry.again();
    } finally {
      looking = false;
      if (again) look();
    }
  }

  function take(update) {
    if (!follow.checked) return;
    if (looking || !update.rows) {
      look();
      return;
    }
    const rows = update.rows.filter(
      (row) => row.number > newest && isShown(row) && FILTERS.every((name) => !query.get(name) || row[name] === query.get(name)),
    );
    add(rows.map((row) => row.html).join(""), update.newest);
  }

  follow.addEventListener("change", () => look());
  for (const name of ["hello", "status"]) document.addEventListener(`live:${name}`, () => look());
  document.addEventListener("live:events", (event) => take(JSON.parse(event.detail)));
})();
