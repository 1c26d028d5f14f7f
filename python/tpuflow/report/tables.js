"use strict";
// Tables that sort and filter. A filter is words that must all occur, and conditions such as cycles>10000 or unit=me; what
// cannot be understood is said beside the filter and left out of it.
function sortedTable(id, columns, rows, onRow, words) {
  const table = document.getElementById(id), filter = document.getElementById(id + "-filter"), count = document.getElementById(id + "-count");
  if (!table) return null;
  const head = table.tHead.insertRow(), body = table.tBodies[0];
  let order = 0, falling = false, shownRows = [];
  // What is no number stands before all numbers.
  const text = (value) => typeof value !== "number";
  const compare = (a, b) => text(b) - text(a) || (text(a) ? String(a).localeCompare(String(b)) : a - b);
  const made = rows.map((item, i) => {
    const row = document.createElement("tr"), values = columns.map((column) => column.value(item, i) ?? null);
    columns.forEach((column, c) => {
      const cell = row.insertCell(), value = values[c];
      if (column.kind) cell.className = column.kind;
      cell.textContent = value === null ? "" : typeof value === "string" ? value : column.text ? column.text(value) : whole.format(value);
      if (column.kind === "name") cell.title = value;
      column.more?.(cell, item, value);
    });
    if (onRow) {
      row.addEventListener("click", () => onRow(item, i));
      row.addEventListener("keydown", (event) => {
        const next = event.key === "ArrowDown" ? row.nextElementSibling : event.key === "ArrowUp" ? row.previousElementSibling : null;
        if (event.key === "Enter" || event.key === " ") onRow(item, i); else if (next) next.focus(); else return;
        event.preventDefault();
      });
    }
    return { row, values, text: words(item).join(" ").toLowerCase() };
  });
  const tests = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, "=": (a, b) => a === b, "!=": (a, b) => a !== b };
  const key = (column) => column.title.toLowerCase().replaceAll(" ", "").replace("×", "x");
  const isText = columns.map((column, c) => column.kind !== "number" && made.some(({ values }) => typeof values[c] === "string"));
  const wrong = document.getElementById(id + "-wrong");
  // A condition, or in words why there is none.
  function condition(word) {
    const parts = /^([^<>=!]+)(>=|<=|!=|>|<|=)(.*)$/.exec(word);
    if (!parts) return /[<>=]/.test(word) ? `"${word}": write a column, a comparison and a value, such as cycles>10000` : ({ text }) => text.includes(word);
    const [, name, sign, value] = parts, c = columns.findIndex((column) => key(column) === name.replace("×", "x").replaceAll("_", ""));
    if (c < 0) return `"${word}": unknown column "${name}"; columns: ${columns.map(key).join(", ")}`;
    if (isText[c]) {
      const known = [...new Set(made.map(({ values }) => values[c]).filter((one) => typeof one === "string").map((one) => one.toLowerCase()))].sort();
      if (sign !== "=" && sign !== "!=") return `"${word}": ${key(columns[c])} is text; use = or !=`;
      if (!known.includes(value)) return `"${word}": no ${key(columns[c])} is "${value}"` + (known.length <= 12 ? `; there are ${known.join(", ")}` : "");
      return ({ values }) => typeof values[c] === "string" && tests[sign](values[c].toLowerCase(), value);
    }
    const number = /^-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[km]?$/.test(value.replaceAll(",", ""))
      ? parseFloat(value.replaceAll(",", "")) * (value.endsWith("k") ? 1e3 : value.endsWith("m") ? 1e6 : 1) : NaN;
    const other = columns.findIndex((_, at) => isText[at] && made.some(({ values }) => String(values[at]).toLowerCase() === value));
    if (Number.isNaN(number)) return `"${word}": ${key(columns[c])} is a number and "${value}" is none` + (other < 0 ? "" : `; did you mean ${key(columns[other])}=${value}?`);
    return ({ values }) => typeof values[c] === "number" && tests[sign](values[c], number);
  }
  function arrange() {
    const conditions = filter.value.toLowerCase().split(/\s+/).filter(Boolean).map(condition);
    const errors = conditions.filter((one) => typeof one === "string");
    wrong.textContent = errors.join(" · "); wrong.hidden = !errors.length; filter.classList.toggle("wrong", errors.length > 0);
    const kept = made.filter((row) => conditions.every((one) => typeof one === "string" || one(row)));
    kept.sort(({ values: { [order]: a } }, { values: { [order]: b } }) =>
      (a === null) - (b === null) || (falling ? -1 : 1) * compare(a, b));  // what is not known comes last
    body.replaceChildren(...kept.map(({ row }) => row));
    if (onRow) kept.forEach(({ row }, i) => { row.tabIndex = i ? -1 : 0; });  // one stop of the tab key, arrows go on
    count.textContent = kept.length < made.length ? `${kept.length} of ${made.length}` : "";
    shownRows = kept;
    [...head.cells].forEach((cell, i) => {
      if (i === order) cell.setAttribute("aria-sort", falling ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
    });
  }
  columns.forEach((column, i) => {
    const cell = document.createElement("th"), button = document.createElement("button");
    button.type = "button"; button.textContent = column.title; button.title = column.hint ?? "";
    cell.scope = "col"; if (column.kind === "number") cell.className = "number";
    button.addEventListener("click", () => { falling = order === i ? !falling : column.kind === "number" && i > 0; order = i; arrange(); });
    cell.append(button); head.append(cell);
  });
  filter.addEventListener("input", arrange);
  arrange();
  const quoted = (value) => value === null ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
  const csv = () => [columns.map(key), ...shownRows.map(({ values }) => values)].map((line) => line.map(quoted).join(",") + "\n").join("");
  return { rows: made.map(({ row }) => row), csv };
}

