// Charts with uPlot, and the section of curves. A chart is drawn when it comes into view.

const drawn = new Set();  // charts with a plot

const inView = new IntersectionObserver((entries) => {
  for (const entry of entries)
    if (entry.isIntersecting) { inView.unobserve(entry.target); drawChart(entry.target.chart); }
}, {rootMargin: "200px"});

const sized = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const plot = entry.target.chart && entry.target.chart.plot;
    const width = Math.floor(entry.contentRect.width);
    if (plot && width > 0 && plot.width !== width) plot.setSize({width, height: entry.target.clientHeight});
  }
});

function forgetCharts() {
  for (const chart of drawn) chart.plot.destroy();
  drawn.clear();
  inView.disconnect();
  sized.disconnect();
}

// `spec`: {title, soft, x: label, xValue: text of an x, yText: text of a y, logX, logY, zero: the y axis has 0, sync,
// series: returns [{name, colour, xs, ys, width, alpha, dots, quiet: not in the tip}]}
function chart(spec) {
  const place = el("div", {class: "plot"});
  const tip = el("div", {class: "tip", hidden: true});
  place.chart = {spec, place, tip, plot: null};
  inView.observe(place);
  sized.observe(place);
  return el("div", {class: "chart", "data-chart": spec.title},
    el("div", {class: "title"}, el("span", {}, spec.title),
      spec.soft && el("span", {class: "soft", title: spec.soft}, spec.soft)),
    place, tip);
}

// Nice values on a logarithmic axis.
function logTicks(min, max, count) {
  const decades = Math.log10(max / min);
  if (!(decades > 0.7)) {
    const step = niceStep((max - min) / Math.max(2, count)), ticks = [];
    for (let value = Math.ceil(min / step) * step; value <= max; value += step) ticks.push(value);
    return ticks;
  }
  const stride = Math.max(1, Math.ceil(decades / count));
  const steps = decades * 3 <= count ? [1, 2, 5] : decades * 2 <= count ? [1, 3] : [1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power += stride)
    for (const factor of steps) {
      const value = factor * 10 ** power;
      if (value >= min && value <= max) ticks.push(value);
    }
  return ticks;
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least);
}

function axis(spec, log, label, text, vertical) {
  const font = '12px system-ui, "Segoe UI", Roboto, Arial, sans-serif';
  const line = {stroke: css("--grid"), width: 1};
  const result = {
    stroke: css("--soft"), font, labelFont: font, grid: line, ticks: {...line, size: 4}, gap: 4,
    values: (plot, splits) => axisTexts(splits, text),
    space: vertical ? 34 : 62,
  };
  if (label) { result.label = label; result.labelSize = 18; result.labelGap = 2; }
  if (log) result.filter = (plot, splits) => splits;
  if (log) result.splits = (plot, i, min, max) =>
    logTicks(min, max, (vertical ? plot.height / 34 : plot.width / 70));
  result.size = vertical ? (plot, values) => {
    const longest = Math.max(3, ...(values || []).map((value) => (value || "").length));
    return 14 + longest * 6.9;
  } : 28;
  return result;
}

// Texts of ticks. Neighbouring ticks need different texts.
function axisTexts(splits, text) {
  let texts = splits.map((value) => text(value, 3));
  if (new Set(texts).size < texts.length) texts = splits.map((value) => text(value, 6));
  return texts;
}

