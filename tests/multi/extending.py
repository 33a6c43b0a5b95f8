"""docs/extending.md: makes its changes in a copy of the tree, builds the copy, and runs its commands."""
# labels: slow
# timeout: 3600
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs
from extending_page import PAGE, changed_copy, cmake_settings


def run(title, line, folder, **environment):
    done = subprocess.run(line, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=runs.environment(**environment))
    runs.check(done.returncode == 0, f"{PAGE}: {title}: exit {done.returncode}\n{done.stdout[-6000:]}")
    print(f"{PAGE}: {title}", flush=True)
    return done.stdout


with runs.workspace() as work:
    tree = work / "tree"
    blocks = changed_copy(tree)
    run("configures", ["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *cmake_settings()], tree)
    run("builds", ["cmake", "--build", "build", "--target", "convoy", "convoy-rank", "conformance_tests",
                   "equivalence_tests"], tree)
    for kind, name, text in blocks:
        if kind != "sh":
            continue
        # The plugin is built against the tested build; everything else is in the copy.
        folder = runs.TOP if name == "plugin" else tree
        output = run(f"{name} runs", ["bash", "-euo", "pipefail", "-c", text], folder, WORK=str(work),
                     CONVOY_BUILD=str(runs.BUILD))
        if name == "command":
            runs.check(re.search(r"^\S+\.weight \d+\.\d{4}$", output, re.M), f"{PAGE}: {name} printed {output}")
        summary = runs.summary(tree / "runs" / name)
        if "--set name=" in text:
            runs.check(summary and summary["status"] == "done", f"{PAGE}: {name}: {summary}")
        if name == "list":
            for added in ("logistic", "absolute", "ring", "brightness", "summed", "store"):
                runs.check(re.search(rf"^  {added} ", output, re.M), f"{PAGE}: `convoy list` lacks {added}")
    runs.check(runs.summary(work / "run")["status"] == "done", "the plugin's run is done")
    page = run("the reference page has all", ["build/convoy", "list", "--markdown"], tree)
    runs.check("### backend: store" in page and "| `scale` | number, above 0 |" in page,
               "the reference page lacks names")
