"""Files and commands of docs/strategies, docs/explain.md and two how-to pages: they run, and print the documented
sizes."""
# timeout: 400
import os
import re
import subprocess
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

PAGES = [*sorted((runs.TOP / "docs" / "strategies").glob("*.md")), runs.TOP / "docs" / "explain.md",
         runs.TOP / "docs" / "howto" / "plan_a_cluster.md", runs.TOP / "docs" / "howto" / "tune.md"]
SMALL = "--set model.dim=32 --set data.length=16 --set train.max_steps=4"  # settings of a GPT
SIZE = re.compile(r"\d (KiB|MiB|GiB)\b")


def blocks(page):
    """Returns (kind, text) of each code block, in page order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.M | re.S)


def save(page, folder):
    """Writes each complete file of the page as NAME.yaml; returns their names."""
    names = []
    for kind, text in blocks(page):
        if kind == "yaml":
            named = re.match(r"name: (\S+)\n", text)
            runs.check(named, f"{page.name}: a file without a name, which cannot be run:\n{text}")
            (folder / f"{named[1]}.yaml").write_text(text)
            names.append(named[1])
    return names


def shell(line, folder, page):
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=runs.environment(), timeout=120, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"{page.name}: {line}: exit {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def plain(text):
    return {" ".join(line.split()) for line in text.splitlines()}


def check_page(page, folder, seen):
    printed, sizes = set(), 0
    for kind, text in blocks(page):
        if kind == "bash":
            printed = set()
            for line in text.splitlines():
                if " run " in line:
                    line += f" {SMALL}" if " gpt-" in line else ""
                if line not in seen:
                    seen[line] = shell(line, folder, page)
                printed |= plain(seen[line]) if " explain " in line else set()
        if kind == "text" and printed:
            for line in plain(text):
                if SIZE.search(line) and " cores, " not in line:  # depends on the machine, not on the run
                    sizes += 1
                    runs.check(line in printed, f"{page.name} shows a line that explain does not print:\n{line}\n"
                               + "\n".join(sorted(printed)))
    return sizes


with runs.workspace() as folder:
    for name, target in {"build": runs.BUILD, "configs": runs.TOP / "configs", "tests": runs.TOP / "tests"}.items():
        (folder / name).symlink_to(target)
    seen, files, sizes = {}, set(), 0
    for page in PAGES:
        save(page, folder)  # includes other pages: a page may name them
    for page in PAGES:
        files |= set(save(page, folder))
        sizes += check_page(page, folder, seen)
    for name in sorted(files):
        if not any(f"{name}.yaml" in line for line in seen):
            shell(f"build/convoy run {name}.yaml --output {folder}/unnamed/{name}", folder, page)
    runs.check(len(files) >= 15 and sizes >= 40, f"only {len(files)} files and {sizes} lines with sizes were found")
print(f"{len(files)} files and {len(seen)} commands run, {sizes} lines with sizes agree with explain")
