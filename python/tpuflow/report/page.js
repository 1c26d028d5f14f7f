"use strict";
// What charts and tables share: the data, how numbers are written, light and dark, which layer is marked.
const root = document.documentElement;
const page = JSON.parse(document.getElementById("data").textContent);
const whole = new Intl.NumberFormat("en-US");
const sizeText = (bytes) => bytes < 1024 ? Math.round(bytes) + " B"
  : bytes < 1048576 ? (bytes / 1024).toFixed(1) + " KiB" : (bytes / 1048576).toFixed(2) + " MiB";

// Layers are known by name in all runs; the same name twice in a network is told apart by its number.
const layerIds = new Map();
for (const run of page.runs) {
  const seen = new Map();
  run.ids = run.layers.map((layer) => {
    const times = seen.get(layer.name) ?? 0, key = times ? layer.name + " #" + times : layer.name;
    seen.set(layer.name, times + 1);
    if (!layerIds.has(key)) layerIds.set(key, layerIds.size);
    return layerIds.get(key);
  });
}

// One layer may be marked; whoever shows layers is told.
const marking = { id: -1, listeners: [] };
function mark(id, from) {
  marking.id = marking.id === id && from !== "step" ? -1 : id;
  for (const listener of marking.listeners) listener(marking.id, from);
}

// Light or dark: what the system says until the button is used.
const colours = { names: new Map(), listeners: [], dark: false };
{
  const system = matchMedia("(prefers-color-scheme: dark)"), probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  let chosen = null;
  // Asked, not kept: the system's change is told only with the next frame, and the button may be used before it.
  const dark = () => (chosen ?? (system.matches ? "dark" : "light")) === "dark";
  const paint = () => {
    if (chosen) root.dataset.theme = chosen; else delete root.dataset.theme;
    colours.dark = dark();
    colours.names.clear();
    for (const listener of colours.listeners) listener();
  };
  colours.of = (name) => {
    if (!colours.names.has(name)) {
      probe.style.color = `var(--${name})`;
      colours.names.set(name, getComputedStyle(probe).color);
    }
    return colours.names.get(name);
  };
  document.getElementById("theme").addEventListener("click", () => { chosen = dark() ? "light" : "dark"; paint(); });
  system.addEventListener("change", paint);
  paint();
}

// Points of the roofline are layers.
for (const point of document.querySelectorAll("[data-layer]")) {
  const id = layerIds.get(point.dataset.layer);
  point.addEventListener("click", () => mark(id));
  marking.listeners.push((marked) => point.classList.toggle("marked", marked === id));
}