function drawChart(chart) {
  const {spec, place, tip} = chart;
  const usable = spec.series().map((series) => {
    const xs = [], ys = [];
    series.xs.forEach((x, i) => {
      if (!isNumber(x) || (spec.logX && x <= 0)) return;
      const y = series.ys[i];
      xs.push(x);
      ys.push(isNumber(y) && !(spec.logY && y <= 0) ? y : null);
    });
    return {...series, xs, ys};
  }).filter((series) => series.xs.length > 0);
  if (!usable.some((series) => series.ys.some(isNumber))) {
    place.replaceChildren(el("p", {class: "note"},
      spec.logY ? "No value above 0, so a logarithmic axis shows none." : "No finite value."));
    return;
  }
  const range = (log) => (plot, min, max) => {
    if (!isNumber(min) || !isNumber(max)) return log ? [1, 10] : [0, 1];
    if (log) return min === max ? [min / 2, max * 2] : [min * (min / max) ** 0.04, max * (max / min) ** 0.04];
    const pad = (max - min || Math.abs(max) || 1) * 0.06;
    return spec.zero ? [0, max + pad] : [min >= 0 && min < pad * 5 ? 0 : min - pad, max + pad];
  };
  const options = {
    width: Math.max(120, place.clientWidth), height: place.clientHeight,
    legend: {show: false},
    padding: [10, 18, 0, 0],
    cursor: {
      y: false, points: {show: false}, drag: {x: true, y: false}, sync: spec.sync ? {key: spec.sync} : undefined,
    },
    scales: {
      x: {time: false, distr: spec.logX ? 3 : 1, range: (plot, min, max) =>
        min === max ? (spec.logX ? [min / 2, max * 2] : [min - 1, max + 1]) : [min, max]},
      y: {distr: spec.logY ? 3 : 1, range: range(spec.logY)},
    },
    axes: [axis(spec, spec.logX, spec.x, spec.xTick || short, false),
           axis(spec, spec.logY, "", spec.yTick || short, true)],
    series: [{}, ...usable.map((series) => ({
      stroke: series.colour, width: series.width || 1.5, alpha: series.alpha || 1,
      points: {show: series.dots || series.xs.length === 1, size: 5, fill: series.colour, stroke: series.colour},
    }))],
    hooks: {
      setCursor: [(plot) => showTip(chart, usable, plot)],
      setScale: [(plot, scale) => keepZoom(chart, plot, scale)],
    },
  };
  const aligned = usable.length === 1
    ? [usable[0].xs, usable[0].ys]
    : uPlot.join(usable.map((one) => [one.xs, one.ys]));
  chart.plot = new uPlot(options, aligned, place);
  chart.plot.over.addEventListener("mouseenter", () => { chart.hovered = true; });
  chart.plot.over.addEventListener("mouseleave", () => { chart.hovered = false; tip.hidden = true; });
  const zoom = choice.zoom[spec.title];
  if (zoom) chart.plot.setScale("x", {min: zoom[0], max: zoom[1]});
  drawn.add(chart);
}

// A refresh of the page keeps the part of a chart that the reader chose.
function keepZoom(chart, plot, scale) {
  if (scale !== "x" || !drawn.has(chart)) return;
  const xs = plot.data[0], {min, max} = plot.scales.x;
  if (min <= xs[0] && max >= xs[xs.length - 1]) delete choice.zoom[chart.spec.title];
  else choice.zoom[chart.spec.title] = [min, max];
}

