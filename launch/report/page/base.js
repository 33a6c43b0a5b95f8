// Data, elements, numbers, colours. All files of the page are one script (cmake/embed_page.cmake). Texts of runs enter
// the page as text only: nothing here parses HTML.

let data = JSON.parse(document.getElementById("data").textContent);
const live = document.body.dataset.live === "true";

// Choices of the reader; they outlive a refresh of the data.
const choice = {
  theme: "", x: "step", smoothing: -1, logX: false, logY: false, run: 0,
  hidden: new Set(),  // names of runs
  sort: {},           // order of leaderboards, by farm: [column, descending]
  zoom: {},           // range of x that the reader chose, by title of the chart
};

// --- Elements ---

function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "text", "title", "circle"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [event, task] of Object.entries(value)) node.addEventListener(event, task);
    else if (key === "style") for (const [name, set] of Object.entries(value)) node.style.setProperty(name, set);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity))
    if (child !== undefined && child !== null && child !== false) node.append(child);
  return node;
}

function section(id, title, ...children) {
  return el("section", {id}, el("h2", {}, title), ...children);
}

// `cells`: texts, or elements; `numbers`: indices of columns aligned to the right.
function table(heads, rows, numbers = []) {
  const kind = (i) => ({class: numbers.includes(i) ? "number" : undefined});
  return el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head, i) => head instanceof Node ? head : el("th", kind(i), head)))),
    el("tbody", {}, rows.map((row) => row instanceof Node ? row :
      el("tr", {}, row.map((cell, i) =>
        cell instanceof Node && cell.tagName === "TD" ? cell : el("td", kind(i), cell))))));
}

// One of several choices. `items`: [value, text].
function buttons(label, items, current, choose) {
  return el("span", {class: "group", role: "group", "aria-label": label}, items.map(([value, text]) =>
    el("button", {type: "button", "data-value": value, "aria-pressed": String(value === current),
                  on: {click: () => choose(value)}}, text)));
}

function toggle(text, on, change) {
  return el("label", {},
    el("input", {type: "checkbox", checked: on, on: {change: (event) => change(event.target.checked)}}), text);
}

// --- Numbers ---

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function number(value, digits = 4) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-4))
    return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= limit) return String(Number((value / limit * (unit === "k" ? 10 : 1)).toPrecision(digits))) + unit;
  return String(Number(value.toPrecision(digits)));
}

// For axes: 20k for 20,000.
function short(value, digits = 3) {
  return Math.abs(value) >= 1e4 && Math.abs(value) < 1e15 ? number(value + 1e-6, digits) : number(value, digits);
}

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 1) return `${number(seconds * 1000, 3)} ms`;
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  if (hours < 1) return `${minutes} min ${whole % 60} s`;
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1024; ++unit; }
  return `${number(value, 3)} ${units[unit]}`;
}

function valueText(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return number(value, 6);
  return typeof value === "string" ? value : JSON.stringify(value);
}

// The unit of a time axis: [seconds of a unit, its name].
function timeUnit(longest) {
  return longest > 3 * 86400 ? [86400, "d"] : longest > 7200 ? [3600, "h"] : longest > 180 ? [60, "min"] : [1, "s"];
}

// --- Colours: the same run has the same colour everywhere ---

const palettes = {
  light: ["#1f6feb", "#d9480f", "#2b8a3e", "#8e44ad", "#b08900", "#0b8a8f", "#c2255c", "#6b5b4b", "#5c7cfa", "#87a922"],
  dark: ["#6ea8fe", "#ff9f5a", "#69c57f", "#c79bf2", "#e3c04b", "#4fd0d3", "#ff8fb8", "#c0ae9a", "#9db2ff", "#b9d85c"],
};
// start-up, data, forward, backward, communication, waiting, update, evaluation, checkpoint, other
const partPalettes = {
  light: ["#adb5bd", "#e3b341", "#74a9f7", "#1f6feb", "#e8590c", "#f4a6a0", "#7c5cc4", "#3f9e57", "#8fd19e", "#dee2e6"],
  dark: ["#5c646d", "#c9a032", "#3f6fb5", "#6ea8fe", "#ff8f45", "#b5625c", "#a78be8", "#5bbd72", "#3a7d4c", "#3a4149"],
};

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => choice.theme || (systemDark.matches ? "dark" : "light");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const distinct = 10;  // pipelines of a farm with bright colours: the best ones

function runColour(index) {
  const palette = palettes[theme()], run = data.runs[index], dark = theme() === "dark";
  const place = run.farm === undefined ? 0 : index - data.runs.findIndex((mate) => mate.farm === run.farm);
  const hue = (index * 137.5) % 360;
  if (place >= distinct + 2) return `hsl(${hue} ${dark ? "14% 52%" : "14% 62%"})`;
  return index < palette.length ? palette[index] : `hsl(${hue} ${dark ? "60% 68%" : "55% 42%"})`;
}

const swatch = (colour) => el("span", {class: "swatch", style: {background: colour}});

// Steps of a curve, from their differences.
function stepsOf(curve) {
  let step = 0;
  return curve.d.map((difference) => (step += difference));
}
