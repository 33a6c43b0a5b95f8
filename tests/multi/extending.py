"""docs/extending.md: its changes are made in a copy of the tree, the copy is built, and its commands run."""
# labels: slow
# timeout: 3600
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

PAGE = "docs/extending.md"
FOLDERS = ("backends", "cmake", "configs", "core", "docs", "launch", "models", "strategies", "tests")
# CMake variables that the copy takes from the build.
SETTINGS = re.compile(r"^((?:CONVOY_WITH_|CONVOY_SANITIZE|CONVOY_PCH|CMAKE_BUILD_TYPE|CMAKE_CXX_COMPILER|Torch_DIR|"
                      r"CMAKE_PREFIX_PATH)\w*:\w+=.*)$", re.M)


def fences():
    """(kind, name, text) of each code block with a name, in order."""
    return re.findall(r"^```(\w+) (\S+)\n(.*?)^```$", (runs.TOP / PAGE).read_text(), re.M | re.S)


def copy_tree(tree):
    tree.mkdir()
    for folder in FOLDERS:
        shutil.copytree(runs.TOP / folder, tree / folder)
    shutil.copy(runs.TOP / "CMakeLists.txt", tree)
    if (runs.TOP / ".deps").exists():
        (tree / ".deps").symlink_to(runs.TOP / ".deps")


def change(tree, name, diff):
    """Applies a block of lines with ' ', '+' and '-'; a line '@@' separates changes of one file."""
    lines = (tree / name).read_text().split("\n")
    for hunk in re.split(r"^@@\n", diff, flags=re.M):
        marked = hunk.rstrip("\n").split("\n")
        old = [line[1:] for line in marked if not line.startswith("+")]
        new = [line[1:] for line in marked if not line.startswith("-")]
        found = [at for at in range(len(lines)) if lines[at:at + len(old)] == old]
        runs.check(len(found) == 1, f"{PAGE}: {name} has these lines {len(found)} times:\n" + "\n".join(old))
        lines[found[0]:found[0] + len(old)] = new
    (tree / name).write_text("\n".join(lines))


def apply(tree, blocks):
    touched = []
    for kind, name, text in blocks:
        if kind in ("cpp", "yaml"):
            runs.check(not (tree / name).exists(), f"{PAGE}: {name} exists already")
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        elif kind == "diff":
            change(tree, name, text)
        if kind in ("cpp", "diff"):
            touched.append(name)
    return touched


def run(title, line, folder, **environment):
    done = subprocess.run(line, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=runs.environment(**environment))
    runs.check(done.returncode == 0, f"{PAGE}: {title}: exit {done.returncode}\n{done.stdout[-6000:]}")
    print(f"{PAGE}: {title}", flush=True)
    return done.stdout


def check_layers(tree, touched):
    done = subprocess.run(["bash", "cmake/layering.sh"], cwd=tree, text=True, stdout=subprocess.PIPE)
    before = subprocess.run(["bash", "cmake/layering.sh"], cwd=runs.TOP, text=True, stdout=subprocess.PIPE)
    known = {re.sub(r":\d+:", ":", line) for line in before.stdout.splitlines()}
    found = [line for line in done.stdout.splitlines()
             if line.startswith(tuple(touched)) and re.sub(r":\d+:", ":", line) not in known]
    runs.check(not found, f"{PAGE} breaks the layers:\n" + "\n".join(found))


def check_counts(blocks):
    """The table of files to touch tells the truth."""
    text = (runs.TOP / PAGE).read_text()
    table = re.findall(r"^\| \[\w+ ([a-z ]+)\]\(#[a-z-]+\) \| (\d+) \| (\d+) \|$", text, re.M)
    runs.check(len(table) == 7, f"{PAGE}: the table of files has {len(table)} rows")
    for what, files, new in table:
        article = "An" if what[0] in "aeiou" else "A"
        part = re.search(rf"^## {article} {what}\n(.*?)(?=^## )", text, re.M | re.S)[1]
        named = {(kind, name) for kind, name in re.findall(r"^```(cpp|diff) (\S+)$", part, re.M)}
        runs.check(len({name for _, name in named}) == int(files), f"{PAGE}: {what} touches {sorted(named)}")
        runs.check(sum(kind == "cpp" for kind, _ in named) == int(new), f"{PAGE}: {what} adds {sorted(named)}")


blocks = fences()
check_counts(blocks)
with runs.workspace() as work:
    tree = work / "tree"
    copy_tree(tree)
    touched = apply(tree, blocks)
    check_layers(tree, touched)
    settings = [f"-D{setting}" for setting in SETTINGS.findall((runs.BUILD / "CMakeCache.txt").read_text())]
    run("configures", ["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *settings], tree)
    run("builds", ["cmake", "--build", "build", "--target", "convoy", "convoy-rank", "conformance_tests"], tree)
    for kind, name, text in blocks:
        if kind != "sh":
            continue
        # The plugin is built against the build that is tested, all else is in the copy.
        folder = runs.TOP if name == "plugin" else tree
        output = run(f"{name} runs", ["bash", "-euo", "pipefail", "-c", text], folder, WORK=str(work),
                     CONVOY_BUILD=str(runs.BUILD))
        summary = runs.summary(tree / "runs" / name)
        if "--set name=" in text:
            runs.check(summary and summary["status"] == "done", f"{PAGE}: {name}: {summary}")
        if name == "list":
            for added in ("logistic", "absolute", "ring", "brightness", "summed", "store"):
                runs.check(re.search(rf"^  {added} ", output, re.M), f"{PAGE}: `convoy list` lacks {added}")
    runs.check(runs.summary(work / "run")["status"] == "done", "the plugin's run is done")
    page = run("the reference page has all", ["build/convoy", "list", "--markdown"], tree)
    runs.check("### backend: store" in page and "| `scale` | number, above 0 |" in page, "the reference page lacks names")
