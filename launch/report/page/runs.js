// Sections about runs: sentences, table, time, placement, resources, attempts, differences.

function sentencesSection() {
  return el("div", {class: "sentences", id: "summary"},
    data.sentences.map((sentence) => el("p", {}, sentence)),
    data.notes.map((note) => el("p", {class: "note"}, note)));
}

// --- Runs ---

function best(run) {
  const values = run.metrics[run.main_metric];
  return values && isNumber(values.best) ? values : null;
}

function runName(i, tag = "label") {
  const run = data.runs[i];
  return el(tag, {class: "name", title: run.folder}, swatch(runColour(i)), el("span", {}, run.name));
}

function runRow(i) {
  const run = data.runs[i], metric = best(run), off = choice.hidden.has(run.name);
  const box = el("input", {type: "checkbox", checked: !off, "aria-label": `Show ${run.name}`, on: {change: (event) => {
    if (event.target.checked) choice.hidden.delete(run.name); else choice.hidden.add(run.name);
    render();
  }}});
  const name = runName(i);
  name.prepend(box, " ");
  box.style.marginRight = "0.5rem";
  const steps = isNumber(run.steps) ? run.steps : run.step;
  const total = run.progress && run.progress.steps;
  return el("tr", {class: off ? "off" : undefined},
    el("td", {}, name), el("td", {class: run.status}, run.status),
    el("td", {}, metric ? run.main_metric : "–"), el("td", {class: "number"}, metric ? number(metric.best) : "–"),
    el("td", {class: "number"}, metric ? number(metric.last) : "–"),
    el("td", {class: "number"}, steps < 0 ? "–" : total ? `${number(steps)} of ${number(total)}` : number(steps)),
    el("td", {class: "number"}, duration(run.train_seconds ?? run.seconds.y.at(-1))),
    el("td", {class: "number"}, number((run.progress || run).samples_per_second)),
    el("td", {}, [run.model, run.data].filter(Boolean).join(" on ") || "program"), el("td", {}, run.strategy),
    el("td", {class: "number"}, number(run.world_size)));
}

function runsSection() {
  const heads = ["run", "status", "metric", "best", "last", "steps", "training", "samples/s", "model", "strategy",
                 "ranks"];
  const numbers = [3, 4, 5, 6, 7, 10], many = data.runs.length > 12;
  const show = (count) => { choice.hidden = new Set(data.runs.slice(count).map((run) => run.name)); render(); };
  return section("runs", "Runs",
    many && el("div", {class: "tools"}, el("span", {class: "soft"}, "Show the curves of"),
      el("button", {type: "button", on: {click: () => show(data.runs.length)}}, "all"),
      el("button", {type: "button", on: {click: () => show(10)}}, "the first 10"),
      el("button", {type: "button", on: {click: () => show(0)}}, "none")),
    el("div", {class: many ? "scroll tall" : "scroll"}, table(heads, data.runs.map((run, i) => runRow(i)), numbers)));
}

// --- Time ---

const timeParts = [
  ["start_up", "start-up"], ["data", "data"], ["forward", "forward"], ["backward", "backward"],
  ["communication", "communication"], ["waiting", "waiting for ranks"], ["update", "update"],
  ["evaluation", "evaluation"], ["checkpoint", "checkpoint"], ["other", "other"],
];
const partColour = (i) => partPalettes[theme()][i];

function meanParts(ranks) {
  return Object.fromEntries(timeParts.map(([key]) =>
    [key, ranks.reduce((sum, rank) => sum + (rank[key] || 0), 0) / ranks.length]));
}

function timeBar(label, parts, longest) {
  const sum = timeParts.reduce((all, [key]) => all + (parts[key] || 0), 0);
  const bar = el("div", {class: "bar", style: {width: `${100 * sum / longest}%`}}, timeParts.map(([key, name], i) => {
    const seconds = parts[key] || 0;
    return seconds > 0 && el("i", {title: `${name}: ${duration(seconds)}, ${number(100 * seconds / sum, 3)} %`,
      style: {width: `${100 * seconds / sum}%`, background: partColour(i)}});
  }).filter(Boolean));
  return [label, el("div", {}, bar), el("span", {class: "soft"}, duration(sum))];
}

// The choice of one run, for the sections that show one.
function runChoice(runs) {
  if (!runs.includes(choice.run)) choice.run = runs[0];
  if (runs.length < 2) return null;
  return el("div", {class: "tools"}, el("label", {}, "run", el("select", {on: {change: (event) => {
    choice.run = Number(event.target.value); render(); }}}, runs.map((i) =>
    el("option", {value: i, selected: i === choice.run}, data.runs[i].name)))));
}