// Hands a text to the browser as a file.
function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type })); link.download = name;
  root.dataset.downloaded = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

(() => {
  const [run, other] = page.runs;
  const length = (layer) => layer.end - layer.start;
  const longest = Math.max(1, ...run.layers.map(length));
  const fixed = (digits) => (value) => value.toFixed(digits);
  const number = (title, value, hint, text) => ({ title, value, hint, text, kind: "number" });
  const twins = other ? run.layers.map((_, i) => other.layers[other.ids.indexOf(run.ids[i])]) : [];
  const columns = [
    number("#", (_, i) => i),
    { title: "layer", value: (l) => l.name, kind: "name" },
    { title: "operator", value: (l) => l.op }, { title: "type", value: (l) => l.dtype },
    { title: "unit", value: (l) => page.units[l.unit] },
    number("start", (l) => l.start, "first cycle of its computing instructions"),
    { ...number("cycles", length, "from its first to its last cycle"), more: (cell, layer, value) => {
      const room = document.createElement("span"), part = document.createElement("span");
      room.className = "room"; part.className = "part"; part.style.width = (value / longest * 60).toFixed(1) + "px";
      part.style.background = `var(--${layer.unit})`; room.append(part); cell.append(room);
    } },
    number("busy", (l) => l.busy, "cycles in which its unit computed"),
    number("MAC", (l) => l.macs),
    number("bound", (l) => l.bound, "cycles no program can go below for this layer alone"),
    number("×", (l) => l.bound ? length(l) / l.bound : null, "cycles over bound", fixed(2)),
    { title: "binding", value: (l) => l.binding, hint: "what the bound of this layer alone is of", more: (cell, layer) => { cell.title = page.bounds[layer.binding] ?? ""; } },
  ];
  if (run.layers.some((layer) => layer.ddr !== undefined)) columns.splice(9, 0, number("DDR", (l) => l.ddr, "bytes moved from and to external memory for it", sizeText));
  if (run.layers.some((layer) => layer.microjoules !== undefined)) columns.push(number("µJ", (l) => l.microjoules, "energy of the layer, without cache and static power", (value) => value.toPrecision(3)));
  if (run.layers.some((layer) => layer.cosine !== undefined)) columns.push(number("cosine", (l) => l.cosine, "similarity of its result with the float network", fixed(4)));
  if (twins.some((layer) => layer?.cosine !== undefined)) columns.push(number(`cosine ${other.letter}`, (_, i) => twins[i]?.cosine, `the same in run ${other.letter}`, fixed(4)));
  if (other) {
    columns.splice(7, 0, number(`cycles ${other.letter}`, (_, i) => twins[i] && length(twins[i]), `cycles in run ${other.letter}`),
      number(`${other.letter}/${run.letter}`, (l, i) => twins[i] && length(l) ? length(twins[i]) / length(l) : null, "below 1: the second run is faster", fixed(2)));
  }
  columns.splice(columns.findIndex((column) => column.title === "busy"), 0,
    { title: "limited by", value: (l) => l.why, kind: "name", hint: "what took the largest part of its time" });
  const { rows, csv } = sortedTable("layers", columns, run.layers, (_, i) => mark(run.ids[i]),
    (layer) => [layer.name, layer.op, layer.dtype, page.units[layer.unit], layer.binding, layer.why]);
  const name = String(run.figures.program).replace(/[^\w.-]+/g, "_") || "run";
  document.getElementById("download-csv").addEventListener("click", () => download(name + ".layers.csv", "text/csv", csv()));
  document.getElementById("download-json").addEventListener("click", () =>
    download(name + ".json", "application/json", JSON.stringify({ ...run.figures, layers: run.layers }, null, 1)));
  marking.listeners.push((id, source) => rows.forEach((row, i) => {
    row.classList.toggle("marked", run.ids[i] === id);
    if (run.ids[i] !== id || source !== "step") return;
    // Only the table scrolls: whoever steps through the charts wants to go on seeing them.
    const frame = row.closest(".scroll"), head = row.closest("table").tHead.offsetHeight;
    if (row.offsetTop - head < frame.scrollTop || row.offsetTop + row.offsetHeight > frame.scrollTop + frame.clientHeight) frame.scrollTop = row.offsetTop - head;
  }));

  const picture = document.getElementById("histogram");
  const known = (key) => page.tensors.some((tensor) => tensor[key] !== undefined);
  const branches = Math.max(0, ...page.tensors.map((tensor) => tensor.compared?.length ?? 0));
  // Columns of one comparison; with two of them each has the letter of its run.
  const compared = (branch) => {
    const letter = branches > 1 ? " " + page.runs[branch].letter : "", of = (t) => t.compared?.[branch] ?? {};
    const measure = (title, key, digits, hint) => number(title + letter, (t) => of(t)[key], hint, fixed(digits));
    const program = { title: "program" + letter, value: (t) => of(t).equal === undefined ? null : of(t).equal ? "equal" : "DIFFERENT" };
    const seen = (key) => page.tensors.some((tensor) => of(tensor)[key] !== undefined);
    return [...(seen("cosine") ? [measure("cosine", "cosine", 4, "cosine similarity of the graph with the normalised network"),
      measure("euclid", "euclid", 4, "Euclidean similarity of the graph with the normalised network"),
      measure("SQNR", "sqnr", 1, "decibels"), measure("max error", "error", 4)] : []), ...(seen("equal") ? [program] : [])];
  };
  const tensorColumns = [
    number("#", (_, i) => i), { title: "tensor", value: (t) => t.name, kind: "name" },
    ...(known("imported") ? [number("import", (t) => t.imported, "cosine similarity of the normalised with the original network", fixed(4))] : []),
    ...Array.from({ length: branches }, (_, branch) => compared(branch)).flat(),
    ...(known("path") ? [
      { ...number("low", (t) => t.low, "chosen threshold", fixed(4)) }, { ...number("high", (t) => t.high, "chosen threshold", fixed(4)) },
      number("beyond", (t) => t.beyond, "values outside the thresholds"),
      { title: "distribution", value: () => "", more: (cell, t) => { if (t.path) cell.append(histogram(t, 130, 24)); } },
    ] : []),
  ];
  // A browser that reads this as HTML knows that it is SVG.
  const empty = document.createElement("template");
  empty.innerHTML = '<svg class="histogram" viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true"><path/><line y1="0" y2="1"/><line y1="0" y2="1"/></svg>';
  function histogram(tensor, width, height) {
    const svg = empty.content.firstChild.cloneNode(true), [path, ...lines] = svg.children;
    svg.setAttribute("width", width); svg.setAttribute("height", height); path.setAttribute("d", tensor.path);
    lines.forEach((line, i) => { line.setAttribute("x1", tensor.marks[i]); line.setAttribute("x2", tensor.marks[i]); });
    return svg;
  }
  sortedTable("tensors", tensorColumns, page.tensors, known("path") ? (tensor) => {
    if (!tensor.path) { picture.replaceChildren(); return; }
    const text = document.createElement("p");
    text.textContent = `${tensor.name}: ${whole.format(tensor.count)} values from ${tensor.least} to ${tensor.most}; thresholds ${tensor.low} and ${tensor.high}, ${whole.format(tensor.beyond)} beyond. Bars are logarithms of counts.`;
    picture.replaceChildren(histogram(tensor, "100%", 160), text);
  } : null, (tensor) => [tensor.name]);
})();

// Where there are no charts, the tables are all there is to wait for.
if (!document.getElementById("charts")) root.dataset.ready = performance.now().toFixed(0);
