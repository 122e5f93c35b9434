"use strict";
// The pages about reservations: live counts, the list that loads itself again, selections, saved views, bulk changes.
(() => {
  const { prefix, ask, toast, retries, retryReloads } = window.leasehold;
  const RELOAD_MS = 2000;

  // The parts that change with time load themselves again, at most every two seconds, and not while a person selects
  // or answers a question. The page of one reservation does it only when this reservation has changed: its explanation
  // costs a worker more than a row.
  let due = null;
  let isConcerned = false;
  document.addEventListener("live:reservations", (event) => {
    const update = JSON.parse(event.detail);
    showCounts(update.counts);
    const course = document.querySelector("[data-reservation]");
    if (!course || update.all || update.ids.includes(course.dataset.reservation)) concern();
  });

  // The stream brings no change from before it began: between the page's answer and its first stream, and while it had
  // none because it was hidden or the console did not answer.
  let isGreeted = false;
  document.addEventListener("live:hello", (event) => {
    const shown = Number(document.querySelector("[data-changes]").dataset.revision);
    if (isGreeted || event.detail.revision !== shown) concern();
    isGreeted = true;
  });

  function concern() {
    isConcerned = true;
    due ||= setTimeout(reload, RELOAD_MS);
  }

  function reload() {
    clearTimeout(due);
    due = null;
    if (document.querySelector("dialog[open]") || checked().length) {
      due = setTimeout(reload, RELOAD_MS);
      return;
    }
    isConcerned = false;
    document.querySelectorAll("[data-changes]").forEach((each) => htmx.trigger(each, "reload"));
  }

  retryReloads("[data-changes]", reload);

  // A part that loads itself again replaces its controls. The one that has the keyboard's focus keeps it.
  let focused = null;
  const sameControls = (part, control) => {
    const text = (each) => `${each.tagName} ${each.href} ${each.name} ${each.value} ${each.getAttribute("aria-label")}`;
    return [...part.querySelectorAll(control.tagName)].filter((each) => text(each) === text(control));
  };
  document.addEventListener("htmx:beforeSwap", (event) => {
    const part = event.detail.target, control = document.activeElement;
    if (!part.matches("[data-changes]") || !part.contains(control)) return;
    focused = { control, place: sameControls(part, control).indexOf(control) };
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (!focused || !event.target.matches("[data-changes]")) return;
    sameControls(event.target, focused.control)[focused.place]?.focus({ preventScroll: true });
    focused = null;
  });

  // A reservation is in the list before a tick has found why it waits, and that tick changes no row.
  const unexplained = retries(reload);
  function awaitReasons() {
    if (document.querySelector("[data-unexplained]")) unexplained.again();
    else unexplained.done();
  }
  awaitReasons();

  function showCounts(counts) {
    let total = 0;
    for (const [phase, count] of Object.entries(counts)) {
      total += count;
      const place = document.querySelector(`#counts [data-phase="${CSS.escape(phase)}"]`);
      if (place) place.textContent = count.toLocaleString("en");
    }
    const all = document.querySelector('#counts [data-phase=""]');
    if (all) all.textContent = total.toLocaleString("en");
  }

  // A link to another order or page of the list loads only the rows, so that the keyboard's focus stays.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#rows a[data-list]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    const wanted = new URL(link.href).searchParams;
    for (const each of document.getElementById("filter").elements) if (each.name) each.value = wanted.get(each.name) ?? "";
    htmx.trigger("#rows", "reload");
  });

  // The first page of the list that a changed filter selects. `/` leads to the search, as on other sites.
  document.getElementById("filter")?.addEventListener("input", () => {
    document.querySelector('#rows input[name="after"]').value = "";
  }, { capture: true });
  document.addEventListener("keydown", (event) => {
    const search = document.getElementById("search");
    if (event.key !== "/" || !search || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input:not([type=checkbox]), textarea, select") || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    search.focus();
    search.select();
  });

  // A text that a cell cuts is whole on hover.
  document.addEventListener("pointerover", (event) => {
    const cell = event.target.closest?.("#rows .lines :is(td, th)");
    if (cell && cell.scrollWidth > cell.clientWidth && !cell.title) cell.title = cell.textContent;
  });

  const checked = () => [...document.querySelectorAll('#rows input[name="id"]:checked')];

  document.addEventListener("change", (event) => {
    if (event.target.id === "check-all") {
      document.querySelectorAll('#rows input[name="id"]').forEach((each) => (each.checked = event.target.checked));
    }
    showSelected();
  });

  function showSelected() {
    const place = document.getElementById("selected");
    if (place) place.textContent = checked().length ? `${checked().length} selected` : "None selected";
  }

  // The preview names the reservations; the confirmed change concerns exactly these, whatever the filter finds by then.
  document.addEventListener("click", async (event) => {
    const dismiss = event.target.closest("[data-dismiss]");
    if (dismiss) document.querySelector(dismiss.dataset.dismiss).replaceChildren();
    const button = event.target.closest("[data-bulk-ids]");
    if (!button) return;
    const ids = JSON.parse(button.dataset.bulkIds);
    const label = button.textContent.trim();
    if (!(await ask(`${label}: ${ids.length} reservation${ids.length === 1 ? "" : "s"}?`, label))) return;
    button.disabled = true;
    const values = { verb: button.dataset.verb, priority: button.dataset.priority, id: ids };
    htmx.ajax("POST", `${prefix}/reservations/bulk`, { target: "#bulk-result", values });
  });

  // Saved views are kept in this browser: a name and the query of the address.
  const KEY = "leasehold-views";
  const views = document.getElementById("views");
  if (views) {
    views.hidden = false;
    document.getElementById("save-view").addEventListener("click", () => {
      const name = window.prompt("Name of this view");
      if (!name) return;
      const known = read().filter((each) => each.name !== name);
      localStorage.setItem(KEY, JSON.stringify([...known, { name, query: location.search }]));
      show();
    });
    show();
  }

  function read() {
    try {
      const found = JSON.parse(localStorage.getItem(KEY) || "[]");
      return Array.isArray(found) ? found.filter((each) => typeof each.name === "string" && /^(\?|$)/.test(each.query)) : [];
    } catch {
      return [];
    }
  }

  function show() {
    const list = document.getElementById("saved");
    list.replaceChildren(
      ...read().map((each) => {
        const item = document.createElement("li");
        const link = document.createElement("a");
        link.href = `${prefix}/reservations${each.query}`;
        link.textContent = each.name;
        const remove = document.createElement("button");
        remove.type = "button";
        remove.className = "quiet";
        remove.textContent = "×";
        remove.setAttribute("aria-label", `Forget the view ${each.name}`);
        remove.addEventListener("click", () => {
          localStorage.setItem(KEY, JSON.stringify(read().filter((other) => other.name !== each.name)));
          show();
        });
        item.append(link, remove);
        return item;
      }),
    );
  }

  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id === "rows") {
      awaitReasons();
      showSelected();
    }
    if (event.target.id === "bulk-result") event.target.focus();
    if (event.target.id === "pressed" && event.target.querySelector(".done")) toast("The change was made. The next tick looks at this reservation again.");
  });
})();