function timeSection() {
  const measured = (i) => data.runs[i].breakdown && Array.isArray(data.runs[i].breakdown.ranks) &&
    data.runs[i].breakdown.ranks.length > 0;
  const all = data.runs.map((run, i) => i), runs = all.filter(measured);
  if (runs.length === 0)
    return section("time", "Time", el("p", {class: "note"}, "The breakdown of the time was not recorded."));
  const shown = runs.filter((i) => !choice.hidden.has(data.runs[i].name)).slice(0, 40);
  const content = [];
  if (runs.length > 1 && shown.length > 0) {
    const means = shown.map((i) => meanParts(data.runs[i].breakdown.ranks));
    const longest = Math.max(...means.map((parts) => timeParts.reduce((sum, [key]) => sum + (parts[key] || 0), 0)));
    content.push(el("h3", {}, "Each run, mean of its ranks"), el("div", {class: "bars"}, shown.map((i, n) => {
      const name = runName(i, "span");
      name.classList.add("label");
      return timeBar(name, means[n], longest);
    })));
  }
  const picker = runChoice(runs), run = data.runs[choice.run], ranks = run.breakdown.ranks.slice(0, 64);
  const longest = Math.max(...ranks.map((rank) => timeParts.reduce((sum, [key]) => sum + (rank[key] || 0), 0)));
  content.push(runs.length > 1 && el("h3", {}, "Ranks of one run"), picker,
    el("div", {class: "bars"}, ranks.map((rank) =>
      timeBar(el("span", {class: "label"}, `rank ${rank.rank}`), rank, longest))));
  if (run.breakdown.ranks.length > 64)
    content.push(el("p", {class: "note"}, `The first 64 of ${run.breakdown.ranks.length} ranks.`));
  const used = timeParts.map(([key], i) => i).filter((i) => runs.some((r) =>
    data.runs[r].breakdown.ranks.some((rank) => rank[timeParts[i][0]] > 0)));
  content.push(el("div", {class: "legend"}, used.map((i) => el("span", {}, swatch(partColour(i)), timeParts[i][1]))));
  if (run.breakdown.advice) content.push(el("p", {}, run.breakdown.advice.replace(/\.?$/, ".")));
  const missing = all.filter((i) => !measured(i));
  if (missing.length > 0)
    content.push(el("p", {class: "note"},
      `Not recorded: ${missing.slice(0, 8).map((i) => data.runs[i].name).join(", ")}` +
      (missing.length > 8 ? ` and ${missing.length - 8} more` : "") + "."));
  return section("time", "Time", ...content);
}

// --- Placement ---

// "0-3+8" as numbers.
function threadNumbers(text) {
  return String(text || "").split("+").filter(Boolean).flatMap((range) => {
    const [first, last] = range.split("-").map(Number);
    return Array.from({length: Math.min(4096, (last ?? first) - first + 1)}, (_, i) => first + i);
  });
}

// Hosts with sockets, NUMA nodes and hardware threads: of the recorded topology, else those that ranks use.
function hostsOf(run) {
  const hosts = new Map();
  const host = (name) => hosts.get(name) ||
    hosts.set(name, {name, nodes: new Map(), gpus: new Map(), memory: null}).get(name);
  const node = (of, socket, numa) => of.nodes.get(`${socket}/${numa}`) ||
    of.nodes.set(`${socket}/${numa}`, {socket, numa, threads: new Map()}).get(`${socket}/${numa}`);
  for (const known of Array.isArray(run.topology) ? run.topology : []) {
    const of = host(known.host);
    of.memory = known.memory_bytes;
    for (const part of known.nodes || [])
      for (const thread of threadNumbers(part.threads)) node(of, part.socket, part.numa).threads.set(thread, []);
    for (const gpu of known.gpus || []) of.gpus.set(gpu.index, []);
  }
  for (const rank of Array.isArray(run.placement) ? run.placement : []) {
    const of = host(rank.host), gpu = /^GPU (\d+)/.exec(rank.device || "");
    if (gpu) of.gpus.set(Number(gpu[1]), [...(of.gpus.get(Number(gpu[1])) || []), rank]);
    for (const thread of rank.cores || []) {
      const home = [...of.nodes.values()].find((part) => part.threads.has(thread)) ||
        node(of, (rank.sockets || [0])[0] ?? 0, (rank.numa || [0])[0] ?? 0);
      home.threads.set(thread, [...(home.threads.get(thread) || []), rank]);
    }
  }
  return [...hosts.values()];
}

function rankNames(ranks) {
  const names = ranks.map((rank) => rank.rank);
  return names.length > 2 ? `${names[0]}–${names.at(-1)}` : names.join(", ");
}

