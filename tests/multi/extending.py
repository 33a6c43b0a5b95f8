"""What docs/extending.md says: its code compiles with this build's own flags, its commands run."""
# timeout: 600
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

# A file of the same folder whose flags the new one would get.
LIKE = {"models": "models/ncf.cpp", "core": "core/data/rows.cpp", "strategies": "strategies/single.cpp",
        "backends": "backends/local.cpp"}
LIKE_ENTRY = {"models": "models/ncf_entry.cpp", "core": "core/data/table_entry.cpp",
              "strategies": "strategies/single_entry.cpp", "backends": "backends/local_entry.cpp"}


def flags(like, commands):
    """The compile command of an existing file, without its input, output and compiler cache."""
    words = shlex.split(commands[str(runs.TOP / like)])
    start = next(i for i, w in enumerate(words) if re.search(r"(c\+\+|g\+\+|clang\+\+)[-0-9.]*$", w))
    kept, skip = [], False
    for word in words[start:]:
        if skip:
            skip = False
        elif word in ("-o", "-c", "-MF", "-MT"):
            skip = True
        elif word != "-MD":
            kept.append(word)
    return kept


def compile_blocks(blocks, folder):
    entries = json.loads((runs.BUILD / "compile_commands.json").read_text())
    commands = {entry["file"]: entry["command"] for entry in entries}
    for name, code in blocks:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    sources = [name for name, _ in blocks if name.endswith(".cpp")]
    runs.check(len(sources) >= 9, f"only {len(sources)} sources in docs/extending.md")
    for name in sources:
        like = (LIKE_ENTRY if name.endswith("_entry.cpp") else LIKE)[name.split("/")[0]]
        # Functions without a declaration are what the text tells the reader to declare.
        line = [*flags(like, commands), f"-I{folder}", "-fsyntax-only", str(folder / name)]
        done = subprocess.run(line, cwd=runs.BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        runs.check(done.returncode == 0, f"docs/extending.md: {name} does not compile:\n{done.stdout[-3000:]}")
        print("compiles:", name)


text = (runs.TOP / "docs" / "extending.md").read_text()
fences = re.findall(r"^```(\w+) (\S+)\n(.*?)^```$", text, re.M | re.S)
with runs.workspace() as work:
    compile_blocks([(name, code) for kind, name, code in fences if kind == "cpp"], work / "code")
    for kind, name, code in fences:
        if kind != "sh":
            continue
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=runs.TOP, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              env=runs.environment(WORK=str(work), CONVOY_BUILD=str(runs.BUILD)))
        runs.check(done.returncode == 0, f"docs/extending.md, {name}: exit {done.returncode}\n{done.stdout[-3000:]}")
        print("runs:", name)
    runs.check(runs.summary(work / "run")["status"] == "done", "the plugin's run is done")
