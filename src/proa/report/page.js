// What the page does by itself: shows values under the pointer, hides arms, pages through runs, steps and predictions.
// Whatever it shows is set as text, and nothing is loaded: the page's policy forbids both otherwise.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();

  const make = (name, text = "", attributes = {}) => {
    const element = document.createElement(name);
    element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  const said = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value !== "number") return String(value);
    const rounded = Number.isInteger(value) ? value : Number(value.toPrecision(4));
    return (Math.abs(rounded) >= 1e4 && Math.abs(rounded) < 1e15 ? rounded.toLocaleString("en") : String(rounded))
      .replaceAll("-", "\u2212");
  };

  // Charts: the values nearest to a step.

  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    return Math.abs(steps[high] - step) < Math.abs(steps[low] - step) ? high : low;
  };

  const valueAt = (line, step, several) => {
    const place = nearest(line.steps, step);
    const value = line.values[place] === null ? "not finite" : said(line.values[place]);
    const low = line.low && line.low[place];
    const band = low === null || low === undefined ? "" : ` (${said(low)} to ${said(line.high[place])})`;
    const repeats = line.n ? `, n = ${line.n[place]}` : "";
    return `${several ? line.name + " " : ""}${value}${band}${repeats}`;
  };

  const follow = (figure) => {
    const chart = data.charts[figure.dataset.chart];
    const drawing = figure.querySelector("svg");
    const cursor = figure.querySelector(".cursor");
    const readout = figure.querySelector(".readout");
    const [low, high] = chart.x;
    let at = null;
    const tell = (step) => {
      const lines = chart.lines.filter((line) => !hidden.has(line.arm));
      if (!lines.length) return;
      const longest = lines.reduce((one, other) => (other.steps.length > one.steps.length ? other : one));
      at = longest.steps[nearest(longest.steps, Math.min(high, Math.max(low, step)))];
      const x = data.left + (at - low) / (high - low) * (data.right - data.left);
      for (const key of ["x1", "x2"]) cursor.setAttribute(key, x);
      cursor.setAttribute("visibility", "visible");
      const there = lines.filter((line) => line.steps[0] <= at && at <= line.steps[line.steps.length - 1]);
      const values = there.map((line) => valueAt(line, at, chart.lines.length > 1));
      readout.textContent = `step ${said(at)}: ${values.join("; ")}`;
    };
    const point = (event) => {
      const box = drawing.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * data.width;
      tell(low + (x - data.left) / (data.right - data.left) * (high - low));
    };
    drawing.addEventListener("pointermove", point);
    drawing.addEventListener("pointerdown", point);
    figure.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way) return;
      event.preventDefault();
      const line = chart.lines.find((line) => !hidden.has(line.arm));
      if (!line) return;
      const jump = Math.max(1, Math.round(line.steps.length / 100));
      const place = at === null ? (way > 0 ? 0 : line.steps.length - 1) : nearest(line.steps, at) + way * jump;
      tell(line.steps[Math.min(line.steps.length - 1, Math.max(0, place))]);
    });
    const forget = () => { cursor.setAttribute("visibility", "hidden"); readout.textContent = ""; at = null; };
    drawing.addEventListener("pointerleave", forget);
    figure.addEventListener("blur", forget);
  };

  // Arms: hidden and shown in every drawing at once.

  const toggles = [];
  const switchArm = (arm) => {
    hidden.has(arm) ? hidden.delete(arm) : hidden.add(arm);
    const gone = hidden.has(arm);
    for (const part of document.querySelectorAll(`figure .arm${arm}`)) part.style.display = gone ? "none" : "";
    for (const toggle of toggles) if (toggle.arm === arm) toggle.button.setAttribute("aria-pressed", String(!gone));
  };

  const makeToggle = (key) => {
    const button = make("button", "", { type: "button", "aria-pressed": "true", class: "key" });
    const arm = Number(key.dataset.arm);
    button.append(...key.childNodes);
    button.addEventListener("click", () => switchArm(arm));
    toggles.push({ arm, button });
    key.replaceWith(button);
  };

  // Samples: what is known of a token.

  const tellTokens = (box) => {
    const numbers = data.samples[Number(box.dataset.sample)];
    const readout = box.parentElement.querySelector(".readout");
    let at = -1;
    const tell = (place) => {
      if (at >= 0) box.children[at].classList.remove("at");
      at = place;
      if (at < 0) { readout.textContent = ""; return; }
      box.children[at].classList.add("at");
      const parts = Object.entries(numbers).filter(([, values]) => values[at] !== null);
      const names = { sampler: "sampler's log-probability", version: "policy version" };
      const words = parts.map(([key, values]) => `${names[key] || key} ${said(values[at])}`);
      readout.textContent = `token ${at + 1}: ${words.join(", ")}`;
    };
    box.addEventListener("pointerover", (event) => {
      if (event.target.parentElement === box) tell(Array.prototype.indexOf.call(box.children, event.target));
    });
    box.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way || !box.children.length) return;
      event.preventDefault();
      tell(Math.min(box.children.length - 1, Math.max(0, at + way)));
    });
    box.addEventListener("blur", () => tell(-1));
  };

  // Folded parts that are alternatives: one at a time.

  const choices = [];
  const pageThrough = (box) => {
    const parts = [...box.children].filter((part) => part.matches("details"));
    if (parts.length < 2) return;
    const which = make("select", "", { "aria-label": box.dataset.what });
    const back = make("button", `previous ${box.dataset.what}`, { type: "button" });
    const on = make("button", `next ${box.dataset.what}`, { type: "button" });
    const controls = make("div", "", { class: "controls" });
    parts.forEach((part, place) => which.append(make("option", part.querySelector("summary").textContent, { value: place })));
    let at = Math.max(0, parts.findIndex((part) => part.open));
    const show = (place) => {
      at = place;
      which.value = place;
      parts.forEach((part, other) => { part.open = other === place; part.classList.toggle("shown", part.open); });
      back.disabled = at === 0;
      on.disabled = at === parts.length - 1;
    };
    which.addEventListener("change", () => show(Number(which.value)));
    back.addEventListener("click", () => show(at - 1));
    on.addEventListener("click", () => show(at + 1));
    controls.append(back, which, on);
    box.prepend(controls);
    box.classList.add("paged");
    choices.push(() => show(at));
    show(at);
  };

  // Predictions: all rows, some at a time.

  const PAGE = 25;
  const browse = (box) => {
    const which = make("select", "", { "aria-label": "eval" });
    data.predictions.forEach((set, place) => which.append(make("option", set.name, { value: place })));
    const order = make("select", "", { "aria-label": "order" });
    const search = make("input", "", { type: "search", placeholder: "find text", "aria-label": "find text" });
    const back = make("button", "previous", { type: "button" });
    const on = make("button", "next", { type: "button" });
    const where = make("span", "", { class: "note", "aria-live": "polite" });
    const controls = make("div", "", { class: "controls" });
    const body = make("div", "", { class: "scroll", tabindex: "0" });
    controls.append(which, order, search, back, on, where);
    let set, found, first;

    const row = (values) => {
      const line = make("tr");
      values.forEach((value) => {
        const text = said(value);
        const kind = typeof value === "number" ? "number" : text.length > 24 ? "long" : "short";
        const cell = make("td", "", { class: kind });
        cell.append(make("div", text, { dir: "auto" }));
        line.append(cell);
      });
      return line;
    };
    const show = () => {
      const table = make("table"), head = make("tr"), rows = make("tbody"), top = make("thead");
      set.keys.forEach((key) => head.append(make("th", key)));
      found.slice(first, first + PAGE).forEach((place) => rows.append(row(set.rows[place])));
      top.append(head);
      table.append(top, rows);
      body.replaceChildren(table);
      const last = Math.min(first + PAGE, found.length);
      const range = `rows ${said(first + 1)} to ${said(last)} of ${said(found.length)}`;
      where.textContent = found.length ? range : "no such rows";
      back.disabled = first === 0;
      on.disabled = last >= found.length;
    };
    const choose = () => {
      const wanted = search.value.toLowerCase();
      const last = order.value === "worst" ? Infinity : -Infinity;  // rows without a score
      const score = (place) => {
        const value = Number(set.rows[place][set.score] ?? NaN);
        return Number.isNaN(value) ? last : value;
      };
      found = set.rows.map((_, place) => place);
      if (order.value === "errors") found = found.filter((place) => set.rows[place][set.error] !== null);
      const has = (cell) => String(cell).toLowerCase().includes(wanted);
      if (wanted) found = found.filter((place) => set.rows[place].some(has));
      if (order.value === "worst") found.sort((a, b) => score(a) - score(b) || a - b);
      if (order.value === "best") found.sort((a, b) => score(b) - score(a) || a - b);
      first = 0;
      show();
    };
    const open = () => {
      set = data.predictions[Number(which.value)];
      const choices = [["", "in order"]];
      const score = set.keys[set.score];
      if (score) choices.push(["worst", `lowest ${score} first`], ["best", `highest ${score} first`]);
      if (set.error !== null) choices.push(["errors", "errors only"]);
      order.replaceChildren(...choices.map(([value, text]) => make("option", text, { value })));
      choose();
    };
    which.addEventListener("change", open);
    order.addEventListener("change", choose);
    search.addEventListener("input", choose);
    back.addEventListener("click", () => { first = Math.max(0, first - PAGE); show(); });
    on.addEventListener("click", () => { first += PAGE; show(); });
    which.hidden = data.predictions.length < 2;
    box.replaceChildren(controls, body);
    open();
  };

  document.querySelectorAll("figure[data-chart]").forEach(follow);
  document.querySelectorAll(".legend.arms .key").forEach(makeToggle);
  document.querySelectorAll(".tokens").forEach(tellTokens);
  document.querySelectorAll(".one-of").forEach(pageThrough);
  document.querySelectorAll(".predictions").forEach(browse);
  window.addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
  window.addEventListener("afterprint", () => { for (const chosen of choices) chosen(); });
})();
