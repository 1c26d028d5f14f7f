"use strict";
// Units, cache and traffic over time: canvases that share one window on time.
(() => {
  const runs = page.runs.filter((run) => run.lanes);
  if (!runs.length) return;
  const box = document.getElementById("charts"), tip = document.getElementById("tip"), said = document.getElementById("said");
  const canvases = { units: document.getElementById("units"), cache: document.getElementById("cache"), traffic: document.getElementById("traffic") };
  const reduced = matchMedia("(prefers-reduced-motion: reduce)");

  // Machines of unlike clocks are drawn over nanoseconds, all others over cycles.
  const sameClock = runs.every((run) => run.clock === runs[0].clock), unit = sameClock ? "cycles" : "ns";
  const execute = page.phases.indexOf("execute");
  for (const run of runs) {
    run.scale = sameClock ? 1 : 1e9 / run.clock;
    run.lanes = Object.entries(run.lanes).map(([name, lane]) => decoded(run, name, lane));
    run.end = Math.max(1, run.cycles * run.scale);
    run.top = usedBanks(run);
  }
  const lanes = runs.flatMap((run) => run.lanes), total = Math.max(...runs.map((run) => run.end));
  let from = 0, to = total, hover = null, shown = runs[0], least = Math.min(20, total);

  // Slices arrive as columns, starts as differences.
  function decoded(run, name, lane) {
    const count = lane.start.length, start = new Float64Array(count), end = new Float64Array(count);
    let at = 0, longest = 0;
    for (let i = 0; i < count; i++) {
      at += lane.start[i];
      start[i] = at * run.scale; end[i] = (at + lane.length[i]) * run.scale;
      longest = Math.max(longest, end[i] - start[i]);
    }
    return { run, name, start, end, longest, layer: lane.layer, phase: lane.phase, text: lane.text, moved: lane.moved, drawn: 0 };
  }

  // Only the banks that are used are drawn.
  function usedBanks(run) {
    let used = 1;
    for (const [, address, bytes] of run.allocations) used = Math.max(used, address + bytes);
    return Math.min(run.cache.banks, Math.max(2, Math.ceil(used / run.cache.bank))) * run.cache.bank;
  }

  const left = 66, right = 8;
  const width = () => Math.max(1, canvases.units.clientWidth - left - right);
  const x = (time) => left + (time - from) / (to - from) * width();
  const timeAt = (px) => from + (px - left) / width() * (to - from);
  const timeText = (time, run) => sameClock
    ? `cycle ${whole.format(Math.max(0, Math.floor(time)))}, ${(time * 1e6 / runs[0].clock).toLocaleString("en-US", { maximumFractionDigits: 2 })} µs`
    : `${whole.format(Math.round(time))} ns${run ? `, cycle ${whole.format(Math.floor(time / run.scale))}` : ""}`;

  // Lanes of a second run stand below those of the first.
  const rowHeight = runs.length > 1 ? 24 : 31, laneHeight = rowHeight - 7, between = 14;
  const laneTop = (i) => 6 + i * rowHeight + Math.floor(i / 5) * between;
  canvases.units.dataset.height = laneTop(lanes.length - 1) + rowHeight + 18;

  function context(canvas) {
    const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth;
    const h = Number(canvas.dataset.height ??= canvas.getAttribute("height"));
    canvas.style.height = h + "px";
    const wide = Math.round(w * ratio), high = Math.round(h * ratio);
    if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = "12px system-ui, sans-serif";
    return [g, w, h];
  }

  function ticks(span, wanted) {
    const raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw));
    return Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw * .999));
  }

  function timeAxis(g, w, top, bottom, labels) {
    g.strokeStyle = colours.of("grid"); g.fillStyle = colours.of("soft"); g.lineWidth = 1;
    const step = ticks(to - from, width() / 110);
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const px = Math.round(x(t)) + .5;
      g.beginPath(); g.moveTo(px, top); g.lineTo(px, bottom); g.stroke();
      if (labels) {
        g.textAlign = px > w - 46 ? "right" : px < left + 20 ? "left" : "center";
        g.fillText(whole.format(t), px, bottom + 14);
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

  function drawUnits() {
    const [g, w, h] = context(canvases.units), bottom = h - 18;
    timeAxis(g, w, 0, bottom, true);
    g.textBaseline = "middle"; g.textAlign = "left";
    lanes.forEach((lane, i) => {
      g.fillStyle = colours.of("text");
      g.fillText((runs.length > 1 ? lane.run.letter + " " : "") + page.units[lane.name], 4, laneTop(i) + laneHeight / 2);
      g.fillStyle = colours.of("track"); g.fillRect(left, laneTop(i), width(), laneHeight);
    });
    g.save();
    g.beginPath(); g.rect(left, 0, width(), h); g.clip();
    lanes.forEach((lane, i) => drawLane(g, lane, laneTop(i)));
    g.restore(); g.textBaseline = "alphabetic"; crosshair(g, bottom);
    canvases.units.dataset.drawn = JSON.stringify(lanes.map((lane) => [lane.run.letter, lane.name, lane.drawn]));
  }

  function drawLane(g, lane, top) {
    const colour = colours.of(lane.name), edge = left + width();
    lane.drawn = 0;
    for (let k = firstIn(lane); k < lane.start.length && lane.start[k] < to; k++) {
      if (lane.end[k] <= from && lane.end[k] > lane.start[k]) continue;
      const a = Math.max(left, x(lane.start[k])), b = Math.min(edge, x(lane.end[k]));
      const id = lane.run.ids[lane.layer[k]], other = marking.id >= 0 && id !== marking.id;
      const full = lane.phase[k] === execute, inset = full ? 0 : laneHeight / 3;
      g.globalAlpha = (other ? .15 : 1) * (full ? (lane.layer[k] % 2 ? .72 : 1) : .3);
      g.fillStyle = colour;
      g.fillRect(a, top + inset, Math.max(b - a - (b - a > 4 ? .6 : 0), .6), laneHeight - 2 * inset);
      lane.drawn++;
      if (full && b - a > 60) {
        g.globalAlpha = other ? .4 : 1; g.fillStyle = "#fff"; g.textAlign = "left";
        const name = lane.run.layers[lane.layer[k]].name, room = Math.floor((b - a - 10) / 6.4);
        g.fillText(name.length > room ? "…" + name.slice(-Math.max(1, room - 1)) : name, a + 5, top + laneHeight / 2);
      }
    }
  }

  const hues = new Map();
  function tensorColour(name) {
    if (!hues.has(name)) hues.set(name, (hues.size * 137.508) % 360);
    const weights = name.startsWith("weights of ");
    const light = colours.dark ? (weights ? 42 : 52) : (weights ? 74 : 64);
    return `hsl(${hues.get(name)} ${weights ? 18 : 58}% ${light}%)`;
  }

  function drawCache() {
    const [g, w, h] = context(canvases.cache), bottom = h - 4, bank = shown.cache.bank, banks = Math.round(shown.top / bank);
    const y = (address) => bottom - address / shown.top * (bottom - 6);
    g.fillStyle = colours.of("track"); g.fillRect(left, 6, width(), bottom - 6);
    timeAxis(g, w, 6, bottom, false);
    g.save(); g.beginPath(); g.rect(left, 0, width(), h); g.clip();
    let drawn = 0;
    for (const [name, address, bytes, first, last] of shown.allocations) {
      const start = first * shown.scale, end = last * shown.scale;
      if (end <= from || start >= to) continue;
      const a = x(Math.max(start, from)), b = x(Math.min(end, to)), top = y(address + bytes), tall = y(address) - top;
      g.globalAlpha = hover?.tensor && hover.tensor !== name ? .45 : 1;
      g.fillStyle = tensorColour(name);
      g.fillRect(a, Math.min(top, top + tall - 2), Math.max(b - a - .5, .6), Math.max(tall - .5, 2));
      drawn++;
    }
    g.restore(); g.globalAlpha = 1;
    g.strokeStyle = colours.of("line"); g.fillStyle = colours.of("soft"); g.textAlign = "left"; g.textBaseline = "middle";
    const every = Math.max(1, Math.round(banks / 8));
    for (let number = 0; number <= banks; number += every) {
      const py = Math.round(y(number * bank)) + .5;
      g.globalAlpha = .8; g.beginPath(); g.moveTo(left, py); g.lineTo(left + width(), py); g.stroke(); g.globalAlpha = 1;
      if (number < banks) g.fillText("bank " + number, 4, py - 8);
    }
    g.textBaseline = "alphabetic"; crosshair(g, bottom);
    canvases.cache.dataset.drawn = drawn;
    document.getElementById("banks").textContent = banks < shown.cache.banks ? `the first ${banks} of ${shown.cache.banks} banks` : `${banks} banks`;
  }

  // Bytes of every transfer spread evenly over its cycles, gathered by pixel.
  let gathered = null;
  function gather() {
    const columns = Math.max(1, Math.floor(width())), per = (to - from) / columns;
    const read = new Float64Array(columns), write = new Float64Array(columns);
    for (const lane of shown.lanes) {
      if (!lane.moved.length) continue;
      for (let k = firstIn(lane); k < lane.start.length && lane.start[k] < to; k++) {
        const moved = lane.moved[k];
        if (!moved || lane.end[k] <= from) continue;
        const rate = Math.abs(moved) * shown.scale / Math.max(1, lane.end[k] - lane.start[k]), into = moved > 0 ? read : write;
        const a = Math.max(lane.start[k], from), b = Math.min(lane.end[k], to);
        const last = Math.min(columns - 1, Math.floor((b - from) / per));
        for (let c = Math.floor((a - from) / per); c <= last; c++) {
          const overlap = Math.min(b, from + (c + 1) * per) - Math.max(a, from + c * per);
          if (overlap > 0) into[c] += rate * overlap / per;
        }
      }
    }
    return { read, write, columns };
  }

  function drawTraffic() {
    const [g, w, h] = context(canvases.traffic), bottom = h - 20;
    const { read, write, columns } = gathered = gather();
    let top = Math.max(1, shown.bandwidth);
    for (let c = 0; c < columns; c++) top = Math.max(top, read[c] + write[c]);
    const step = ticks(top, 3), y = (value) => bottom - value / top * (bottom - 8);
    timeAxis(g, w, 6, bottom, true);
    g.textBaseline = "middle"; g.textAlign = "right"; g.strokeStyle = colours.of("grid");
    for (let value = 0; value <= top; value += step) {
      g.fillStyle = colours.of("soft"); g.fillText(whole.format(value), left - 8, y(value));
      g.beginPath(); g.moveTo(left, y(value)); g.lineTo(left + width(), y(value)); g.stroke();
    }
    for (const [values, below, name] of [[read, null, "read"], [write, read, "write"]]) {
      g.fillStyle = colours.of(name);
      for (let c = 0; c < columns; c++) {
        const base = below ? below[c] : 0;
        if (values[c]) g.fillRect(left + c, y(base + values[c]), 1, y(base) - y(base + values[c]));
      }
    }
    if (shown.bandwidth) {
      g.strokeStyle = colours.of("warn"); g.setLineDash([5, 4]); g.beginPath();
      g.moveTo(left, y(shown.bandwidth)); g.lineTo(left + width(), y(shown.bandwidth)); g.stroke(); g.setLineDash([]);
    }
    g.textBaseline = "alphabetic"; crosshair(g, bottom);
  }

  function crosshair(g, bottom) {
    band(g, bottom);
    if (!hover) return;
    const px = Math.round(hover.px) + .5;
    g.globalAlpha = .5; g.strokeStyle = colours.of("mark"); g.beginPath(); g.moveTo(px, 0); g.lineTo(px, bottom); g.stroke(); g.globalAlpha = 1;
  }

  // A span of time that is measured: drawn over all charts, told in words.
  let span = null, measures = false;
  const spanText = document.getElementById("span"), measureButton = document.getElementById("measure");
  function measured() {
    const [start, end] = span[0] < span[1] ? span : [span[1], span[0]], scale = shown.scale;
    let read = 0, written = 0;
    const work = shown.lanes.map((lane) => {
      let busy = 0;
      for (let k = 0; k < lane.start.length && lane.start[k] < end; k++) {
        const a = Math.max(start, lane.start[k]), b = Math.min(end, lane.end[k]);
        if (b <= a) continue;
        if (lane.phase[k] === execute) busy += b - a;
        const moved = (lane.moved[k] ?? 0) * (b - a) / (lane.end[k] - lane.start[k]);
        if (moved > 0) read += moved; else written -= moved;
      }
      return `${page.units[lane.name]} ${(100 * Math.min(1, busy / Math.max(1e-9, end - start))).toFixed(1)}%`;
    });
    const cycles = (end - start) / scale, micro = cycles * 1e6 / shown.clock;
    return `Cycles ${whole.format(Math.round(start / scale))} to ${whole.format(Math.round(end / scale))}: ${whole.format(Math.round(cycles))} cycles, `
      + `${micro.toLocaleString("en-US", { maximumFractionDigits: 2 })} µs; read ${sizeText(read)}, written ${sizeText(written)}; executing: ${work.join(", ")}.`;
  }
  function setSpan(next) {
    span = next; spanText.hidden = !span; spanText.textContent = span ? measured() : "";
    draw();
  }
  function band(g, bottom) {
    if (!span) return;
    const a = Math.max(left, x(Math.min(...span))), b = Math.min(left + width(), x(Math.max(...span)));
    if (b < left || a > left + width()) return;
    g.globalAlpha = .16; g.fillStyle = colours.of("accent"); g.fillRect(a, 0, Math.max(1, b - a), bottom); g.globalAlpha = 1;
  }
  measureButton.addEventListener("click", () => {
    measures = !measures;
    measureButton.setAttribute("aria-pressed", measures);
    if (!measures) setSpan(null);
  });

  let waiting = false;
  function draw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false; drawUnits(); drawCache(); drawTraffic();
      box.dataset.window = `${from} ${to}`;
      root.dataset.ready ??= performance.now().toFixed(0);
    });
  }

  function show(start, end) {
    const span = Math.min(total, Math.max(least, end - start));
    from = Math.min(Math.max(0, start), total - span); to = from + span; draw();
  }
  const zoom = (factor, time) => show(time - (time - from) * factor, time + (to - time) * factor);

  function sliceAt(px, py) {
    const i = lanes.findIndex((_, i) => py >= laneTop(i) && py < laneTop(i) + laneHeight);
    if (i < 0) return null;
    const lane = lanes[i], time = timeAt(px), reach = (to - from) / width();
    let best = -1;
    for (let k = firstIn(lane); k < lane.start.length && lane.start[k] <= time + reach; k++) {
      if (lane.end[k] < time - reach) continue;
      if (best < 0 || lane.phase[k] === execute || lane.phase[best] !== execute) best = k;
    }
    return best < 0 ? null : { lane, k: best };
  }

  function allocationAt(px, py) {
    const bottom = Number(canvases.cache.dataset.height) - 4, time = timeAt(px) / shown.scale;
    const address = (bottom - py) / (bottom - 6) * shown.top, reach = 3 / (bottom - 6) * shown.top;
    const near = (at, bytes) => Math.max(at - address, address - at - bytes, 0);
    return shown.allocations
      .filter(([, at, bytes, start, end]) => time >= start && time < end && near(at, bytes) <= reach)
      .sort((p, q) => near(p[1], p[2]) - near(q[1], q[2]))[0];
  }

  function sliceLines({ lane, k }) {
    const layer = lane.run.layers[lane.layer[k]], start = lane.start[k] / lane.run.scale, end = lane.end[k] / lane.run.scale;
    return [layer.name, `${page.units[lane.name]} ${page.phases[lane.phase[k]]}s: ${lane.run.texts[lane.text[k]]}`,
      `cycles ${whole.format(Math.round(start))} to ${whole.format(Math.round(end))} (${whole.format(Math.round(end - start))})`,
      `${layer.op}, ${layer.dtype}`];
  }

  function allocationLines([name, address, bytes, start, end]) {
    const bank = shown.cache.bank;
    return [name, `${sizeText(bytes)}, banks ${Math.floor(address / bank)} to ${Math.floor((address + bytes - 1) / bank)}`,
      `cycles ${whole.format(start)} to ${whole.format(end)}`];
  }

  function trafficLines(px, time) {
    const c = Math.floor(px - left);
    if (!gathered || c < 0 || c >= gathered.columns) return null;
    return [timeText(time, shown), `read ${gathered.read[c].toFixed(1)}, written ${gathered.write[c].toFixed(1)} bytes per cycle`];
  }

  function showTip(event, lines) {
    tip.replaceChildren(...lines.map((line, i) => { const e = document.createElement(i ? "span" : "b"); e.textContent = line; return e; }));
    tip.hidden = false;
    const frame = box.getBoundingClientRect(), px = event.clientX - frame.left, py = event.clientY - frame.top;
    tip.style.left = Math.min(px + 14, frame.width - tip.offsetWidth - 4) + "px";
    tip.style.top = (py + 18 + tip.offsetHeight > frame.height ? py - tip.offsetHeight - 10 : py + 18) + "px";
  }

  let drag = null;
  for (const [which, canvas] of Object.entries(canvases)) {
    canvas.addEventListener("wheel", (event) => {
      // The page scrolls as ever; with Ctrl, or while the charts have the focus, the wheel zooms.
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!sideways && !event.ctrlKey && !event.metaKey && !box.contains(document.activeElement)) return;
      event.preventDefault();
      const shift = event.deltaX / width() * (to - from);
      if (sideways) show(from + shift, to + shift); else zoom(Math.exp(event.deltaY * .0015), timeAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { px: event.offsetX, from, to, moved: false, measure: measures || event.shiftKey };
      canvas.setPointerCapture(event.pointerId); box.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved && which === "units") {
        const found = sliceAt(event.offsetX, event.offsetY);
        mark(found ? found.lane.run.ids[found.lane.layer[found.k]] : -1);
      }
      drag = null;
    });
    canvas.addEventListener("dblclick", () => show(0, total));
    canvas.addEventListener("pointerleave", () => { hover = null; tip.hidden = true; draw(); });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const shift = (drag.px - event.offsetX) / width() * (drag.to - drag.from);
        drag.moved ||= Math.abs(drag.px - event.offsetX) > 3;
        if (drag.moved && drag.measure) {
          const inside = (px) => Math.min(total, Math.max(0, timeAt(Math.min(left + width(), Math.max(left, px)))));
          tip.hidden = true; setSpan([inside(drag.px), inside(event.offsetX)]); return;
        }
        if (drag.moved) { tip.hidden = true; show(drag.from + shift, drag.to + shift); return; }
      }
      const time = timeAt(event.offsetX);
      hover = event.offsetX >= left ? { px: event.offsetX, tensor: null } : null;
      let lines = null;
      if (which === "units") {
        const found = sliceAt(event.offsetX, event.offsetY);
        if (found) lines = sliceLines(found);
      } else if (which === "cache") {
        const found = allocationAt(event.offsetX, event.offsetY);
        if (found) { if (hover) hover.tensor = found[0]; lines = allocationLines(found); }
      } else lines = trafficLines(event.offsetX, time);
      if (lines) showTip(event, lines);
      else if (hover) showTip(event, [timeText(time, shown)]);
      else tip.hidden = true;
      draw();
    });
  }

  // Up and down go from layer to layer, in the order they run; what is reached is said aloud.
  function step(by) {
    const order = shown.order ??= shown.layers.map((layer, i) => i).filter((i) => shown.layers[i].end > shown.layers[i].start)
      .sort((a, b) => shown.layers[a].start - shown.layers[b].start);
    const at = order.findIndex((i) => shown.ids[i] === marking.id);
    const next = order[at < 0 ? (by > 0 ? 0 : order.length - 1) : Math.min(order.length - 1, Math.max(0, at + by))];
    if (next !== undefined) mark(shown.ids[next], "step");
  }
  box.addEventListener("keydown", (event) => {
    const middle = (from + to) / 2, shift = (to - from) / 5;
    const actions = {
      "+": () => zoom(.7, middle), "=": () => zoom(.7, middle), "-": () => zoom(1 / .7, middle),
      ArrowLeft: () => show(from - shift, to - shift), ArrowRight: () => show(from + shift, to + shift),
      ArrowUp: () => step(-1), ArrowDown: () => step(1),
      Home: () => show(0, to - from), End: () => show(total - (to - from), total),
      m: () => setSpan([from, to]), M: () => setSpan([from, to]),
      Escape: () => { mark(-1); setSpan(null); show(0, total); },
    };
    if (event.ctrlKey || event.metaKey || event.target !== box || !(event.key in actions)) return;
    actions[event.key]();
    event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => button.dataset.zoom === "all" ? show(0, total) : zoom(Number(button.dataset.zoom), (from + to) / 2));
  }
  for (const choice of document.querySelectorAll("input[name=shown]")) {
    choice.addEventListener("change", () => { shown = runs.find((run) => run.letter === choice.value) ?? shown; setSpan(span); });
  }

  marking.listeners.push((id, source) => {
    const i = shown.ids.indexOf(id), layer = shown.layers[i];
    said.textContent = "";
    if (layer) {
      const start = layer.start * shown.scale, end = layer.end * shown.scale, pad = (end - start) * .3 + 10 * shown.scale;
      said.textContent = `${layer.name}: ${layer.op} on ${page.units[layer.unit]}, cycles ${whole.format(layer.start)} to ${whole.format(layer.end)}`;
      const out = end < from || start > to;
      if (end > start && (out || source === "step")) {
        const span = Math.max(to - from < total * .999 ? to - from : 0, end - start + 2 * pad);
        if (source !== "step" || out || !reduced.matches) show((start + end - span) / 2, (start + end + span) / 2);
      }
    }
    draw();
  });
  colours.listeners.push(draw);
  window.addEventListener("resize", draw);
  draw();
})();
