"""convoy add: a pipeline joins a running farm. Mistakes, used names, folders without a farm and farms that have ended
are reported, each with its exit code."""
# timeout: 120
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

COMMON = """\
device: cpu
model: {name: mlp, hidden: [16]}
data: {name: table, path: data.csv, evaluate: {fraction: 0.1}}
optimizer: {name: adam, lr: 0.01}
train: {epochs: 100000, max_steps: STEPS, batch: {global: 16}, evaluate_every: never, checkpoint_every: never}
"""
FARM = ("name: farm\n" + COMMON +
        "strategy: {name: independent, cores: 1, max_parallel: 1, pipelines: [{name: first}]}\n")


def pipeline(name, steps=5, extra=""):
    lines = "".join(f"  {line}\n" for line in (COMMON.replace("STEPS", str(steps)) + "strategy: single").splitlines())
    return f"name: {name}\npriority: 3\npreempt: true\ncores: 1\nconfig:\n{lines}{extra}"


with runs.workspace() as folder:
    there, elsewhere = folder / "there", folder / "elsewhere"
    there.mkdir()
    elsewhere.mkdir()
    (there / "data.csv").write_text("a,b,target\n" + "".join(f"{i % 7},{i % 3},{i % 2}\n" for i in range(200)))
    (there / "farm.yaml").write_text(FARM.replace("STEPS", "1000000"))

    def add(text, code, *words, run=there / "run"):
        (elsewhere / "more.yaml").write_text(text)
        done = subprocess.run([str(runs.CONVOY), "add", str(run), "more.yaml"], cwd=elsewhere, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        runs.check(done.returncode == code, f"exit {done.returncode}, expected {code}: {done.stdout}")
        for word in words:
            runs.check(word in done.stdout, f"'{word}' is not said: {done.stdout}")

    console = open(folder / "console", "w")
    farm = subprocess.Popen([str(runs.CONVOY), "run", "farm.yaml", "--output", "run"], cwd=there, stdout=console,
                            stderr=subprocess.STDOUT)
    try:
        runs.training(there / "run" / "pipelines" / "first")
        add(pipeline("second", extra="  batches: 3\n"), 78, "more.yaml:", "batches")
        add(pipeline("second").replace("priority: 3", "priority: high"), 78, "more.yaml:2:11: priority: is 'high'")
        add(pipeline("first"), 78, "name: is 'first'")
        add(pipeline("second").replace("cores: 1", "cores: 4096"), 78, "cores")
        add(pipeline("second").replace("cores: 1", "gpus: 64"), 69, "more.yaml:4:7: second.gpus: needs 64")
        # Its data is found relative to the farm's working folder, which differs from this one.
        add(pipeline("second"), 0, "second: in the queue", "priority 3")
        add(pipeline("second"), 78, "name: is 'second'")
        done = runs.wait_for(
            lambda: (runs.summary(there / "run" / "pipelines" / "second") or {}).get("status") == "done", 60,
            "the added one")
        runs.check(not list((there / "run" / "inbox").glob(".*")), "a temporary is left in the inbox")

        # A stopped farm that does not answer gets nothing that it could read later.
        farm.send_signal(signal.SIGSTOP)
        (elsewhere / "late.yaml").write_text(pipeline("late"))
        late = subprocess.run([str(runs.CONVOY), "add", str(there / "run"), "late.yaml", "--wait", "1"], cwd=elsewhere,
                              stderr=subprocess.PIPE, text=True, timeout=30)
        farm.send_signal(signal.SIGCONT)
        runs.check(late.returncode == 110 and "did not answer" in late.stderr, f"{late.returncode} {late.stderr}")
        runs.check(not (there / "run" / "inbox" / "late.yaml").exists(), "it was left for the farm to take")
    finally:
        farm.send_signal(signal.SIGTERM)
        runs.end(farm, 60)
    add(pipeline("third"), 73, "no process runs this farm")
    add(pipeline("third"), 64, "no such folder", run=folder / "nowhere")
    add(pipeline("third"), 64, "is not the run folder of a farm", run=there)
    print("valid pipelines are added, and mistakes are reported")