function cell(name, ranks, colour, gpu) {
  const used = ranks.length > 0;
  const title = used ? `${name}: rank ${rankNames(ranks)}; ${ranks[0].why || ""}` : `${name}: not used by the run`;
  return el("div", {class: `cell${gpu ? " gpu" : ""}${used ? " used" : ""}`, title,
                    style: used ? {background: colour(ranks[0].rank)} : {}},
    used ? `r${rankNames(ranks)}` : gpu ? name : "·");
}

function placementSection() {
  const runs = data.runs.map((run, i) => i).filter((i) => (data.runs[i].placement || []).length > 0);
  if (runs.length === 0) return null;
  const picker = runChoice(runs), run = data.runs[choice.run], most = 16;
  const colour = (rank) => {
    const dark = theme() === "dark";
    return `hsl(${(212 + rank * 47) % 360} ${dark ? 38 : 48}% ${dark ? 40 : 44}%)`;
  };
  const hosts = hostsOf(run);
  const boxes = hosts.slice(0, most).map((host) => {
    const sockets = new Map();
    for (const part of [...host.nodes.values()].sort((a, b) => a.socket - b.socket || a.numa - b.numa))
      sockets.set(part.socket, [...(sockets.get(part.socket) || []), part]);
    return el("div", {class: "host"},
      el("div", {class: "caption"}, host.name,
        host.memory ? el("span", {class: "soft"}, ` ${bytes(host.memory)}`) : null),
      el("div", {class: "within"}, [...sockets].map(([socket, parts]) => el("div", {class: "socket"},
        el("div", {class: "caption"}, `socket ${socket}`),
        el("div", {class: "within"}, parts.map((part) => el("div", {class: "numa"},
          el("div", {class: "caption"}, `NUMA node ${part.numa}`),
          el("div", {class: "cells"}, [...part.threads].sort((a, b) => a[0] - b[0]).map(([thread, ranks]) =>
            cell(`core ${thread}`, ranks, colour))))))))),
      host.gpus.size > 0 && el("div", {class: "cells"},
        [...host.gpus].sort((a, b) => a[0] - b[0]).map(([index, ranks]) =>
          cell(`GPU ${index}`, ranks, colour, true))));
  });
  const unbound = run.placement.filter((rank) => (rank.cores || []).length === 0).length;
  const ranks = run.ranks.filter((rank) => isNumber(rank.peak_resident_bytes));
  return section("placement", "Placement", picker,
    el("p", {class: "note"},
      `A cell is a hardware thread${hosts.some((host) => host.gpus.size > 0) ? " or a GPU" : ""}; ` +
      "“r1” means that rank 1 runs there." + (unbound > 0 ? ` ${unbound} ranks are not bound to cores.` : "") +
      (run.topology ? "" : " Cores that the run did not use were not recorded.")),
    el("div", {class: "hosts"}, boxes),
    hosts.length > most && el("p", {class: "note"}, `The first ${most} of ${hosts.length} hosts.`),
    ranks.length > 0 && el("p", {class: "note"},
      `Largest memory of a rank: ${bytes(Math.max(...ranks.map((rank) => rank.peak_resident_bytes)))}; ` +
      `of its tensors: ${bytes(Math.max(...ranks.map((rank) => rank.peak_tensor_bytes || 0)))}.`));
}

// --- Memory and CPU ---

function resourceChart(title, soft, key, texts, units) {
  const series = [];
  for (const i of shownRuns()) {
    const lines = Object.entries(data.runs[i][key]);
    for (const [line, curve] of lines)
      series.push({name: lines.length > 1 ? `${data.runs[i].name}, ${line}` : data.runs[i].name, colour: runColour(i),
                   xs: stepsOf(curve), ys: curve.y, width: 1.5});
  }
  if (series.length === 0) return null;
  const [unit, name] = timeUnit(Math.max(...series.map((one) => one.xs.at(-1) || 0)));
  const most = Math.max(...series.flatMap((one) => one.ys.filter(isNumber)), 1);
  const [size, sizeName] = units.find(([least]) => most >= least) || [1, ""];
  for (const one of series) {
    one.xs = one.xs.map((x) => x / unit);
    one.ys = one.ys.map((y) => isNumber(y) ? y / size : y);
  }
  return chart({title, soft: [sizeName, soft].filter(Boolean).join(", "), x: `time since the start (${name})`,
                xValue: (x) => duration(x * unit), yText: (y) => texts(y * size), zero: true, sync: "resources",
                series: () => series});
}

