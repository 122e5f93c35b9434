"use strict";
// What every page of the console uses: the stream of events, the CSRF header, confirmations, and the banner.
(() => {
  const body = document.body;
  const prefix = body.dataset.prefix;

  // Every request of htmx proves that it comes from a page of this session.
  document.addEventListener("htmx:configRequest", (event) => {
    if (body.dataset.csrf) event.detail.headers["X-CSRF-Token"] = body.dataset.csrf;
  });

  /** Send a form by POST and return the response. For scripts that do not use htmx. */
  const post = (path, fields) =>
    fetch(prefix + path, {
      method: "POST",
      headers: {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-CSRF-Token": body.dataset.csrf,
        "HX-Request": "true",
      },
      body: new URLSearchParams(fields),
    });

  // A button with data-confirm asks first, in a dialog that the keyboard can use.
  document.addEventListener("htmx:confirm", (event) => {
    const question = event.target.dataset.confirm;
    if (!question) return;
    event.preventDefault();
    ask(question, event.target.dataset.confirmLabel || event.target.textContent.trim()).then((yes) => {
      if (yes) event.detail.issueRequest(true);
    });
  });

  /** Ask a question in a dialog. The promise yields whether the person agreed. */
  function ask(question, label) {
    return new Promise((resolve) => {
      const dialog = document.createElement("dialog");
      dialog.className = "ask";
      const text = document.createElement("p");
      text.textContent = question;
      const form = document.createElement("form");
      form.method = "dialog";
      const no = document.createElement("button");
      no.value = "no";
      no.textContent = "Keep as it is";
      const yes = document.createElement("button");
      yes.value = "yes";
      yes.className = "primary";
      yes.textContent = label;
      form.append(no, yes);
      dialog.append(text, form);
      body.append(dialog);
      dialog.addEventListener("close", () => {
        resolve(dialog.returnValue === "yes");
        dialog.remove();
      });
      dialog.showModal();
      no.focus();
    });
  }

  /** Show a short message at the edge of the page for some seconds. */
  function toast(text) {
    const place = document.getElementById("toast");
    place.textContent = text;
    place.classList.add("shown");
    clearTimeout(toast.timer);
    toast.timer = setTimeout(() => place.classList.remove("shown"), 6000);
  }

  // A button with data-copy copies the lines before it.
  document.addEventListener("click", async (event) => {
    const place = event.target.closest("[data-copy]")?.previousElementSibling;
    if (!place) return;
    try {
      await navigator.clipboard.writeText([...place.children].map((each) => each.textContent).join("\n"));
      toast("Copied.");
    } catch {
      // A page that came without TLS has no clipboard: the text is selected, so that a key copies it.
      getSelection().selectAllChildren(place);
      toast(document.execCommand("copy") ? "Copied." : "The text is selected: copy it with the keyboard.");
    }
  });

  document.addEventListener("htmx:sendError", (event) => {
    const isRead = event.detail.requestConfig.verb === "get";
    toast(`The console does not answer. ${isRead ? "Nothing was changed." : "It is not known whether this was done."}`);
  });
  document.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    if (status === 401) location.reload();
    else if (/json/.test(event.detail.xhr.getResponseHeader("content-type"))) toast(detailOf(event.detail.xhr));
  });

  function detailOf(xhr) {
    try {
      return JSON.parse(xhr.responseText).detail;
    } catch {
      return "This was refused.";
    }
  }

  // One stream for the page: browsers allow few connections to a host. A hidden page has none.
  const banner = document.getElementById("banner");
  let source = null;
  let lost = null;

  function topics() {
    const found = new Set(body.dataset.live.split(/\s+/).filter(Boolean));
    document.querySelectorAll("[data-topic]").forEach((each) => found.add(each.dataset.topic));
    return [...found].sort();
  }

  function connect() {
    if (source || document.hidden) return;
    const names = topics();
    source = new EventSource(`${prefix}/live?${names.map((name) => "topic=" + encodeURIComponent(name)).join("&")}`);
    source.addEventListener("open", () => {
      clearTimeout(lost);
      lost = null;
    });
    source.addEventListener("error", () => {
      if (!lost) lost = setTimeout(() => showBanner("The console does not answer. This page continues when it is back."), 3000);
      // After a refusal the browser does not try again by itself.
      if (source && source.readyState === EventSource.CLOSED) {
        disconnect();
        setTimeout(connect, 3000);
      }
    });
    for (const name of ["hello", "status"]) {
      source.addEventListener(name, (event) => {
        const status = JSON.parse(event.data);
        showStatus(status);
        dispatch(name, status);
      });
    }
    for (const name of names) {
      source.addEventListener(name, (event) => receive(name, event.data));
    }
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  // An element with data-topic takes the event's text as its content, or loads itself again if it has data-reload.
  function receive(name, data) {
    document.querySelectorAll(`[data-topic="${CSS.escape(name)}"]`).forEach((element) => {
      if (element.dataset.reload !== undefined) htmx.trigger(element, "reload");
      else htmx.swap(element, data, { swapStyle: "innerHTML" });
    });
    dispatch(name, data);
  }

  function dispatch(name, detail) {
    document.dispatchEvent(new CustomEvent(`live:${name}`, { detail }));
  }

  function showStatus(status) {
    if (!status.valid) {
      showBanner("Redis, or its copy of the cluster, cannot be read. This page shows the last known state, and continues by itself.");
    } else if (!status.database) {
      showBanner("The database does not answer. Changes and history are not possible until it comes back.");
    } else {
      banner.hidden = true;
    }
  }

  function showBanner(text) {
    banner.textContent = text;
    banner.hidden = false;
  }

  // The stream begins when the page's other scripts listen: they must see its first event.
  document.addEventListener("DOMContentLoaded", () => {
    document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
    window.addEventListener("pagehide", disconnect);
    window.addEventListener("pageshow", connect);
    connect();
  });

  // Below 860 pixels the navigation is a menu.
  const menu = document.querySelector(".menu");
  menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(menu.ariaExpanded !== "true")));
  menu.parentElement.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || menu.ariaExpanded !== "true") return;
    menu.setAttribute("aria-expanded", "false");
    menu.focus();
    event.stopPropagation();
  });

  // Times are relative to the clock of the console, because the clock of the browser may be wrong. On hover they are in UTC.
  const ahead = Date.now() - 1e3 * body.dataset.now;
  const now = () => (Date.now() - ahead) / 1e3;

  /** Return a duration in seconds as `format_span` of page.py does. */
  function span(seconds) {
    const whole = Math.floor(Math.max(0, seconds));
    for (const [unit, size, minor, minorSize] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60]]) {
      if (whole >= size) return `${Math.floor(whole / size)} ${unit} ${Math.floor((whole % size) / minorSize)} ${minor}`;
    }
    return whole >= 60 ? `${Math.floor(whole / 60)} min` : `${whole} s`;
  }

  /** Return a time (seconds since 1970) relative to now, as `format_ago` of page.py does. */
  function ago(at, from = now()) {
    const age = from - at;
    if (Math.abs(age) < 1) return "now";
    return age > 0 ? `${span(age)} ago` : `in ${span(-age)}`;
  }

  /** Return an element for a time, as `format_time` of page.py does. */
  function time(at) {
    const place = document.createElement("time");
    place.dateTime = new Date(1e3 * at).toISOString();
    place.title = `${place.dateTime.slice(0, 19).replace("T", " ")} UTC`;
    place.dataset.ago = "";
    place.textContent = ago(at);
    return place;
  }

  /** Return an amount with two decimals at most, as `format_amount` of page.py does. */
  function amount(value) {
    if (value && Math.abs(value) < 0.005) return value > 0 ? "<0.01" : ">-0.01";
    return value.toLocaleString("en", { maximumFractionDigits: 2 });
  }

  let seconds = 0;
  setInterval(() => {
    if (document.hidden) return;
    seconds += 1;
    // Parts that change with time load themselves again, but not in a hidden page.
    for (const each of document.querySelectorAll("[data-every]")) if (seconds % each.dataset.every === 0) htmx.trigger(each, "reload");
    for (const each of document.querySelectorAll("time[data-ago]")) {
      const text = ago(Date.parse(each.dateTime) / 1e3);
      if (each.textContent !== text) each.textContent = text;
    }
  }, 1000);

  // Seconds between two attempts grow, and after the last one the page waits for the next change.
  const RETRY_MS = [2000, 4000, 8000, 16000, 32000];

  /** Repeat a load that failed: `again()` calls `load` after a delay that grows, `done()` ends the row of failures. */
  function retries(load) {
    let failures = 0;
    let timer = null;
    return {
      again() {
        if (timer || failures >= RETRY_MS.length) return;
        timer = setTimeout(() => {
          timer = null;
          load();
        }, RETRY_MS[failures++]);
      },
      done() {
        clearTimeout(timer);
        timer = null;
        failures = 0;
      },
    };
  }

  /** Repeat `load` if a request of htmx for an element of this selector got no answer, or an error of the server. */
  function retryReloads(selector, load) {
    const retry = retries(load);
    document.addEventListener("htmx:afterRequest", (event) => {
      const { target, xhr, successful } = event.detail;
      if (!target?.matches(selector)) return;
      if (successful) retry.done();
      else if (xhr.status === 0 || xhr.status >= 500) retry.again();
    });
  }

  window.leasehold = { prefix, post, ask, toast, connect, disconnect, retries, retryReloads, now, span, ago, time, amount };
})();
