// Puts the page together, and keeps it up to date while it is served.

function setTheme() {
  document.documentElement.dataset.theme = theme();
  document.getElementById("theme").textContent = theme() === "dark" ? "Light" : "Dark";
}

function usualChoices() {
  if (choice.smoothing < 0) {
    const long = data.runs.some((run) => run.training.loss && run.training.loss.y.length > 120);
    choice.smoothing = long ? 0.6 : 0;
  }
  if (data.runs.length > 20) for (const run of data.runs.slice(10)) choice.hidden.add(run.name);
}

function render() {
  forgetCharts();
  lit.rows.clear();
  lit.paths.clear();
  lit.svgs.length = 0;
  const top = window.scrollY, main = document.getElementById("page");
  const scrolled = [...main.querySelectorAll(".scroll")].map((box) => [box.scrollTop, box.scrollLeft]);
  const sections = [sentencesSection(), runsSection(), curvesSection(), ...data.farms.map(farmSection), timeSection(),
                    placementSection(), resourcesSection(), attemptsSection(), differencesSection()].filter(Boolean);
  const controls = () => [...main.querySelectorAll("button, input, select, th[tabindex]")];
  const focused = controls().indexOf(document.activeElement);
  main.replaceChildren(...sections);
  if (focused >= 0 && controls()[focused]) controls()[focused].focus({preventScroll: true});
  [...main.querySelectorAll(".scroll")].forEach((box, i) => {
    if (scrolled[i]) [box.scrollTop, box.scrollLeft] = scrolled[i];
  });
  document.getElementById("contents").replaceChildren(...sections.filter((one) => one.tagName === "SECTION")
    .map((one) => el("a", {href: `#${one.id}`}, one.firstChild.textContent)));
  const when = new Date(data.written * 1000);
  document.getElementById("foot").replaceChildren(
    el("p", {}, `Written by convoy ${data.version} on ${when.toLocaleString("en-GB")}`,
      live ? "; the page follows the runs." : "."),
    el("p", {id: "state"}));
  document.title = data.runs.length === 1 ? `${data.runs[0].name}: convoy report` : "convoy report";
  window.scrollTo(0, top);
}

// A served page requests the data again while a run is training.
async function refresh() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("data.json");
    if (!answer.ok) throw new Error(`${answer.status}`);
    const now = await answer.json();
    const {written: a, ...before} = data, {written: b, ...after} = now;
    const changed = JSON.stringify(before) !== JSON.stringify(after);
    data = now;
    if (changed) render();
  } catch (error) {
    state.textContent = "The server does not answer; is its convoy report still running? The page tries again.";
  }
  setTimeout(refresh, 5000);
}

document.getElementById("theme").addEventListener("click", () => {
  choice.theme = theme() === "dark" ? "light" : "dark";
  setTheme();
  render();
});
systemDark.addEventListener("change", () => { setTheme(); render(); });
setTheme();
usualChoices();
render();
requestAnimationFrame(() => { document.documentElement.dataset.ready = performance.now().toFixed(0); });
if (live) setTimeout(refresh, 5000);
