"""Commands and files of README, docs/getting_started.md and docs/launching.md, unchanged, on small data."""
# timeout: 300
import re
import subprocess
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

def blocks(name, kind):
    text = (runs.TOP / name).read_text()
    return [block for found, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if found == kind]


def shell(line, folder=runs.TOP):
    return subprocess.run(["bash", "-c", line], cwd=folder, env=runs.environment(), timeout=120, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def houses(path, rows=400):
    """Writes the file of README and docs/getting_started.md; it begins with README's lines."""
    (shown,) = blocks("README.md", "csv")
    lines = [f"{30 + row % 170}.5,{1 + row % 7},{row % 80}.0,{400 + row % 300}.25" for row in range(rows)]
    path.write_text(shown + "\n".join(lines) + "\n")


def commands(page):
    return [line.split("#")[0].strip() for block in blocks(page, "bash") for line in block.splitlines()]


def run_all(page, folder, least, config):
    """Runs the page's lines of build/convoy in the folder with its data and its file."""
    trained = 0
    for line in commands(page):
        if line.startswith("./") or not line:
            runs.check(not line or (runs.TOP / line.split()[0]).exists(), f"{page}: {line}: no such program")
            continue
        runs.check("build/convoy" in line, f"{page}: what is '{line}'? this test runs lines of build/convoy")
        runs.check(f" {config}" in line, f"{page}: '{line}' does not name {config}")
        line = line.replace("build/convoy", str(runs.CONVOY))
        output = folder / f"run{trained}"
        if " run " in line:
            trained += 1
            line += f" --output {output}"
        done = shell(line, folder)
        runs.check(done.returncode == 0, f"{page}: {line}: exit {done.returncode}\n{done.stdout[-3000:]}")
        if " run " in line:
            runs.check(runs.summary(output)["status"] == "done", line)
        print("runs:", line)
    runs.check(trained >= least, f"{page} shows only {trained} runs")


with runs.workspace() as work:
    houses(work / "houses.csv")
    (yaml,) = blocks("README.md", "yaml")
    (work / "houses.yaml").write_text(yaml)
    run_all("README.md", work, 4, "houses.yaml")

    # README's mistake, made in its file.
    (shown,) = re.findall(r"`(houses\.yaml:\d+:\d+: .*?)`", (runs.TOP / "README.md").read_text())
    (work / "houses.yaml").write_text(yaml.replace("\noptimizer", "\noptimzer"))
    done = shell(f"{runs.CONVOY} run houses.yaml", work)
    runs.check(done.returncode == 78 and shown in done.stdout, f"README shows '{shown}', convoy prints: {done.stdout}")

    (work / "start").mkdir()
    houses(work / "start" / "houses.csv")
    (yaml,) = blocks("docs/getting_started.md", "yaml")
    (work / "start" / "houses.yaml").write_text(yaml)
    run_all("docs/getting_started.md", work / "start", 6, "houses.yaml")

    # Every other shell block in docs/ has another test, or is one of these.
    (exports,) = [block for block in blocks("docs/launching.md", "bash") if "export OMPI_" in block]
    named = dict(re.findall(r"(OMPI_\w+)=(\w+)", exports))
    runs.check(named == runs.MPI, f"docs/launching.md exports {named}, tests need {runs.MPI}")
