"""README's and docs/launching.md's commands and files, as they are written, on small data."""
# timeout: 300
import contextlib
import re
import subprocess
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

SHORT = "--set data.path={data} --set train.epochs=1 --set train.max_steps=5 --set train.batch.global=16"


def ratings(path):
    """Forty users with six items each, in MovieLens' own form."""
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for user in range(40):
        lines += [f"u{user}\ti{(7 * user + 13 * k) % 150}\t4\t{1000 + k}" for k in range(6)]
    lines += [f"u{user}\ti{user + 40 * k}\t4\t{900 + k}" for user in range(40) for k in range(4)]
    path.write_text("\n".join(dict.fromkeys(lines)) + "\n")


def blocks(name, kind):
    text = (runs.TOP / name).read_text()
    return [block for found, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if found == kind]


def shell(line):
    return subprocess.run(["bash", "-c", line], cwd=runs.TOP, env=runs.environment(), timeout=120, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@contextlib.contextmanager
def restored(path):
    """As it was afterwards: some of the lines write it."""
    kept = path.read_bytes() if path.exists() else None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        if kept is not None:
            path.write_bytes(kept)


with runs.workspace() as work, restored(runs.TOP / "calibration.json"):
    ratings(work / "small.inter")
    short = SHORT.format(data=work / "small.inter")
    lines = [line.split("#")[0].strip() for block in blocks("README.md", "bash") for line in block.splitlines()]
    trained = 0
    for line in lines:
        if line.startswith("./"):
            runs.check((runs.TOP / line.split()[0]).exists(), f"README: {line}: no such program")
            continue
        runs.check("build/convoy" in line, f"README: what is '{line}'? this test runs lines of build/convoy")
        for config in re.findall(r"configs/\S+", line):
            runs.check((runs.TOP / config).exists(), f"README: {line}: there is no {config}")
        if "farm" in line or " add " in line:  # farms take minutes: multi/farm.py, top.py and farm_add.py run such lines
            continue
        line = line.replace("build/convoy", str(runs.CONVOY))
        if " run " in line:
            trained += 1
            few = short if "ncf" in line else "--set train.epochs=1 --set train.max_steps=5"
            line = f"{line} {few} --output {work}/run{trained}"
        if " explain " in line and "ncf_ddp" in line:
            line = f"{line} --set data.path={work}/small.inter"
        done = shell(line)
        runs.check(done.returncode == 0, f"README: {line}: exit {done.returncode}\n{done.stdout[-3000:]}")
        if " run " in line:
            runs.check(runs.summary(work / f"run{trained}")["status"] == "done", line)
        print("runs:", line)
    runs.check(trained >= 4, f"README shows only {trained} runs")

    (yaml,) = blocks("README.md", "yaml")
    (work / "readme.yaml").write_text(yaml)
    done = shell(f"{runs.CONVOY} run {work}/readme.yaml {short} --output {work}/yaml")
    runs.check(done.returncode == 0, f"README's file: exit {done.returncode}\n{done.stdout[-3000:]}")

    for line in [line for block in blocks("docs/explain.md", "bash") for line in block.splitlines()]:
        data = f" --set data.path={work}/small.inter" if "ncf_ddp" in line else ""
        done = shell(line.replace("build/convoy", str(runs.CONVOY)) + data)
        runs.check(done.returncode == 0, f"docs/explain.md: {line}: exit {done.returncode}\n{done.stdout[-3000:]}")

    # Every other code block of the shell in docs/ has a test of its own, or is one of these.
    (exports,) = [block for block in blocks("docs/launching.md", "bash") if "export OMPI_" in block]
    named = dict(re.findall(r"(OMPI_\w+)=(\w+)", exports))
    runs.check(named == runs.MPI, f"docs/launching.md exports {named}, tests need {runs.MPI}")
