"""The documentation builds as a site without a warning, its links resolve, and a browser contacts no other host."""
import os
import re
import subprocess
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

PYTHON = os.environ.get("CONVOY_PYTHON", "python3")
# Files that a browser fetches by itself; links that a reader clicks may lead anywhere.
FETCHED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?(?:https?:)?//[^"' >]+"""
                     r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|icon)"""
                     r"""[^>]*\bhref=["']?(?:https?:)?//[^"' >]+"""
                     r"""|url\(["']?(?:https?:)?//[^"')]+|@import ["'](?:https?:)?//[^"']+""")


def build(work, *more):
    return subprocess.run([PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", str(work / "site"), *more],
                          cwd=runs.TOP, timeout=120, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


if subprocess.run([PYTHON, "-c", "import mkdocs"], stderr=subprocess.DEVNULL).returncode != 0:
    print(f"skipped: {PYTHON} has no mkdocs; ./check installs it")
    sys.exit(77)

with runs.workspace() as work:
    done = build(work)
    runs.check(done.returncode == 0, f"the site does not build:\n{done.stdout[-4000:]}")
    pages = sorted((work / "site").rglob("*.html"))
    sources = list((runs.TOP / "docs").rglob("*.md"))
    runs.check(len(pages) >= len(sources), f"{len(sources)} pages of docs became {len(pages)} of the site")
    for file in [*pages, *(work / "site").rglob("*.css")]:
        found = FETCHED.search(file.read_text())
        runs.check(not found, f"{file.name} fetches from another host: {found and found[0]}")
    index = (work / "site" / "search" / "search_index.json").read_text()
    runs.check("all-reduce" in index, "the search index does not know all-reduce")

    # A broken link and a missing anchor are found, so that a change of mkdocs.yml cannot disable the check.
    broken = work / "broken"
    (broken / "docs").mkdir(parents=True)
    (broken / "docs" / "index.md").write_text("# A\n\n[b](b.md) [c](c.md#none)\n")
    (broken / "docs" / "c.md").write_text("# C\n")
    text = (runs.TOP / "mkdocs.yml").read_text().partition("\nnav:")[0]
    text = text.replace("cmake/site_hooks.py", str(runs.TOP / "cmake/site_hooks.py"))
    (broken / "mkdocs.yml").write_text(text + "\n")
    done = build(work, "--config-file", str(broken / "mkdocs.yml"))
    runs.check(done.returncode != 0 and "'b.md'" in done.stdout and "#none" in done.stdout,
               f"broken links were not found:\n{done.stdout}")
print(f"site: {len(pages)} pages")
