// Checks of one page, run by tests/console/test_accessibility.py. Each returns the faults that it finds, as texts.
(() => {
  const name = (each) => `${each.outerHTML.slice(0, 140)}`;
  const isShown = (each) => each.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const shown = (selector) => [...document.querySelectorAll(selector)].filter(isShown);
  const CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";

  const structure = () => {
    const faults = [];
    const count = (selector) => document.querySelectorAll(selector).length;
    if (count("h1") !== 1) faults.push(`${count("h1")} elements h1`);
    if (count("main") !== 1) faults.push(`${count("main")} elements main`);
    if (!document.title || !document.documentElement.lang) faults.push("no title or language");
    let level = 1;
    for (const each of shown("main :is(h1, h2, h3, h4)")) {
      const found = Number(each.tagName[1]);
      if (found > level + 1) faults.push(`h${found} after h${level}: ${name(each)}`);
      level = found;
    }
    return faults;
  };

  const ids = () => {
    const found = [...document.querySelectorAll("[id]")].map((each) => each.id);
    return found.filter((each, index) => found.indexOf(each) !== index);
  };

  const labels = () => {
    const text = (each) => each?.textContent.trim();
    const named = (each) =>
      each.getAttribute("aria-label") || [...(each.labels ?? [])].some(text) || text(document.getElementById(each.getAttribute("aria-labelledby")));
    const fields = shown("input:not([type=hidden]), select, textarea, meter, canvas[tabindex]").filter((each) => !named(each));
    const others = shown("a[href], button, [role=region], summary").filter((each) => !named(each) && !text(each));
    const images = [...document.querySelectorAll("img:not([alt])")];
    return [...fields, ...others, ...images].map(name);
  };

  // Elements that a script gives a click without being a control cannot be reached by Tab.
  const unreachable = () =>
    shown("[onclick], [hx-post]:not(form), [hx-get][hx-trigger*='click'], [data-close], [data-dismiss], [data-bulk-ids], [role=button], [role=link]")
      .filter((each) => each.tabIndex < 0 || !each.matches(CONTROLS))
      .map(name);

  // The places that Tab must visit; a group of radio buttons is one place, and a disabled control none.
  const stops = () => shown(CONTROLS).filter((each) => !each.disabled && each.tabIndex >= 0).length;
  // By its place in the page: a page that refreshes a part replaces the elements there.
  const place = (each) => {
    const steps = [];
    for (let at = each; at.parentElement; at = at.parentElement) steps.push([...at.parentElement.children].indexOf(at));
    return steps.reverse().join(".");
  };
  const marked = new Set();
  const mark = () => {
    const each = document.activeElement;
    if (!each || each === document.body) return "";
    marked.add(place(each));
    const style = getComputedStyle(each);
    const has = each.matches(":focus-visible") && (style.outlineStyle !== "none" || style.boxShadow !== "none");
    return has ? place(each) : `not visible: ${name(each)}`;
  };
  const missed = () => shown(CONTROLS).filter((each) => !each.disabled && each.tabIndex >= 0 && !marked.has(place(each))).map(name);

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((each, index) => each * a + below[index] * (1 - a));
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((each) => {
      const part = each / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const background = (each) => {
    const layers = [];
    for (let at = each; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const contrast = (colour, behind) => {
    const [light, dark] = [luminance(over(rgba(colour), behind)), luminance(behind)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  // The contrast of each text with the colours behind it (WCAG 2.2, 1.4.3). Disabled controls are exempt there.
  const contrasts = () => {
    const faults = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const seen = new Set();
    let texts = 0;
    while (walker.nextNode()) {
      const each = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || seen.has(each) || !isShown(each) || each.closest(":disabled, script, style, option, .hidden, .skip")) continue;
      seen.add(each);
      texts += 1;
      const style = getComputedStyle(each);
      const behind = background(each);
      const ratio = contrast(style.color, behind);
      const size = parseFloat(style.fontSize);
      const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio < (isLarge ? 3 : 4.5)) faults.push(`${ratio.toFixed(2)} for ${style.color} on ${behind.map(Math.round)}: ${name(each)}`);
    }
    for (const each of shown("[placeholder]:placeholder-shown")) {
      const found = contrast(getComputedStyle(each, "::placeholder").color, background(each));
      if (found < 4.5) faults.push(`${found.toFixed(2)} for the placeholder: ${name(each)}`);
    }
    return texts ? faults : ["no text was found"];
  };

  const width = () => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const wide = shown("body *").filter((each) => each.getBoundingClientRect().right > clientWidth + 1 && !each.closest(".scroll, pre, nav"));
    return [`${scrollWidth} px in ${clientWidth} px`, ...wide.slice(0, 4).map(name)];
  };

  // In a narrow window each row is a card, and each of its texts shows a label: the one of the cell, or one that the style
  // has for the place of the column, which then is the heading of this column.
  const heading = (cell) => {
    const found = cell.closest("table").tHead?.rows[0].cells[cell.cellIndex]?.cloneNode(true);
    found?.querySelectorAll("[aria-hidden]").forEach((each) => each.remove());
    return found?.textContent.trim();
  };
  const isLabelled = (cell) => {
    const { content, display } = getComputedStyle(cell, "::before");
    const shown = content === "attr(data-label)" ? cell.dataset.label : content.match(/^"(.+)"$/)?.[1];
    return !!shown && display !== "none" && (shown === cell.dataset.label || shown === heading(cell));
  };
  const cards = () =>
    shown("main table:not(.u-legend)").flatMap((table) => [
      ...(getComputedStyle(table).display === "block" ? [] : [`no cards: ${name(table)}`]),
      ...[...table.querySelectorAll("tbody td:not([colspan], .pick)")].filter((each) => isShown(each) && each.textContent.trim() && !isLabelled(each)).map((each) => `no label: ${name(each)}`),
    ]);

  // Lines to copy are whole, since a finger does not find what scrolls sideways. What a chip has on hover is also a text
  // for screen readers: in the chip, in its description, or directly after it and not cut.
  const follows = (chip) => {
    const text = chip.nextSibling;
    return text?.nodeType === Node.TEXT_NODE && text.data.trim() === chip.title && chip.parentElement.scrollWidth <= chip.parentElement.clientWidth;
  };
  const isOnlyOnHover = (chip) => {
    const description = document.getElementById(chip.getAttribute("aria-describedby"));
    return ![chip, description].some((each) => each?.textContent.includes(chip.title)) && !follows(chip);
  };
  const texts = () => [
    ...shown("pre").filter((each) => each.scrollWidth > each.clientWidth).map((each) => `cut: ${name(each)}`),
    ...shown(".badge[title]").filter(isOnlyOnHover).map((each) => `on hover only: ${name(each)}`),
  ];

  window.pageChecks = { texts, cards, structure, ids, labels, unreachable, stops, mark, missed, contrasts, width };
})();
