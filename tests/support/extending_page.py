"""Makes the changes of docs/extending.md in a copy of the tree, and checks the files that they touch."""
import re
import shutil
import subprocess

import runs

PAGE = "docs/extending.md"
TESTS = ("tests/equivalence/", "tests/support/")  # not counted, unlike the list of backends in tests/conformance
FOLDERS = ("api", "backends", "cmake", "configs", "core", "docs", "include", "launch", "models", "strategies", "tests")

# CMake variables that a copy of the tree takes from the build.
SETTINGS = re.compile(r"^((?:CONVOY_WITH_|CONVOY_SANITIZE|CONVOY_PCH|CMAKE_BUILD_TYPE|CMAKE_CXX_COMPILER|Torch_DIR|"
                      r"CONVOY_TORCH_NAMED|CMAKE_PREFIX_PATH)\w*:\w+=.*)$", re.M)


def cmake_settings():
    return [f"-D{setting}" for setting in SETTINGS.findall((runs.BUILD / "CMakeCache.txt").read_text())]


def fences():
    """Returns (kind, name, text) of each code block with a name, in order."""
    return re.findall(r"^```(\w+) (\S+)\n(.*?)^```$", (runs.TOP / PAGE).read_text(), re.M | re.S)


def copy_tree(tree):
    tree.mkdir()
    for folder in FOLDERS:
        shutil.copytree(runs.TOP / folder, tree / folder)
    for name in (".clang-format", "CMakeLists.txt", "LICENSE"):
        shutil.copy(runs.TOP / name, tree)
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
    for kind, name, text in blocks:
        if kind in ("cpp", "yaml"):
            runs.check(not (tree / name).exists(), f"{PAGE}: {name} exists already")
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        elif kind == "diff":
            change(tree, name, text)


def check_layers(tree):
    done = subprocess.run(["bash", "cmake/layering.sh"], cwd=tree, text=True, stdout=subprocess.PIPE)
    before = subprocess.run(["bash", "cmake/layering.sh"], cwd=runs.TOP, text=True, stdout=subprocess.PIPE)
    known = {re.sub(r":\d+:", ":", line) for line in before.stdout.splitlines()}
    found = [line for line in done.stdout.splitlines() if re.sub(r":\d+:", ":", line) not in known]
    runs.check(not found, f"{PAGE} breaks the layers:\n" + "\n".join(found))


def check_format(tree, blocks):
    """New files are formatted. Changed ones may need `./check --format`, as the page says."""
    formatter = shutil.which("clang-format-14")
    if not formatter:
        print(f"{PAGE}: the format is not compared: clang-format-14 is missing")
        return
    sources = [name for kind, name, _ in blocks if kind == "cpp"]
    done = subprocess.run([formatter, "--dry-run", "-Werror", *sources], cwd=tree, text=True, stderr=subprocess.PIPE)
    runs.check(done.returncode == 0, f"{PAGE} is not formatted:\n{done.stderr[:2000]}")


def check_counts(blocks):
    """Checks that the page's table of files is correct."""
    text = (runs.TOP / PAGE).read_text()
    table = re.findall(r"^\| \[\w+ ([a-z ]+)\]\(#[a-z-]+\) \| [a-z ]+ \| (\d+) \| (\d+) \|$", text, re.M)
    runs.check(len(table) == 8, f"{PAGE}: the table of files has {len(table)} rows")
    for what, files, new in table:
        article = "An" if what[0] in "aeiou" else "A"
        part = re.search(rf"^## {article} {what}\n(.*?)(?=^## )", text, re.M | re.S)[1]
        named = {(kind, name) for kind, name in re.findall(r"^```(cpp|diff) (\S+)$", part, re.M)
                 if not name.startswith(TESTS)}
        runs.check(len({name for _, name in named}) == int(files), f"{PAGE}: {what} touches {sorted(named)}")
        runs.check(sum(kind == "cpp" for kind, _ in named) == int(new), f"{PAGE}: {what} adds {sorted(named)}")


def changed_copy(tree):
    """Copies the tree, makes all changes of the page in the copy, and returns the page's blocks."""
    blocks = fences()
    check_counts(blocks)
    copy_tree(tree)
    apply(tree, blocks)
    check_layers(tree)
    check_format(tree, blocks)
    return blocks
