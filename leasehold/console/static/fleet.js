"use strict";
// The map of slots: it reads the document of all slots once, and then the deltas of the topic "fleet". A small fleet is
// shown as cards, which the server renders; up to 400 slots are boxes with a tooltip; above that they are a mosaic.
(() => {
  const { prefix, now, time } = window.leasehold;
  const fleet = document.getElementById("fleet");
  const places = document.getElementById("pools");
  const panel = document.getElementById("panel");
  const legend = document.getElementById("legend");
  const announce = document.getElementById("announce");
  const pulse = document.getElementById("pulse");
  const STATES = ["ready", "launching", "booting", "binding", "draining", "terminating", "stopped", "error", "empty"];
  const CORDONED = 1, INTERRUPTED = 2;
  const ACCOUNTS = 8;
  const RUNNING = ["booting", "binding", "ready", "draining"];
  const MOST_CARDS = 40, MOST_BOXES = 400;
  const tip = document.getElementById("tip");

  let names = [];
  let slots = new Map(); // id -> {id, pool, zone, state, flags, leases: [{account, share, state}]}
  let groups = new Map(); // "pool\0zone" -> {canvas, ids, at: Map(id -> index), focus}
  let revision = -1;
  let newest = -1; // the revision of the last event of the stream
  let colouring = recall("colour", "state");
  let highlighted = null;
  let lit = new Set(); // ids of the slots of the reservation that the pointer or the focus is on
  let accounts = new Map(); // account -> index of its colour
  let colours = {};
  let loading = null;

  function recall(name, usual) {
    try { return localStorage.getItem(`leasehold-fleet-${name}`) || usual; } catch { return usual; }
  }
  function keep(name, value) {
    try { localStorage.setItem(`leasehold-fleet-${name}`, value); } catch { /* private mode */ }
  }

  // Data.

  function decode(row) {
    const leases = [];
    for (let at = 5; at < row.length; at += 2) {
      const state = row[at + 1] >= 2000 ? "claimed" : row[at + 1] >= 1000 ? "revoking" : "held";
      leases.push({ account: names[row[at]], share: row[at + 1] % 1000, state });
    }
    return { id: row[0], pool: names[row[1]], zone: names[row[2]], state: names[row[3]], flags: row[4], leases };
  }

  function load() {
    loading = loading || fetch(`${prefix}/fleet/slots.json`)
      .then((answer) => {
        if (answer.status === 401) location.reload();
        if (!answer.ok) throw new Error(answer.statusText);
        return answer.json();
      })
      .then((found) => {
        names = found.names;
        slots = new Map(found.slots.map((row) => [row[0], decode(row)]));
        revision = found.revision;
        layOut();
        loading = null;
        // The document was made before these changes.
        if (revision < newest) load();
      })
      .catch(() => {
        loading = null;
        setTimeout(load, 2000);
      });
    return loading;
  }

  document.addEventListener("live:hello", (event) => {
    newest = event.detail.revision;
    // Changes between the document and this stream would be missing.
    if (event.detail.revision !== revision || revision < 0) load();
  });

  document.addEventListener("live:fleet", (event) => {
    const delta = JSON.parse(event.detail);
    newest = delta.revision;
    if (delta.reset || delta.since > revision) return void load();
    if (delta.revision <= revision) return;
    delta.names.forEach((name, index) => { names[delta.first_name + index] = name; });
    apply(delta);
  });

  function apply(delta) {
    let moved = false;
    const touched = [];
    for (const row of delta.slots) {
      const slot = decode(row);
      const known = slots.get(slot.id);
      moved = moved || !known || known.pool !== slot.pool || known.zone !== slot.zone;
      slots.set(slot.id, slot);
      touched.push(slot.id);
    }
    for (const id of delta.gone) moved = slots.delete(id) || moved;
    revision = delta.revision;
    if (moved) layOut();
    else {
      rankAccounts();
      touched.forEach(drawSlot);
    }
    showFigures();
    drawLegend();
    if (form() === "cards") refreshCards();
    pulse.replaceChildren(`${touched.length} changed `, time(now()));
    document.documentElement.dataset.revision = revision;
    if (chosen() && (touched.includes(chosen()) || delta.gone.includes(chosen()))) refreshPanel();
    refreshTable();
  }

  // Layout: a canvas for each zone of each pool.

  const order = new Intl.Collator("en", { numeric: true });

  const form = () => (slots.size > MOST_BOXES ? "mosaic" : slots.size > MOST_CARDS ? "boxes" : slots.size ? "cards" : "none");

  function layOut() {
    readColours();
    rankAccounts();
    const before = places.dataset.form;
    places.dataset.form = form();
    if (form() === "cards" || form() === "none") {
      groups = new Map();
      if (form() === "none") places.replaceChildren(document.getElementById("no-slots").content.cloneNode(true));
      else if (before !== "cards" || [...slots.keys()].some((id) => !card(id)) || cards().length > slots.size) refreshCards(0);
      else drawCards();
      showFigures();
      drawLegend();
      document.documentElement.dataset.revision = revision;
      return;
    }
    const wanted = new Map();
    for (const slot of slots.values()) {
      const key = `${slot.pool}\0${slot.zone}`;
      if (!wanted.has(key)) wanted.set(key, []);
      wanted.get(key).push(slot.id);
    }
    // Within a pool, slots without a machine come last: they have no zone.
    const keys = [...wanted.keys()].sort((a, b) => {
      const [poolA, zoneA] = a.split("\0"), [poolB, zoneB] = b.split("\0");
      return order.compare(poolA, poolB) || !zoneA - !zoneB || order.compare(zoneA, zoneB);
    });
    groups = new Map();
    const fresh = document.createDocumentFragment();
    let pool = null, zones = null;
    for (const key of keys) {
      const [poolName, zoneName] = key.split("\0");
      const ids = wanted.get(key).sort(order.compare);
      if (poolName !== pool) {
        pool = poolName;
        zones = addPool(fresh, poolName);
      }
      const single = keys.filter((each) => each.split("\0")[0] === poolName).length === 1 && !zoneName;
      groups.set(key, addZone(zones, poolName, zoneName, ids, single));
    }
    places.replaceChildren(fresh);
    groups.forEach(size);
    showFigures();
    drawLegend();
    document.documentElement.dataset.revision = revision;
  }

  // Cards: the server renders them with what the document lacks. They load again at most twice a second.

  const cards = () => [...places.querySelectorAll("[data-card]")];
  const card = (id) => places.querySelector(`[data-card="${CSS.escape(id)}"]`);
  let cardsDue = null;

  function refreshCards(after = 500) {
    if (cardsDue) return;
    cardsDue = setTimeout(() => {
      cardsDue = null;
      if (document.hidden || form() !== "cards") return;
      htmx.ajax("GET", `${prefix}/fleet/cards`, { target: "#pools", swap: "innerHTML" }).then(drawCards);
    }, after);
  }
  window.leasehold.retryReloads("#pools", () => refreshCards());
  document.addEventListener("visibilitychange", () => form() === "cards" && refreshCards());

  function drawCards() {
    cards().forEach((each) => drawCard(each.dataset.card));
  }

  function drawCard(id) {
    const slot = slots.get(id), place = card(id);
    if (!slot || !place) return;
    const picture = place.querySelector("canvas"), ratio = window.devicePixelRatio || 1;
    picture.width = picture.height = Math.round(14 * ratio);
    const context = picture.getContext("2d");
    context.scale(ratio, ratio);
    paint(context, 0, 0, 14, slot);
    place.classList.toggle("dim", isDimmed(slot));
    place.classList.toggle("lit", lit.has(id));
    place.classList.toggle("chosen", id === chosen());
  }

  function addPool(parent, name) {
    const section = document.createElement("section");
    section.className = "pool";
    const head = document.createElement("div");
    head.className = "head";
    const title = document.createElement("h3");
    title.textContent = name;
    const count = document.createElement("span");
    count.className = "muted";
    count.dataset.pool = name;
    head.append(title, count);
    const zones = document.createElement("div");
    zones.className = "zones";
    section.append(head, zones);
    parent.append(section);
    return zones;
  }

  function addZone(parent, pool, zone, ids, single) {
    const place = document.createElement("div");
    place.className = single ? "zone single" : "zone";
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = zone || "no machine";
    const canvas = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${ids.length} slots of the pool ${pool}${zone ? `, zone ${zone}` : ""}. Arrow keys choose a slot, Enter opens it.`);
    place.append(name, canvas);
    parent.append(place);
    const group = { canvas, ids, at: new Map(ids.map((id, index) => [id, index])), focus: -1, hover: -1 };
    canvas.addEventListener("click", (event) => {
      const index = find(group, event);
      if (index >= 0) { focusOn(group, index); choose(group.ids[index]); }
    });
    canvas.addEventListener("mousemove", (event) => {
      const index = find(group, event);
      if (index === group.hover) return;
      group.hover = index;
      pointAt(index >= 0 ? group.ids[index] : null, canvas, event.clientX, event.clientY);
    });
    canvas.addEventListener("mouseleave", () => { group.hover = -1; pointAt(null, canvas); });
    canvas.addEventListener("keydown", (event) => onKey(group, event));
    canvas.addEventListener("focus", () => { if (group.focus < 0) focusOn(group, 0); else drawIndex(group, group.focus); });
    canvas.addEventListener("blur", () => { pointAt(null, canvas); const index = group.focus; if (index >= 0) drawIndex(group, index); });
    return group;
  }

  function size(group) {
    const width = group.canvas.clientWidth || 600;
    const count = slots.size;
    group.box = count <= 60 ? 34 : count <= 300 ? 24 : count <= 1500 ? 16 : count <= 4000 ? 12 : 9;
    group.gap = group.box >= 16 ? 4 : group.box >= 12 ? 3 : 2;
    const step = group.box + group.gap;
    group.columns = Math.max(1, Math.floor((width - 4 + group.gap) / step));
    const rows = Math.ceil(group.ids.length / group.columns);
    const height = rows * step - group.gap + 4;
    const ratio = window.devicePixelRatio || 1;
    group.canvas.width = Math.round(width * ratio);
    group.canvas.height = Math.round(height * ratio);
    group.canvas.style.height = `${height}px`;
    group.context = group.canvas.getContext("2d");
    group.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    group.ids.forEach((_, index) => drawIndex(group, index));
  }

  function find(group, event) {
    const frame = group.canvas.getBoundingClientRect();
    const step = group.box + group.gap;
    const column = Math.floor((event.clientX - frame.left - 2) / step);
    const row = Math.floor((event.clientY - frame.top - 2) / step);
    const index = row * group.columns + column;
    return column >= 0 && column < group.columns && row >= 0 && index < group.ids.length ? index : -1;
  }

  // Drawing. States have patterns besides their colours.

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    colours = { edge: read("--slot-edge"), text: read("--text"), focus: read("--focus"), surface: read("--surface") };
    for (const state of [...STATES, "lease", "revoking", "claimed"]) colours[state] = read(`--slot-${state}`);
    for (let each = 0; each < ACCOUNTS; each++) colours[`account-${each}`] = read(`--account-${each}`);
    colours.none = read("--account-none");
    colours.rest = read("--account-rest");
  }

  function rankAccounts() {
    const counts = new Map();
    for (const slot of slots.values()) for (const lease of slot.leases) counts.set(lease.account, (counts.get(lease.account) || 0) + 1);
    // An account keeps its colour while it has leases.
    for (const account of accounts.keys()) if (!counts.has(account)) accounts.delete(account);
    const used = new Set(accounts.values());
    const waiting = [...counts.keys()].filter((each) => each && !accounts.has(each)).sort((a, b) => counts.get(b) - counts.get(a) || order.compare(a, b));
    for (let colour = 0; colour < ACCOUNTS && waiting.length; colour++) if (!used.has(colour)) accounts.set(waiting.shift(), colour);
    return counts;
  }

  function accountColour(account) {
    if (!account) return colours.none;
    return accounts.has(account) ? colours[`account-${accounts.get(account)}`] : colours.rest;
  }

  function drawSlot(id) {
    const slot = slots.get(id);
    if (!slot) return;
    if (form() === "cards") return void drawCard(id);
    const group = groups.get(`${slot.pool}\0${slot.zone}`);
    if (group && group.at.has(id)) drawIndex(group, group.at.get(id));
  }

  function drawIndex(group, index) {
    const slot = slots.get(group.ids[index]);
    if (!slot || !group.context) return;
    const step = group.box + group.gap;
    const x = 2 + (index % group.columns) * step, y = 2 + Math.floor(index / group.columns) * step;
    const context = group.context;
    context.clearRect(x - 2, y - 2, step + 2 - Math.min(2, group.gap - 2), step + 2 - Math.min(2, group.gap - 2));
    context.globalAlpha = isDimmed(slot) ? 0.16 : 1;
    paint(context, x, y, group.box, slot);
    context.globalAlpha = 1;
    const isFocused = document.activeElement === group.canvas && group.focus === index;
    if (isFocused || slot.id === chosen() || lit.has(slot.id)) {
      context.strokeStyle = isFocused || slot.id !== chosen() ? colours.focus : colours.text;
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, group.box + 2, group.box + 2);
    }
  }

  function isDimmed(slot) {
    if (highlighted === null) return false;
    if (!highlighted.startsWith("\0also-")) return kindOf(slot) !== highlighted;
    const [, mark] = highlighted.split("\0also-");
    return !alsoOf(slot).includes(mark);
  }

  // Each slot counts for one entry of the legend, so that the entries add up to the fleet.
  function kindOf(slot) {
    if (colouring === "account") {
      const found = new Set(slot.leases.map((lease) => (accounts.has(lease.account) || !lease.account ? lease.account : "\0rest")));
      return found.size > 1 ? "\0several" : found.size ? [...found][0] : "\0none";
    }
    if (slot.leases.some((lease) => lease.state === "revoking")) return "revoking";
    if (slot.leases.some((lease) => lease.state === "held")) return "lease";
    return slot.leases.length ? "claimed" : slot.state;
  }

  // What is drawn on a slot besides: these entries count slots that another entry counts already.
  function alsoOf(slot) {
    const found = slot.flags & CORDONED ? ["cordoned"] : [];
    if (colouring === "state" && slot.leases.length && slot.state !== "ready") found.push(slot.state);
    return found;
  }

  function paint(context, x, y, box, slot) {
    base(context, x, y, box, slot.state);
    let bottom = y + box;
    for (const lease of slot.leases) {
      const height = Math.max(1.5, (box * lease.share) / 100);
      const top = Math.max(y, bottom - height);
      context.fillStyle = colouring === "account" ? accountColour(lease.account) : colours[lease.state === "held" ? "lease" : lease.state];
      context.fillRect(x, top, box, bottom - top);
      // Half of the accounts have a pattern too, for eyes that see few colours.
      if (colouring === "account" && accounts.get(lease.account) >= ACCOUNTS / 2 && box >= 12) hatch(context, x, top, box, bottom - top, colours.surface, 7);
      if (lease.state !== "held" && box >= 12) hatch(context, x, top, box, bottom - top, colours.surface, 5);
      if (box >= 16 && top > y) {
        context.fillStyle = colours.surface;
        context.fillRect(x, top, box, 1);
      }
      bottom = top;
      if (bottom <= y) break;
    }
    if (slot.flags & (CORDONED | INTERRUPTED)) {
      // A folded corner: no new leases.
      const corner = Math.max(4, box * 0.42);
      context.fillStyle = slot.flags & INTERRUPTED ? colours.error : colours.text;
      context.beginPath();
      context.moveTo(x + box - corner, y);
      context.lineTo(x + box, y);
      context.lineTo(x + box, y + corner);
      context.fill();
    }
  }

  function base(context, x, y, box, state) {
    context.fillStyle = state === "empty" ? colours.empty : colours[state] || colours.empty;
    if (state === "empty") {
      context.strokeStyle = colours.edge;
      context.lineWidth = 1;
      context.globalAlpha *= 0.9;
      context.strokeRect(x + 0.5, y + 0.5, box - 1, box - 1);
      return;
    }
    if (["launching", "booting", "binding"].includes(state)) {
      context.fillRect(x, y, box, box);
      hatch(context, x, y, box, box, colours.surface, box >= 16 ? 6 : 4);
    } else if (state === "draining" || state === "terminating") {
      const thick = box >= 16 ? 3 : 2;
      for (let at = 0; at < box; at += 2 * thick) {
        if (state === "draining") context.fillRect(x, y + at, box, Math.min(thick, box - at));
        else context.fillRect(x + at, y, Math.min(thick, box - at), box);
      }
      context.strokeStyle = context.fillStyle;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, box - 1, box - 1);
    } else if (state === "stopped") {
      context.globalAlpha *= 0.55;
      context.fillRect(x, y, box, box);
      context.globalAlpha /= 0.55;
      context.strokeStyle = colours.stopped;
      context.lineWidth = box >= 16 ? 2 : 1;
      context.strokeRect(x + 1, y + 1, box - 2, box - 2);
    } else context.fillRect(x, y, box, box);
    if (state === "error") {
      context.strokeStyle = colours.surface;
      context.lineWidth = box >= 16 ? 2.5 : 1.5;
      context.beginPath();
      context.moveTo(x + box * 0.25, y + box * 0.25);
      context.lineTo(x + box * 0.75, y + box * 0.75);
      context.moveTo(x + box * 0.75, y + box * 0.25);
      context.lineTo(x + box * 0.25, y + box * 0.75);
      context.stroke();
    }
  }

  function hatch(context, x, y, width, height, colour, gap) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = colour;
    context.globalAlpha *= 0.75;
    context.lineWidth = gap / 3;
    context.beginPath();
    for (let at = -height; at < width; at += gap) {
      context.moveTo(x + at, y + height);
      context.lineTo(x + at + height, y);
    }
    context.stroke();
    context.restore();
  }

  // Legend, figures.

  function drawLegend() {
    const counts = new Map(), also = new Map();
    const count = (map, key) => map.set(key, (map.get(key) || 0) + 1);
    for (const slot of slots.values()) {
      count(counts, kindOf(slot));
      for (const each of alsoOf(slot)) count(also, each);
    }
    const entries = [];
    if (colouring === "state") {
      const labels = { lease: "leased", revoking: "being revoked", claimed: "promised", ready: "free" };
      for (const key of ["lease", "revoking", "claimed", ...STATES]) {
        if (counts.get(key)) entries.push([key, labels[key] || key, counts.get(key), sample(key)]);
      }
    } else {
      // By colour, so that entries stay in their places: accounts without a colour of their own come last.
      const labels = { "": "no account", "\0rest": "other accounts", "\0several": "several accounts", "\0none": "no lease" };
      const last = ["", "\0rest", "\0several", "\0none"];
      const rank = (key) => (accounts.has(key) ? accounts.get(key) : ACCOUNTS + last.indexOf(key));
      const lease = (account, share) => ({ account, share, state: "held" });
      const leases = (key) => (key === "\0none" ? [] : key === "\0several" ? [lease([...accounts.keys()][0] || "", 50), lease([...accounts.keys()][1] || "\0", 50)] : [lease(key === "\0rest" ? "\0" : key, 100)]);
      for (const key of [...counts.keys()].sort((a, b) => rank(a) - rank(b))) {
        entries.push([key, labels[key] ?? key, counts.get(key), { id: "", state: "ready", flags: 0, leases: leases(key) }]);
      }
    }
    const first = entries.length;
    for (const key of [...STATES, "cordoned"]) if (also.get(key)) entries.push([`\0also-${key}`, key, also.get(key), sample(key)]);
    const signature = JSON.stringify([colouring, highlighted, entries.map((each) => each.slice(0, 3))]);
    if (legend.dataset.signature === signature) return;
    legend.dataset.signature = signature;
    const focused = legend.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const items = entries.map(legendEntry);
    const sum = document.createElement("li");
    sum.className = "total";
    sum.textContent = `= ${slots.size.toLocaleString("en")} ${slots.size === 1 ? "slot" : "slots"}${items.length > first ? ", of these" : ""}`;
    if (slots.size) items.splice(first, 0, sum);
    legend.replaceChildren(...items);
    if (focused !== null) legend.querySelectorAll("button").forEach((each) => { if (each.dataset.key === focused) each.focus(); });
  }

  function sample(key) {
    const lease = (state) => ({ id: "", state: "ready", flags: 0, leases: [{ account: "", share: 70, state }] });
    if (key === "lease") return lease("held");
    if (key === "revoking" || key === "claimed") return lease(key);
    if (key === "cordoned") return { id: "", state: "ready", flags: CORDONED, leases: [] };
    return { id: "", state: key, flags: 0, leases: [] };
  }

  function legendEntry([key, label, count, slot]) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.key = key;
    button.setAttribute("aria-pressed", String(highlighted === key));
    const picture = document.createElement("canvas");
    const ratio = window.devicePixelRatio || 1;
    picture.width = picture.height = Math.round(14 * ratio);
    const context = picture.getContext("2d");
    context.scale(ratio, ratio);
    paint(context, 0, 0, 14, slot);
    const text = document.createElement("span");
    text.textContent = label;
    const number = document.createElement("span");
    number.className = "count";
    number.textContent = count.toLocaleString("en");
    button.append(picture, text, number);
    button.addEventListener("click", () => {
      highlighted = highlighted === key ? null : key;
      drawLegend();
      redraw();
    });
    item.append(button);
    return item;
  }

  function redraw() {
    if (form() === "cards") drawCards();
    groups.forEach((group) => group.ids.forEach((_, index) => drawIndex(group, index)));
  }

  function showFigures() {
    let machines = 0, leased = 0, filled = 0;
    const pools = new Map();
    for (const slot of slots.values()) {
      const has = RUNNING.includes(slot.state);
      const share = has ? Math.min(100, slot.leases.reduce((sum, lease) => sum + lease.share, 0)) : 0;
      machines += has;
      leased += slot.leases.length > 0;
      filled += share;
      const pool = pools.get(slot.pool) || { slots: 0, machines: 0 };
      pool.slots += 1;
      pool.machines += has;
      pools.set(slot.pool, pool);
    }
    const values = { slots: slots.size, machines, leased, fill: null };
    for (const [name, value] of Object.entries(values)) {
      const place = document.querySelector(`[data-figure="${name}"]`);
      if (place) place.textContent = name === "fill" ? (machines ? `${Math.round(filled / machines)} %` : "–") : value.toLocaleString("en");
    }
    document.querySelectorAll("[data-pool]").forEach((place) => {
      const pool = pools.get(place.dataset.pool);
      if (pool) place.textContent = `${pool.slots.toLocaleString("en")} ${pool.slots === 1 ? "slot" : "slots"}${pool.machines ? `, ${pool.machines.toLocaleString("en")} with a machine` : ""}`;
    });
  }

  // Pointing at a slot or a reservation lights up all slots of the reservations, and shows the tooltip of a box.

  function light(ids) {
    const before = lit;
    lit = new Set(ids);
    for (const id of new Set([...before, ...lit])) drawSlot(id);
  }

  let asked = "", askedDue = null;
  function ask(query, then) {
    clearTimeout(askedDue);
    asked = query;
    if (!query) return light([]);
    // A pointer that crosses many boxes asks only where it rests.
    askedDue = setTimeout(async () => {
      try {
        const answer = await fetch(`${prefix}/fleet/together?${query}`);
        if (!answer.ok || asked !== query) return;
        const found = await answer.json();
        if (asked !== query) return;
        light(found.slots.length > 1 || query.startsWith("reservation") ? found.slots : []);
        then(found);
      } catch { /* the page goes on without the light */ }
    }, 80);
  }

  function pointAt(id, canvas, x, y) {
    const slot = id && slots.get(id);
    tip.hidden = true;
    canvas.title = slot && form() === "mosaic" ? describe(slot) : "";
    if (!slot) return ask("");
    const show = (lines) => {
      if (form() !== "boxes") return;
      tip.textContent = [describe(slot), ...lines].join("\n");
      tip.hidden = false;
      tip.style.left = `${Math.max(8, Math.min(x + 12, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${Math.max(8, Math.min(y + 12, innerHeight - tip.offsetHeight - 8))}px`;
    };
    show([]);
    ask(`slot=${encodeURIComponent(id)}`, (found) => show(found.lines));
  }

  for (const [enter, leave] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    document.addEventListener(enter, (event) => {
      const place = event.target.closest?.("[data-reservation]");
      if (!place) return;
      const name = place.dataset.reservation;
      ask(`reservation=${encodeURIComponent(name)}`, (found) => {
        if (enter === "focusin") announce.textContent = `${name} has ${found.slots.length} ${found.slots.length === 1 ? "slot" : "slots"}: ${found.slots.slice(0, 8).join(", ")}`;
      });
    });
    document.addEventListener(leave, (event) => { if (event.target.closest?.("[data-reservation]")) ask(""); });
  }

  // Choosing a slot.

  function describe(slot) {
    if (!slot) return "";
    const parts = [slot.id, slot.state];
    if (slot.flags & CORDONED) parts.push("cordoned");
    if (slot.flags & INTERRUPTED) parts.push("interrupted");
    const share = Math.min(100, slot.leases.reduce((sum, lease) => sum + lease.share, 0));
    if (slot.leases.length) {
      const of = [...new Set(slot.leases.map((lease) => lease.account).filter(Boolean))];
      parts.push(`${slot.leases.length} ${slot.leases.length === 1 ? "lease" : "leases"}, ${share} % full${of.length ? `, ${of.join(", ")}` : ""}`);
    } else if (slot.state === "ready") parts.push("free");
    return parts.join(" · ");
  }

  function onKey(group, event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: group.columns, ArrowUp: -group.columns };
    const last = group.ids.length - 1;
    if (event.key in steps) focusOn(group, Math.max(0, Math.min(last, group.focus + steps[event.key])));
    else if (event.key === "Home") focusOn(group, 0);
    else if (event.key === "End") focusOn(group, last);
    else if (event.key === "Enter" || event.key === " ") { choose(group.ids[group.focus]); panel.focus(); }
    else return;
    event.preventDefault();
  }

  function focusOn(group, index) {
    const before = group.focus;
    group.focus = index;
    if (before >= 0) drawIndex(group, before);
    drawIndex(group, index);
    announce.textContent = describe(slots.get(group.ids[index]));
    const frame = group.canvas.getBoundingClientRect(), step = group.box + group.gap;
    pointAt(group.ids[index], group.canvas, frame.left + ((index % group.columns) + 1) * step, frame.top + (Math.floor(index / group.columns) + 1) * step);
  }

  function chosen() {
    return fleet.dataset.chosen;
  }

  let opener = null; // what had the focus when the panel was opened; it gets the focus back
  function choose(id) {
    const before = chosen(), focused = document.activeElement;
    const isInside = focused === document.body || panel.contains(focused);
    if (id && !isInside) opener = focused;
    fleet.dataset.chosen = id;
    fleet.classList.toggle("open", Boolean(id));
    const address = new URL(location.href);
    if (id) address.searchParams.set("slot", id);
    else address.searchParams.delete("slot");
    history.replaceState(null, "", address);
    if (id) refreshPanel();
    else panel.replaceChildren();
    resize();
    [before, id].forEach((each) => each && drawSlot(each));
    if (id || !before || !isInside) return;
    // A table that was loaded again has another link to the slot.
    (opener?.isConnected ? opener : document.querySelector(`a[data-slot="${CSS.escape(before)}"]`))?.focus();
    opener = null;
  }

  function refreshPanel() {
    // A person may be about to press a button in it, or is answering a question.
    if (document.querySelector("dialog[open]") || panel.contains(document.activeElement) && document.activeElement.tagName === "BUTTON" && panel.dataset.shown === chosen()) return;
    const id = chosen();
    const outcome = keptOutcome();
    htmx.ajax("GET", `${prefix}/fleet/slot/${encodeURIComponent(id)}`, { target: "#panel", swap: "innerHTML" }).then(() => {
      panel.dataset.shown = id;
      const head = panel.querySelector(".head");
      if (outcome && head && id === outcome.dataset.slot) head.after(outcome);
    });
  }

  // The outcome of a change stays for a while, although the change itself makes the panel load again.
  function keptOutcome() {
    const outcome = panel.querySelector(".done, .problem[role=alert]");
    if (!outcome) return null;
    outcome.dataset.slot = outcome.dataset.slot || chosen();
    outcome.dataset.until = outcome.dataset.until || Date.now() + 15000;
    return Date.now() < Number(outcome.dataset.until) ? outcome : null;
  }

  panel.addEventListener("click", (event) => {
    if (event.target.closest("[data-close]")) choose("");
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !tip.hidden) tip.hidden = true;
    else if (event.key === "Escape" && chosen() && !document.querySelector("dialog[open]")) choose("");
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-slot]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    choose(link.dataset.slot);
    panel.scrollIntoView({ block: "nearest" });
    panel.focus();
  });

  // The table loads itself again at most every five seconds, and not under the hands of a reader.
  const table = document.getElementById("table");
  let tableDue = null;
  function refreshTable() {
    if (tableDue) return;
    tableDue = setTimeout(() => {
      tableDue = null;
      if (document.hidden || table.contains(document.activeElement)) return void refreshTable();
      const query = new URLSearchParams(new FormData(document.getElementById("filter")));
      const page = /page (\d+) of/i.exec(table.textContent);
      if (page) query.set("page", page[1]);
      htmx.ajax("GET", `${table.dataset.url}?${query}`, { target: "#table", swap: "innerHTML" });
    }, 5000);
  }

  window.leasehold.retryReloads("#table", refreshTable);
  window.leasehold.retryReloads("#panel", () => chosen() && refreshPanel());

  // Colours and sizes.

  function setColouring(value) {
    colouring = value;
    highlighted = null;
    keep("colour", value);
    document.querySelectorAll("[data-colour]").forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.colour === value)));
    drawLegend();
    redraw();
  }
  document.querySelectorAll("[data-colour]").forEach((each) => each.addEventListener("click", () => setColouring(each.dataset.colour)));

  let resizing = null;
  function resize() {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => groups.forEach(size));
  }
  window.addEventListener("resize", resize);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); legend.dataset.signature = ""; drawLegend(); });

  readColours();
  document.querySelectorAll("[data-colour]").forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.colour === colouring)));
  if (chosen()) refreshPanel();
  load();

  window.leasehold.fleet = { slots: () => slots, revision: () => revision, choose, groups: () => groups };
})();
