// Sections about a farm: leaderboard, parallel coordinates, and its schedule.

const lit = {rows: new Map(), paths: new Map(), svgs: []};  // elements of a pipeline, by farm and name

function light(key, on) {
  for (const svg of lit.svgs) svg.classList.toggle("some", on);
  for (const node of [...(lit.rows.get(key) || []), ...(lit.paths.get(key) || [])]) {
    node.classList.toggle("lit", on);
    if (on && node.tagName === "path") node.parentNode.append(node);
  }
}

function remember(map, key, node) {
  map.set(key, [...(map.get(key) || []), node]);
  node.addEventListener("mouseenter", () => light(key, true));
  node.addEventListener("mouseleave", () => light(key, false));
}

function gridKeys(farm) {
  const keys = new Set();
  for (const row of farm.rows) for (const key of Object.keys(row.grid || {})) keys.add(key);
  return [...keys];
}

function farmColumns(farm) {
  const has = (key) => farm.rows.some((row) => row[key] !== undefined && row[key] !== null);
  return [
    ["", (row) => row.place, true], ["pipeline", (row) => row.pipeline],
    ...gridKeys(farm).map((key) =>
      [key, (row) => (row.grid || {})[key], farm.rows.every((row) => isNumber((row.grid || {})[key]))]),
    ["status", (row) => row.status],
    [farm.metric || "metric", (row) => row.value, true], ["best", (row) => row.best, true],
    ["steps", (row) => row.steps, true, number], ["training", (row) => row.train_seconds, true, duration],
    ["samples/s", (row) => row.samples_per_second, true, number], ["attempts", (row) => row.attempts, true],
    ...(has("cause") ? [["cause", (row) => row.cause]] : []),
  ];
}

function leaderboardTable(farm, f) {
  const columns = farmColumns(farm), [by, down] = choice.sort[f] || [0, false];
  const value = columns[by][1];
  const missing = (one) => one === undefined || one === null;
  const rows = farm.rows.map((row, i) => [row, i]).sort(([a, i], [b, j]) => {
    const left = value(a), right = value(b);
    if (missing(left) || missing(right)) return missing(left) - missing(right) || i - j;
    const order = isNumber(left) && isNumber(right)
      ? left - right
      : String(left).localeCompare(String(right), "en", {numeric: true});
    return (down ? -order : order) || i - j;
  });
  const heads = columns.map(([name, , numeric], column) => el("th", {
    class: `sortable${numeric ? " number" : ""}`, tabindex: 0,
    "aria-sort": column === by ? (down ? "descending" : "ascending") : "none",
    on: {
      click: () => { choice.sort[f] = [column, column === by && !down]; render(); },
      keydown: (event) => { if (event.key === "Enter") event.target.click(); },
    },
  }, name + (column === by && name ? (down ? " ↓" : " ↑") : "")));
  const body = rows.map(([row]) => {
    const node = el("tr", {}, columns.map(([name, of, numeric, text], column) => {
      const cell = of(row);
      if (name === "pipeline") return el("td", {}, row.run === undefined ? cell : runName(row.run, "span"));
      if (name === "status") return el("td", {class: cell}, cell === "lost" ? `lost at rung ${row.stage}` : cell);
      return el("td", {class: numeric ? "number" : undefined}, missing(cell)
        ? (column === 0 ? "" : "–")
        : (text || (isNumber(cell) ? (value) => number(value, 5) : valueText))(cell));
    }));
    remember(lit.rows, `${f}/${row.pipeline}`, node);
    return node;
  });
  return el("div", {class: farm.rows.length > 14 ? "scroll tall" : "scroll"}, table(heads, body));
}

// Mean and spread over the seeds of each setting; null if no setting has several.
function settingsTable(farm) {
  if (!farm.settings) return null;
  const cell = (value) => el("td", {class: "number"}, value === null ? "–" : number(value, 4));
  const heads = ["setting", "runs", `mean ${farm.metric || "metric"}`, "deviation", "least", "most"]
    .map((name, i) => el("th", {class: i > 0 ? "number" : undefined}, name));
  const body = farm.settings.map((one) => el("tr", {}, [el("td", {}, one.setting || "all"),
    ...[one.runs, one.mean, one.deviation, one.least, one.most].map(cell)]));
  return el("div", {class: "scroll"}, table(heads, body));
}

// --- Parallel coordinates ---