function nearestIndex(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

// Values of all curves near the cursor, largest first.
function showTip(chart, series, plot) {
  const {spec, tip} = chart, {left, top} = plot.cursor;
  if (!chart.hovered || left < 0) { tip.hidden = true; return; }
  const x = plot.posToVal(left, "x");
  const rows = [];
  for (const one of series) {
    if (one.quiet) continue;
    const i = nearestIndex(one.xs, x), y = one.ys[i];
    if (isNumber(y)) rows.push({one, y, off: Math.abs(plot.valToPos(y, "y") - top)});
  }
  if (rows.length === 0) { tip.hidden = true; return; }
  const near = rows.reduce((a, b) => (a.off <= b.off ? a : b));
  rows.sort((a, b) => a.off - b.off);
  const more = rows.length - 10;
  const shown = rows.slice(0, 10).sort((a, b) => b.y - a.y);
  tip.replaceChildren(el("div", {class: "soft"}, (spec.xValue || number)(x)), ...shown.map((row) =>
    el("div", {class: row === near && rows.length > 1 ? "row near" : "row"},
      swatch(row.one.colour), el("span", {}, row.one.name), el("span", {}, (spec.yText || number)(row.y)))));
  if (more > 0) tip.append(el("div", {class: "soft"}, `and ${more} more`));
  tip.hidden = false;
  const over = plot.over, width = chart.place.clientWidth;
  const at = over.offsetLeft + left;
  tip.style.top = `${chart.place.offsetTop + 6}px`;
  if (at > width / 2) { tip.style.left = ""; tip.style.right = `${width - at + 14}px`; }
  else { tip.style.right = ""; tip.style.left = `${at + 14}px`; }
}

// --- Curves of metrics ---

const shownRuns = () => data.runs.map((run, i) => i).filter((i) => !choice.hidden.has(data.runs[i].name));

// Training time of a step, between the recorded ones.
function timeOf(run) {
  const steps = stepsOf(run.seconds);
  let latest = 0;
  const seconds = run.seconds.y.map((value) => (latest = Math.max(latest, value || 0)));  // an axis never goes back
  return (step) => {
    if (steps.length === 0) return null;
    let high = steps.findIndex((known) => known >= step);
    if (high < 0) return seconds[seconds.length - 1];
    if (high === 0) return steps[0] > 0 ? seconds[0] * step / steps[0] : seconds[0];
    const share = (step - steps[high - 1]) / (steps[high] - steps[high - 1]);
    return seconds[high - 1] + share * (seconds[high] - seconds[high - 1]);
  };
}

function xAxis(runs) {
  if (choice.x === "samples")
    return {label: "samples", of: (run) => (step) => run.samples_per_step > 0 ? step * run.samples_per_step : null,
            text: (x) => `${number(x)} samples`};
  if (choice.x === "time") {
    const longest = Math.max(0, ...runs.map((i) => data.runs[i].seconds.y.at(-1) || 0));
    const [unit, name] = timeUnit(longest);
    return {label: `training time (${name})`, of: (run) => { const time = timeOf(run); return (step) => {
      const seconds = time(step); return seconds === null ? null : seconds / unit; }; },
            text: (x) => duration(x * unit)};
  }
  return {label: "steps", of: () => (step) => step, text: (x) => `step ${number(Math.round(x))}`};
}

// Exponential mean, corrected for its start. Points are not evenly spaced, so the weight follows the distance.
function smoothed(xs, ys, weight) {
  if (weight <= 0 || xs.length < 3) return ys;
  const usual = (xs.at(-1) - xs[0]) / (xs.length - 1) || 1;
  let sum = 0, total = 0, before = xs[0];
  return ys.map((y, i) => {
    if (!isNumber(y)) return y;
    const keep = weight ** Math.min(20, Math.max(0.05, (xs[i] - before) / usual));
    before = xs[i];
    sum = sum * keep + y * (1 - keep);
    total = total * keep + (1 - keep);
    return sum / total;
  });
}

const titles = {samples_per_second: "throughput", learning_rate: "learning rate", gradient_norm: "gradient norm",
                skipped_updates: "skipped updates"};
const softTitles = {samples_per_second: "samples per second", gradient_norm: "before clipping", learning_rate: ""};
const lastMetrics = ["learning_rate", "gradient_norm", "samples_per_second", "skipped_updates"];

function metricNames(runs) {
  const users = new Map();  // runs of each main metric
  for (const i of runs) users.set(data.runs[i].main_metric, (users.get(data.runs[i].main_metric) || 0) + 1);
  const names = new Set([...users].sort((a, b) => b[1] - a[1]).map(([name]) => name).filter(Boolean));
  for (const i of runs) if (data.runs[i].training.loss || data.runs[i].evaluation.loss) names.add("loss");
  for (const kind of ["evaluation", "training"])
    for (const i of runs) for (const name of Object.keys(data.runs[i][kind])) names.add(name);
  return [...names].sort((a, b) => lastMetrics.indexOf(a) - lastMetrics.indexOf(b));
}

function metricSeries(runs, name, kinds, x) {
  const series = [];
  const few = runs.length * kinds.length <= 8, weight = choice.smoothing;
  for (const i of runs) {
    const run = data.runs[i], at = x.of(run), colour = runColour(i);
    for (const kind of kinds) {
      const curve = run[kind][name];
      if (!curve || curve.y.length === 0) continue;
      const xs = stepsOf(curve).map(at), tests = kind === "evaluation", dots = tests && xs.length <= 40;
      const both = kinds.length > 1 && run.training[name] && run.evaluation[name];
      const label = both ? `${run.name}, ${tests ? "held out" : "training"}` : run.name;
      const smooth = !tests || xs.length > 60;
      if (smooth && weight > 0 && few && xs.length > 20)
        series.push({name: label, colour, xs, ys: curve.y, width: 1, alpha: 0.25, quiet: true});
      const members = tests && runs.length <= 2 ? run.members[name] || [] : [];
      for (const member of members)
        series.push({name: label, colour, xs: stepsOf(member).map(at), ys: member.y,
                     width: 1, alpha: 0.3, quiet: true});
      series.push({name: label, colour, xs, ys: smooth ? smoothed(xs, curve.y, weight) : curve.y, dots,
                   width: tests ? 2 : both ? 1.25 : 1.75});
    }
  }
  return series;
}

function curvesSection() {
  const box = el("div", {});
  const draw = () => {
    const runs = shownRuns(), x = xAxis(runs), together = runs.length <= 3;
    const charts = [];
    for (const name of metricNames(runs)) {
      const bad = runs.reduce((sum, i) => sum + ["training", "evaluation"].reduce((all, kind) =>
        all + ((data.runs[i][kind][name] || {}).bad || 0), 0), 0);
      const kindsHere = ["training", "evaluation"].filter((kind) => runs.some((i) => data.runs[i][kind][name]));
      for (const kinds of together ? [kindsHere] : kindsHere.map((kind) => [kind]).reverse()) {
        const where = kinds.length > 1 ? "training (thin) and held-out rows (dots)"
          : kinds[0] === "training" ? "training" : "held-out rows";
        const soft = [name in softTitles ? softTitles[name] : where,
                      bad > 0 ? `${number(bad)} values are not finite` : ""].filter(Boolean).join("; ");
        const title = titles[name] || name;
        charts.push(chart({title, soft, x: x.label, xValue: x.text, logX: choice.logX, logY: choice.logY,
                           sync: "curves", zero: name === "samples_per_second" && !choice.logY,
                           series: () => metricSeries(runs, name, kinds, x)}));
      }
    }
    box.replaceChildren(runs.length === 0 ? el("p", {class: "note"}, "No run is chosen; tick one in the table above.")
      : charts.length === 0 ? el("p", {class: "note"}, "No curve has been recorded yet.")
      : el("div", {class: "charts"}, charts));
  };
  const set = (key) => (value) => { choice[key] = value; choice.zoom = {}; render(); };
  const slider = el("input", {
    type: "range", min: 0, max: 0.99, step: 0.01, value: choice.smoothing, "aria-label": "Smoothing",
    on: {
      input: (event) => {
        choice.smoothing = Number(event.target.value);
        level.textContent = choice.smoothing.toFixed(2);
      },
      change: () => render(),
    },
  });
  const level = el("span", {}, choice.smoothing.toFixed(2));
  draw();
  return section("curves", "Curves",
    el("div", {class: "tools"},
      buttons("Horizontal axis", [["step", "steps"], ["samples", "samples"], ["time", "time"]], choice.x, set("x")),
      el("label", {}, "smoothing", slider, level),
      toggle("log x", choice.logX, set("logX")), toggle("log y", choice.logY, set("logY")),
      el("span", {class: "soft"}, "Drag to zoom, double-click to reset.")),
    box);
}