function resourcesSection() {
  const charts = [
    resourceChart("memory", "of the processes", "memory", bytes, [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [1, "bytes"]]),
    resourceChart("CPU", "busy cores", "cpu", number, []),
  ].filter(Boolean);
  if (charts.length > 0) return section("resources", "Memory and CPU", el("div", {class: "charts"}, charts));
  const any = data.runs.some((run) => Object.keys(run.memory).length > 0);
  return section("resources", "Memory and CPU", el("p", {class: "note"},
    any ? "No run with these measurements is chosen; tick one in the table above."
      : "Memory and CPU over time were not recorded."));
}

// --- Restarts and failures ---

// Ranks that left or joined while the run trained (launch.min_ranks).
function changesTable() {
  const rows = data.runs.flatMap((run, i) => (Array.isArray(run.membership) ? run.membership : []).map((change) => [
    runName(i, "span"), number(isNumber(change.attempt) ? change.attempt + 1 : null), number(change.step),
    [["left", change.left], ["joined", change.joined]].filter(([, ranks]) => Array.isArray(ranks) && ranks.length > 0)
      .map(([verb, ranks]) => `${ranks.length === 1 ? "rank" : "ranks"} ${ranks.join(", ")} ${verb}`).join("; "),
    number(change.ranks), isNumber(change.seconds) ? duration(change.seconds) : "–",
    el("td", {class: "long"}, change.why || "–")]));
  if (rows.length === 0) return [];
  return [el("h3", {}, "Changes of the ranks"), el("div", {class: "scroll"},
    table(["run", "attempt", "step", "change", "ranks after it", "time to the next step", "reason"], rows,
      [1, 2, 4, 5]))];
}

function attemptsSection() {
  const rows = [];
  data.runs.forEach((run, i) => {
    const attempts = Array.isArray(run.attempts) ? run.attempts : [];
    const listed = attempts.length > 0 && attempts.at(-1).attempt === (run.attempt ?? 0);  // the last one failed too
    attempts.forEach((attempt, n) => {
      const failure = attempt.failure || {};
      rows.push([
        runName(i, "span"), number(isNumber(attempt.attempt) ? attempt.attempt + 1 : null), number(run.world_size),
        attempt.paused ? "paused"
          : el("td", {class: failure.cause === "stopped" ? "stopped" : "failed"}, failure.cause || "failed"),
        number(failure.step), number(failure.rank), el("td", {class: "long"}, failure.message || "–"),
        listed && n === attempts.length - 1 ? "–"
          : isNumber(attempt.checkpoint) && attempt.checkpoint >= 0 ? `step ${number(attempt.checkpoint)}`
          : "the beginning",
      ]);
    });
    const failure = run.status === "ended" ? {message: "its convoy is gone; the same command resumes it"} : run.failure;
    if (!listed && (attempts.length > 0 || failure || run.attempt > 0))
      rows.push([
        runName(i, "span"), number((run.attempt ?? 0) + 1), number(run.world_size),
        el("td", {class: run.status}, run.status),
        number(failure ? failure.step : run.steps), number(failure && failure.rank),
        el("td", {class: "long"}, failure ? failure.message || failure.cause || "–" : "–"), "–",
      ]);
  });
  if (rows.length === 0)
    return section("attempts", "Restarts and failures",
      el("p", {class: "note"}, data.runs.some((run) => run.status === "running")
        ? "No run has failed or restarted."
        : "Every run ended in its first attempt."),
      ...changesTable());
  return section("attempts", "Restarts and failures",
    el("div", {class: "scroll"},
      table(["run", "attempt", "ranks", "end", "step", "rank", "message", "continued from"], rows, [1, 2, 4, 5])),
    ...changesTable());
}

// --- Differences ---

function differencesSection() {
  const {keys, runs} = data.differences;
  if (runs.length < 2) return null;
  if (keys.length === 0)
    return section("differences", "Configuration",
      el("p", {class: "note"}, "The configurations of the runs are equal."));
  const text = (value) => el("td", {}, el("code", {}, valueText(value)));
  const byKey = runs.length <= Math.max(8, keys.length);
  const content = byKey
    ? table(["key", ...runs.map((i) => el("th", {}, runName(i, "span")))],
        keys.map(({key, values}) => [el("code", {}, key), ...values.map(text)]))
    : table(["run", ...keys.map(({key}) => key)],
        runs.map((i, n) => [runName(i, "span"), ...keys.map(({values}) => text(values[n]))]));
  return section("differences", "Configuration differences",
    el("div", {class: runs.length + keys.length > 20 ? "scroll tall" : "scroll"}, content),
    runs.length < data.runs.length &&
      el("p", {class: "note"}, `Of the first ${runs.length} of ${data.runs.length} runs.`));
}