// An axis: its name, and the position in 0…1 of a row's value; null: the row has none.
function coordinate(name, values) {
  const known = values.filter((value) => value !== undefined && value !== null);
  if (known.length > 0 && known.every(isNumber)) {
    const low = Math.min(...known), high = Math.max(...known), log = low > 0 && high / low >= 20;
    const scale = log ? Math.log : (value) => value;
    const width = scale(high) - scale(low);
    const distinct = [...new Set(known)].sort((a, b) => a - b);
    const ticks = distinct.length <= 6 ? distinct : log ? logTicks(low, high, 5) :
      [0, 1, 2, 3, 4].map((i) => low + (high - low) * i / 4);
    return {name, log,
            ticks: ticks.map((tick) => [number(tick, 3), width > 0 ? (scale(tick) - scale(low)) / width : 0.5]),
            at: (value) => isNumber(value) ? (width > 0 ? (scale(value) - scale(low)) / width : 0.5) : null};
  }
  const names = [...new Set(known.map(valueText))].sort((a, b) => a.localeCompare(b, "en", {numeric: true}));
  const at = (text) => names.length > 1 ? names.indexOf(text) / (names.length - 1) : 0.5;
  return {name, ticks: names.length <= 24 ? names.map((text) => [text, at(text)]) : [],
          at: (value) => value === undefined || value === null ? null : at(valueText(value))};
}

// The settings of a farm's rows: of its grid, else keys of the configurations that differ.
function settings(farm) {
  const keys = gridKeys(farm);
  if (keys.length > 0) return keys.map((key) => [key, (row) => (row.grid || {})[key]]);
  const {keys: differing, runs} = data.differences;
  return differing.filter(({values}) => values.every((value) => value === null || typeof value !== "object"))
    .map(({key, values}) => [key, (row) => values[runs.indexOf(row.run)],
                             new Set(farm.rows.map((row) => values[runs.indexOf(row.run)])).size])
    .filter(([, , count]) => count > 1).slice(0, 6);
}

function parallelCoordinates(farm, f, width) {
  const rows = farm.rows.filter((row) => isNumber(row.value)).slice(0, 500);
  const axes = settings(farm).filter(([, of]) => new Set(rows.map((row) => valueText(of(row)))).size > 1)
    .map(([name, of]) => ({...coordinate(name, rows.map(of)), of}));
  if (rows.length < 2 || axes.length === 0) return null;
  axes.push({...coordinate(farm.metric || "metric", rows.map((row) => row.value)), of: (row) => row.value});
  const height = 320, top = 34, bottom = height - 14, left = 30, room = Math.max(width, 130 * axes.length);
  const longest = (axis) => Math.max(0, ...axis.ticks.map(([text]) => text.length)) * 7;
  const right = Math.max(40, longest(axes.at(-1)) + 14, axes.at(-1).name.length * 4);
  const x = (i) => left + (room - left - right) * i / (axes.length - 1);
  const y = (position) => bottom - (bottom - top) * position;
  const svg = el("svg", {width: room, height, viewBox: `0 0 ${room} ${height}`, role: "img",
                         "aria-label": `Settings and ${farm.metric} of each pipeline`});
  axes.forEach((axis, i) => svg.append(el("line", {class: "axis", x1: x(i), x2: x(i), y1: top, y2: bottom})));
  const paths = el("g", {}), hits = el("g", {});
  for (const row of [...rows].reverse()) {
    const points = axes.map((axis, i) => [x(i), axis.at(axis.of(row))]).filter(([, at]) => at !== null);
    const d = points.map(([px, at], i) => `${i === 0 ? "M" : "L"}${px.toFixed(1)} ${y(at).toFixed(1)}`).join("");
    const key = `${f}/${row.pipeline}`, colour = row.run === undefined ? css("--soft") : runColour(row.run);
    const path = el("path", {class: "path", d, stroke: colour}), hit = el("path", {class: "hit", d},
      el("title", {}, `${row.pipeline}: ${farm.metric} ${number(row.value)}`));
    lit.paths.set(key, [...(lit.paths.get(key) || []), path]);
    hit.addEventListener("mouseenter", () => light(key, true));
    hit.addEventListener("mouseleave", () => light(key, false));
    paths.append(path);
    hits.append(hit);
  }
  svg.append(paths);
  axes.forEach((axis, i) => {
    const first = i === 0, anchor = first ? "start" : i === axes.length - 1 ? "end" : "middle";
    svg.append(el("text", {class: "head", x: first ? 0 : i === axes.length - 1 ? room : x(i), y: 16,
                           "text-anchor": anchor}, axis.name + (axis.log ? " (log)" : "")));
    for (const [text, at] of axis.ticks) {
      const label = el("text", {x: x(i) + 6, y: y(at) + 4, "paint-order": "stroke", stroke: css("--page"),
                                "stroke-width": 6, "stroke-linejoin": "round"}, text);
      svg.append(label);
    }
  });
  svg.append(hits);
  lit.svgs.push(svg);
  return el("div", {class: "parallel"}, svg);
}

