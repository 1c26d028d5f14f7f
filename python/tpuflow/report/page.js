"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const number = new Intl.NumberFormat("en-US");
  const style = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const cycles = Math.max(1, data.cycles);
  const microseconds = (count) => (count * 1e6 / data.clock).toLocaleString("en-US", { maximumFractionDigits: 2 });
  const size = (bytes) => bytes < 1024 ? bytes + " B" : bytes < 1048576 ? (bytes / 1024).toFixed(1) + " KiB" : (bytes / 1048576).toFixed(2) + " MiB";

  // Light or dark: what the system says until the button is used.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const paintTheme = () => { root.dataset.theme = chosen ?? (dark.matches ? "dark" : "light"); };
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark"; paintTheme(); draw();
  });
  dark.addEventListener("change", () => { paintTheme(); draw(); });
  paintTheme();

  // Slices arrive as columns, starts as differences.
  const units = Object.keys(data.units);
  const lanes = units.map((unit) => {
    const lane = data.lanes[unit];
    const start = new Float64Array(lane.start.length), end = new Float64Array(lane.start.length);
    let at = 0, longest = 0;
    lane.start.forEach((step, i) => {
      at += step; start[i] = at; end[i] = at + lane.length[i]; longest = Math.max(longest, lane.length[i]);
    });
    return { unit, start, end, longest, layer: lane.layer, phase: lane.phase, text: lane.text, moved: lane.moved };
  });
  const execute = data.phases.indexOf("execute");

  // One window on time for all charts.
  const left = 58, right = 8;
  let from = 0, to = cycles, hover = null, marked = -1;
  const canvases = ["units", "cache", "traffic"].map((id) => document.getElementById(id));
  const width = () => canvases[0].clientWidth - left - right;
  const x = (cycle) => left + (cycle - from) / (to - from) * width();
  const cycleAt = (px) => from + (px - left) / width() * (to - from);

  function context(canvas) {
    const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = Number(canvas.dataset.height ??= canvas.getAttribute("height"));
    canvas.style.height = h + "px";
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
    }
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = "12px system-ui, sans-serif";
    return [g, w, h];
  }

  function ticks(span, wanted) {
    const raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw));
    return Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw));
  }

  function timeAxis(g, w, top, bottom, labels) {
    g.strokeStyle = style("grid"); g.fillStyle = style("soft"); g.lineWidth = 1;
    const step = ticks(to - from, width() / 110);
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const px = Math.round(x(t)) + .5;
      g.beginPath(); g.moveTo(px, top); g.lineTo(px, bottom); g.stroke();
      if (labels) {
        g.textAlign = px > w - 46 ? "right" : px < left + 20 ? "left" : "center";
        g.fillText(number.format(t), px, bottom + 14);
      }
    }
  }

  // First slice that may reach into the window; starts are sorted, ends nearly so.
  function firstIn(lane) {
    let low = 0, high = lane.start.length;
    const wanted = from - lane.longest;
    while (low < high) { const mid = (low + high) >> 1; if (lane.start[mid] < wanted) low = mid + 1; else high = mid; }
    return low;
  }

  const laneTop = (i) => 6 + i * 32, laneHeight = 24;

  function drawUnits() {
    const [g, w, h] = context(canvases[0]);
    const bottom = laneTop(lanes.length);
    timeAxis(g, w, 0, bottom, true);
    g.save();
    lanes.forEach((lane, i) => {
      g.fillStyle = style("text"); g.textAlign = "left"; g.textBaseline = "middle";
      g.fillText(data.units[lane.unit], 4, laneTop(i) + laneHeight / 2);
      g.fillStyle = style("track"); g.fillRect(left, laneTop(i), width(), laneHeight);
    });
    g.beginPath(); g.rect(left, 0, width(), h); g.clip();
    lanes.forEach((lane, i) => {
      const colour = style(lane.unit), top = laneTop(i);
      for (let k = firstIn(lane); k < lane.start.length && lane.start[k] < to; k++) {
        if (lane.end[k] <= from) continue;
        const a = Math.max(left, x(lane.start[k])), b = Math.min(left + width(), x(lane.end[k]));
        const other = marked >= 0 && lane.layer[k] !== marked;
        const full = lane.phase[k] === execute;
        g.globalAlpha = (other ? .15 : 1) * (full ? (lane.layer[k] % 2 ? .72 : 1) : .3);
        g.fillStyle = colour;
        const inset = full ? 0 : 8;
        g.fillRect(a, top + inset, Math.max(b - a - (b - a > 4 ? .6 : 0), .6), laneHeight - 2 * inset);
        if (full && b - a > 60) {
          g.globalAlpha = other ? .4 : 1; g.fillStyle = "#fff"; g.textAlign = "left"; g.textBaseline = "middle";
          const name = data.layers[lane.layer[k]].name, room = Math.floor((b - a - 10) / 6.4);
          g.fillText(name.length > room ? "…" + name.slice(-Math.max(1, room - 1)) : name, a + 5, top + laneHeight / 2);
        }
      }
    });
    g.restore(); g.textBaseline = "alphabetic"; crosshair(g, h - 24);
  }

  // Only the banks that are used are drawn.
  const usedBytes = Math.max(1, ...data.allocations.map(([, address, bytes]) => address + bytes));
  const cacheBanks = Math.min(data.cache.banks, Math.max(2, Math.ceil(usedBytes / data.cache.bank)));
  const cacheTop = cacheBanks * data.cache.bank;
  document.getElementById("banks").textContent = cacheBanks < data.cache.banks ? `the first ${cacheBanks} of ${data.cache.banks} banks` : `${cacheBanks} banks`;
  const hues = new Map();
  function tensorColour(name, isDark) {
    if (!hues.has(name)) hues.set(name, (hues.size * 137.508) % 360);
    const weights = name.startsWith("weights of ");
    return `hsl(${hues.get(name)} ${weights ? 18 : 58}% ${isDark ? (weights ? 42 : 52) : (weights ? 74 : 64)}%)`;
  }

  function drawCache() {
    const [g, w, h] = context(canvases[1]);
    const bottom = h - 4, isDark = root.dataset.theme === "dark";
    const y = (address) => bottom - address / cacheTop * (bottom - 6);
    g.fillStyle = style("track"); g.fillRect(left, 6, width(), bottom - 6);
    timeAxis(g, w, 6, bottom, false);
    g.save(); g.beginPath(); g.rect(left, 0, width(), h); g.clip();
    for (const [name, address, bytes, start, end] of data.allocations) {
      if (end <= from || start >= to) continue;
      const a = x(Math.max(start, from)), b = x(Math.min(end, to)), top = y(address + bytes), tall = y(address) - top;
      g.globalAlpha = hover?.tensor && hover.tensor !== name ? .45 : 1;
      g.fillStyle = tensorColour(name, isDark);
      g.fillRect(a, Math.min(top, top + tall - 2), Math.max(b - a - .5, .6), Math.max(tall - .5, 2));
    }
    g.restore(); g.globalAlpha = 1;
    g.strokeStyle = style("line"); g.fillStyle = style("soft"); g.textAlign = "left"; g.textBaseline = "middle";
    const every = Math.max(1, Math.round(cacheBanks / 8));
    for (let bank = 0; bank <= cacheBanks; bank += every) {
      const py = Math.round(y(bank * data.cache.bank)) + .5;
      g.globalAlpha = .8; g.beginPath(); g.moveTo(left, py); g.lineTo(left + width(), py); g.stroke(); g.globalAlpha = 1;
      if (bank < cacheBanks) g.fillText("bank " + bank, 4, py - 8);
    }
    g.textBaseline = "alphabetic"; crosshair(g, h);
  }

  // Bytes of every transfer spread evenly over its cycles, gathered by pixel.
  function drawTraffic() {
    const [g, w, h] = context(canvases[2]);
    const bottom = h - 20, columns = Math.max(1, Math.floor(width())), per = (to - from) / columns;
    const read = new Float64Array(columns), write = new Float64Array(columns);
    for (const lane of lanes) {
      if (!lane.moved.length) continue;
      for (let k = firstIn(lane); k < lane.start.length && lane.start[k] < to; k++) {
        const moved = lane.moved[k];
        if (!moved || lane.end[k] <= from) continue;
        const rate = Math.abs(moved) / Math.max(1, lane.end[k] - lane.start[k]), into = moved > 0 ? read : write;
        const a = Math.max(lane.start[k], from), b = Math.min(lane.end[k], to);
        const last = Math.min(columns - 1, Math.floor((b - from) / per));
        for (let c = Math.floor((a - from) / per); c <= last; c++) {
          const overlap = Math.min(b, from + (c + 1) * per) - Math.max(a, from + c * per);
          if (overlap > 0) into[c] += rate * overlap / per;
        }
      }
    }
    let top = 1;
    for (let c = 0; c < columns; c++) top = Math.max(top, read[c] + write[c]);
    const step = ticks(top, 3), y = (value) => bottom - value / top * (bottom - 8);
    timeAxis(g, w, 6, bottom, true);
    g.textBaseline = "middle"; g.textAlign = "right"; g.strokeStyle = style("grid");
    for (let value = 0; value <= top; value += step) {
      g.fillStyle = style("soft"); g.fillText(number.format(value), left - 8, y(value));
      g.beginPath(); g.moveTo(left, y(value)); g.lineTo(left + width(), y(value)); g.stroke();
    }
    for (let c = 0; c < columns; c++) {
      g.fillStyle = style("read"); g.fillRect(left + c, y(read[c]), 1, bottom - y(read[c]));
      g.fillStyle = style("write"); g.fillRect(left + c, y(read[c] + write[c]), 1, y(read[c]) - y(read[c] + write[c]));
    }
    g.textBaseline = "alphabetic"; crosshair(g, bottom);
  }

  function crosshair(g, bottom) {
    if (!hover) return;
    const px = Math.round(hover.px) + .5;
    g.globalAlpha = .5; g.strokeStyle = style("mark"); g.beginPath(); g.moveTo(px, 0); g.lineTo(px, bottom); g.stroke(); g.globalAlpha = 1;
  }

  let waiting = false;
  function draw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawUnits(); drawCache(); drawTraffic(); });
  }

  function show(start, end) {
    const span = Math.min(cycles, Math.max(20, end - start));
    from = Math.min(Math.max(0, start), cycles - span); to = from + span; draw();
  }
  const zoom = (factor, cycle) => show(cycle - (cycle - from) * factor, cycle + (to - cycle) * factor);

  function sliceAt(px, py) {
    const i = lanes.findIndex((_, i) => py >= laneTop(i) && py < laneTop(i) + laneHeight);
    if (i < 0) return null;
    const lane = lanes[i], cycle = cycleAt(px), reach = (to - from) / width();
    let best = -1;
    for (let k = firstIn(lane); k < lane.start.length && lane.start[k] <= cycle + reach; k++) {
      if (lane.end[k] < cycle - reach) continue;
      if (best < 0 || lane.phase[k] === execute || lane.phase[best] !== execute) best = k;
    }
    return best < 0 ? null : { lane, k: best };
  }

  function allocationAt(px, py, canvas) {
    const h = Number(canvas.dataset.height), bottom = h - 4, cycle = cycleAt(px);
    const address = (bottom - py) / (bottom - 6) * cacheTop, reach = 3 / (bottom - 6) * cacheTop;
    const near = (at, bytes) => Math.max(at - address, address - at - bytes, 0);
    return data.allocations
      .filter(([, at, bytes, start, end]) => cycle >= start && cycle < end && near(at, bytes) <= reach)
      .sort((p, q) => near(p[1], p[2]) - near(q[1], q[2]))[0];
  }

  const tip = document.getElementById("tip"), charts = document.getElementById("charts");
  function showTip(event, lines) {
    tip.replaceChildren();
    lines.forEach((line, i) => { const e = document.createElement(i ? "span" : "b"); e.textContent = line; tip.append(e); });
    tip.hidden = false;
    const box = charts.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    tip.style.left = Math.min(px + 14, box.width - tip.offsetWidth - 4) + "px";
    tip.style.top = (py + 18 + tip.offsetHeight > box.height ? py - tip.offsetHeight - 10 : py + 18) + "px";
  }

  let drag = null;
  canvases.forEach((canvas, which) => {
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(from + event.deltaX / width() * (to - from), to + event.deltaX / width() * (to - from));
      else zoom(Math.exp(event.deltaY * .0015), cycleAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { px: event.offsetX, from, to, moved: false }; canvas.setPointerCapture(event.pointerId); charts.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved && which === 0) { const found = sliceAt(event.offsetX, event.offsetY); mark(found ? found.lane.layer[found.k] : -1); }
      drag = null;
    });
    canvas.addEventListener("dblclick", () => show(0, cycles));
    canvas.addEventListener("pointerleave", () => { hover = null; tip.hidden = true; draw(); });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const shift = (drag.px - event.offsetX) / width() * (drag.to - drag.from);
        drag.moved ||= Math.abs(drag.px - event.offsetX) > 3;
        if (drag.moved) { tip.hidden = true; show(drag.from + shift, drag.to + shift); return; }
      }
      hover = event.offsetX >= left ? { px: event.offsetX, tensor: null } : null;
      const cycle = Math.floor(cycleAt(event.offsetX));
      let lines = null;
      if (which === 0) {
        const found = sliceAt(event.offsetX, event.offsetY);
        if (found) {
          const { lane, k } = found, layer = data.layers[lane.layer[k]];
          lines = [layer.name, `${data.units[lane.unit]} ${data.phases[lane.phase[k]]}s: ${data.texts[lane.text[k]]}`,
            `cycles ${number.format(lane.start[k])} to ${number.format(lane.end[k])} (${number.format(lane.end[k] - lane.start[k])}, ${microseconds(lane.end[k] - lane.start[k])} µs)`,
            `${layer.op}, ${layer.dtype}`];
        }
      } else if (which === 1) {
        const found = allocationAt(event.offsetX, event.offsetY, canvas);
        if (found) {
          const [name, address, bytes, start, end] = found;
          if (hover) hover.tensor = name;
          lines = [name, `${size(bytes)}, banks ${Math.floor(address / data.cache.bank)} to ${Math.floor((address + bytes - 1) / data.cache.bank)}`,
            `cycles ${number.format(start)} to ${number.format(end)}`];
        }
      }
      if (lines) showTip(event, lines);
      else if (hover) showTip(event, [`cycle ${number.format(Math.max(0, cycle))}`, `${microseconds(Math.max(0, cycle))} µs`]);
      else tip.hidden = true;
      draw();
    });
  });
  charts.addEventListener("keydown", (event) => {
    const middle = (from + to) / 2, step = (to - from) / 5;
    if (event.key === "+" || event.key === "=") zoom(.7, middle);
    else if (event.key === "-") zoom(1 / .7, middle);
    else if (event.key === "ArrowLeft") show(from - step, to - step);
    else if (event.key === "ArrowRight") show(from + step, to + step);
    else if (event.key === "Escape") { mark(-1); show(0, cycles); }
    else return;
    event.preventDefault();
  });

  // The table of layers.
  const longest = Math.max(1, ...data.layers.map((layer) => layer.end - layer.start));
  const columns = [
    ["#", (_, i) => i, "number"], ["layer", (l) => l.name, "layer"], ["operator", (l) => l.op], ["type", (l) => l.dtype],
    ["unit", (l) => data.units[l.unit]], ["start", (l) => l.start, "number"], ["cycles", (l) => l.end - l.start, "number"],
    ["at work", (l) => l.busy, "number"], ["MAC", (l) => l.macs, "number"], ["bound", (l) => l.bound, "number"],
    ["×", (l) => l.bound ? (l.end - l.start) / l.bound : 0, "number"], ["binding", (l) => l.binding],
  ];
  const head = document.querySelector("#layers thead"), body = document.querySelector("#layers tbody");
  let order = 0, falling = false;
  const rows = data.layers.map((layer, i) => {
    const row = document.createElement("tr");
    for (const [title, value, kind] of columns) {
      const cell = row.insertCell(), content = value(layer, i);
      if (kind) cell.className = kind;
      cell.textContent = title === "×" ? (content ? content.toFixed(2) : "") : typeof content === "number" ? number.format(content) : content;
      if (kind === "layer") cell.title = content;
      if (title === "cycles") {
        const room = document.createElement("span"), part = document.createElement("span");
        room.className = "room"; part.className = "part"; part.style.width = (content / longest * 60).toFixed(1) + "px";
        part.style.background = `var(--${layer.unit})`; room.append(part); cell.append(room);
      }
    }
    row.addEventListener("click", () => {
      mark(marked === i ? -1 : i);
      const pad = (layer.end - layer.start) * .3 + 10;
      if (marked === i && layer.end > layer.start && (layer.end < from || layer.start > to)) show(layer.start - pad, layer.end + pad);
    });
    return { row, layer, values: columns.map(([, value]) => value(layer, i)), text: [layer.name, layer.op, layer.dtype, layer.unit].join(" ").toLowerCase() };
  });
  function mark(layer) {
    marked = layer; rows.forEach(({ row }, i) => row.classList.toggle("marked", i === marked)); draw();
  }
  function arrange() {
    const wanted = document.getElementById("filter").value.trim().toLowerCase();
    const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
    const shown = rows.filter(({ text }) => text.includes(wanted)).sort((a, b) => (falling ? -1 : 1) * compare(a.values[order], b.values[order]));
    body.replaceChildren(...shown.map(({ row }) => row));
    [...head.rows[0].cells].forEach((cell, i) => {
      if (i === order) cell.setAttribute("aria-sort", falling ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
    });
  }
  const titles = head.insertRow();
  columns.forEach(([title, , kind], i) => {
    const cell = document.createElement("th");
    cell.textContent = title; cell.scope = "col"; if (kind === "number") cell.className = "number";
    cell.addEventListener("click", () => { falling = order === i ? !falling : kind === "number" && i > 0; order = i; arrange(); });
    titles.append(cell);
  });
  document.getElementById("filter").addEventListener("input", arrange);
  arrange();
  window.addEventListener("resize", draw);
  draw();
})();
