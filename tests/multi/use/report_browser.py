"""The page of `convoy report` in headless Chromium, at three sizes: no errors, no requests, interactive within a
second, axes, themes, hostile texts, and a served page. CONVOY_SCREENSHOTS=DIR keeps the pictures."""
# labels: slow
# timeout: 600
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import browser
import report_runs
import runs

SIZES = {"desktop": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}


def written(work, name, *folders):
    page = work / f"{name}.html"
    subprocess.run([str(runs.CONVOY), "report", *map(str, folders), "-o", str(page)], check=True, timeout=60)
    return page


def check_quiet(page, opened, title):
    runs.check(page.problems == [], f"{title}: {page.problems[:3]}")
    runs.check(set(page.requests) == {opened}, f"{title}: requested {page.requests}")


def tick_texts(page):
    """Returns the horizontal axis that the buttons select: its label is drawn on a canvas and cannot be read."""
    return page.value("document.querySelector('#curves button[aria-pressed=true]').dataset.value")


def opened_in(page, file):
    """Milliseconds from the start of the navigation until the page is laid out and answers."""
    page.open(file)
    page.until("document.documentElement.dataset.ready !== undefined")
    return int(page.value("document.documentElement.dataset.ready"))


def interactive(work, folders, pictures):
    file = written(work, "many", *folders)
    opened = file.resolve().as_uri()
    for name, (width, height) in SIZES.items():
        with browser.Page(width, height, dark=name == "tablet", within=120) as page:
            ready = opened_in(page, file)
            for _ in range(7):  # other programs use the machine too, and this is wall time
                ready = ready if ready <= 1000 else min(ready, opened_in(page, file))
            runs.check(ready <= 1000, f"{name}: interactive after {ready} ms")
            runs.check(page.value("document.documentElement.scrollWidth <= innerWidth"),
                       f"{name}: the page is too wide")
            theme = page.value("document.documentElement.dataset.theme")
            runs.check(theme == ("dark" if name == "tablet" else "light"), f"{name}: theme {theme}")
            page.screenshot(pictures / f"{name}.png")
            page.value("document.querySelector('#curves').scrollIntoView()")
            page.until("document.querySelectorAll('#curves canvas').length > 1")
            for axis in ("samples", "time", "step"):
                page.click(f"#curves button[data-value={axis}]")
                runs.check(tick_texts(page) == axis, f"{name}: axis {axis}")
                page.until("document.querySelectorAll('#curves canvas').length > 1")
            for box in (0, 1):  # logarithmic axes
                page.value(f"document.querySelectorAll('#curves input[type=checkbox]')[{box}].click()")
            runs.check(page.value("[...document.querySelectorAll('#curves input[type=checkbox]')]"
                                  ".every((box) => box.checked)"), f"{name}: logarithmic axes")
            page.until("document.querySelectorAll('#curves canvas').length > 1")
            if name == "desktop":
                middle = page.value("(() => { "
                                    "const box = document.querySelector('#curves .u-over').getBoundingClientRect(); "
                                    "return [box.x + box.width / 2, box.y + box.height / 2]; })()")
                page.move(*middle)
                page.until("[...document.querySelectorAll('.tip')]"
                           ".some((tip) => !tip.hidden && tip.textContent.includes('run-'))")
            page.screenshot(pictures / f"{name}-curves.png")
            page.click("#theme")
            runs.check(page.value("document.documentElement.dataset.theme") != theme, f"{name}: the theme stays")
            for part in ("time", "placement", "resources", "attempts", "differences"):
                page.value(f"document.querySelector('#{part}').scrollIntoView()")
                if part == "resources":  # charts are drawn in view
                    page.until("document.querySelectorAll('#resources canvas').length == 2")
            check_quiet(page, opened, name)
            print(f"{name}: interactive after {ready} ms", flush=True)


def of_a_farm(work, pictures):
    runs.run(report_runs.farm(work), work / "farm")
    file = written(work, "farm-page", work / "farm")
    with browser.Page(1440, 1000) as page:
        page.open(file)
        page.value("document.querySelector('#farm-0').scrollIntoView()")
        page.until("document.querySelectorAll('#farm-0 svg .path').length == 4")
        runs.check(page.value("document.querySelectorAll('#farm-0 .slotbar').length") == 4, "schedule")
        first = "document.querySelector('#farm-0 tbody td:nth-child(2)').textContent"
        best = page.value(first)
        page.value("[...document.querySelectorAll('#farm-0 th')]"
                   ".find((head) => head.textContent.startsWith('accuracy')).click()")
        runs.check(page.value(first) != best, f"sorted by accuracy, {best} stays first")
        page.screenshot(pictures / "farm.png")
        check_quiet(page, file.resolve().as_uri(), "farm")
    print("farm: leaderboard, parallel coordinates, schedule", flush=True)


def hostile(work):
    file = written(work, "hostile-page", report_runs.hostile(work / "hostile"))
    with browser.Page(1440, 12000) as page:
        page.open(file)
        page.until("document.querySelectorAll('#curves canvas').length > 0")
        runs.check(page.value("window.hacked === undefined && document.querySelectorAll('img').length == 0"),
                   "a script ran")
        runs.check(page.value("document.querySelector('#attempts').textContent.includes('</script>')"),
                   "the text is missing")
        check_quiet(page, file.resolve().as_uri(), "hostile")
        page.value("document.body.append(Object.assign(document.createElement('script'), "
                   "{textContent: 'window.hacked = 1'}))")
        runs.check(page.value("window.hacked === undefined"), "the policy of the page allows other scripts")
    print("hostile: texts stay texts, and the policy blocks other scripts", flush=True)


def served(work, folder):
    server = subprocess.Popen([str(runs.CONVOY), "report", str(folder), "--serve", "--port", "0"], text=True,
                              stdout=subprocess.PIPE)
    try:
        url = re.search(r"http://\S+/", server.stdout.readline()).group(0)
        with browser.Page(1440, 900) as page:
            page.open(url)
            lines = (folder / "metrics.jsonl").read_text().replace('"accuracy":', '"recall":')
            (folder / "metrics.jsonl").write_text(lines)
            page.until("document.querySelector('#curves').textContent.includes('recall')", 20)
            runs.check(page.problems == [], f"served: {page.problems[:3]}")
            runs.check(all(one.startswith(url) for one in page.requests), f"served: requested {page.requests}")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    print("served: the page follows the files", flush=True)


def main():
    if browser.PROGRAM is None:
        print("skipped: there is no chromium (apt-get install chromium)")
        sys.exit(77)
    with runs.workspace() as work:
        pictures = pathlib.Path(os.environ.get("CONVOY_SCREENSHOTS", work / "pictures"))
        pictures.mkdir(parents=True, exist_ok=True)
        folders = report_runs.many(work / "many", 20, 10000)
        interactive(work, folders, pictures)
        of_a_farm(work, pictures)
        hostile(work)
        served(work, folders[0])


main()