// --- Schedule: which pipeline used which slot, and when ---

function scheduleChart(farm, f, width) {
  if (!farm.schedule || farm.schedule.length === 0) return null;
  const slots = [...new Set(farm.schedule.map((bar) => bar.slot))]
    .sort((a, b) => a.localeCompare(b, "en", {numeric: true})).slice(0, 40);
  const end = Math.max(...farm.schedule.map((bar) => bar.to), 1e-3), [unit, name] = timeUnit(end);
  const left = 10 + Math.max(...slots.map((slot) => slot.length)) * 7, lane = 26, height = slots.length * lane + 40;
  const room = Math.max(width, 420), x = (seconds) => left + (room - left - 12) * seconds / end;
  const svg = el("svg", {width: room, height, viewBox: `0 0 ${room} ${height}`, role: "img",
                         "aria-label": "Pipelines by slot and time"});
  const step = niceStep(end / unit / Math.max(3, Math.floor(room / 110)));
  for (let tick = 0; tick * unit <= end * 1.0001; tick += step) {
    svg.append(el("line", {class: "axis", x1: x(tick * unit), x2: x(tick * unit), y1: 4, y2: slots.length * lane + 4}),
      el("text", {x: x(tick * unit), y: slots.length * lane + 20, "text-anchor": "middle"}, number(tick, 3)));
  }
  svg.append(el("text", {x: left + (room - left) / 2, y: height - 3, "text-anchor": "middle"},
    `time since the start (${name})`));
  slots.forEach((slot, i) => svg.append(el("text", {x: 0, y: i * lane + 21}, slot)));
  for (const bar of farm.schedule) {
    const at = slots.indexOf(bar.slot);
    if (at < 0) continue;
    const row = farm.rows.find((one) => one.pipeline === bar.pipeline), wide = Math.max(2, x(bar.to) - x(bar.from) - 1);
    const colour = row && row.run !== undefined ? runColour(row.run) : css("--soft");
    const failed = bar.end !== "done" && bar.end !== "running";
    const rect = el("rect", {
      class: "slotbar", x: x(bar.from), y: at * lane + 6, width: wide, height: lane - 6, fill: colour,
      "fill-opacity": failed ? 0.35 : 0.85, stroke: failed ? css("--bad") : "none",
    }, el("title", {}, `${bar.pipeline}, ${duration(bar.from)} to ${duration(bar.to)}: ${bar.end}` +
      (bar.cause ? ` (${bar.cause})` : "")));
    svg.append(rect);
    if (wide > bar.pipeline.length * 6.6 + 8)
      svg.append(el("text", {x: x(bar.from) + 5, y: at * lane + 20, style: {
        fill: failed ? css("--text") : theme() === "dark" ? "#111" : "#fff", "pointer-events": "none",
      }}, bar.pipeline));
  }
  return el("div", {class: "parallel"}, svg);
}

function farmSection(farm, f) {
  const id = `farm-${f}`, place = el("div", {}), plan = el("div", {});
  // The pictures need the width of the page, which is known once it is laid out.
  requestAnimationFrame(() => {
    const width = place.clientWidth;
    const parallel = parallelCoordinates(farm, f, width), schedule = scheduleChart(farm, f, width);
    if (parallel)
      place.append(el("h3", {}, "Settings and result"),
        el("p", {class: "note"}, "A line is a pipeline. Point at one to see it in the leaderboard."), parallel);
    if (schedule) plan.append(el("h3", {}, "Schedule"), schedule);
  });
  const done = farm.rows.filter((row) => row.status === "done").length;
  return section(id, `Farm ${farm.name}`,
    el("p", {class: "note"},
      `${number(farm.pipelines)} pipelines, ${number(done)} done, ` +
      `${number(farm.slots)} slots, ${duration(farm.seconds)}.`,
      farm.metric ? ` Sorted by ${farm.metric}, ${farm.direction === "minimize" ? "lowest" : "highest"} first.` : ""),
    farm.failure && el("p", {class: "failed"}, farm.failure),
    el("h3", {}, "Leaderboard"), leaderboardTable(farm, f), settingsTable(farm), place, plan);
}
