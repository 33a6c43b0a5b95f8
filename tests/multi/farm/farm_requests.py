"""convoy cancel and convoy priority on a running farm, with their errors."""
# timeout: 120
import json
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

FARM = """\
name: farm
device: cpu
model: {name: mlp, hidden: [16]}
data: {name: synthetic, kind: classification, rows: 200, evaluate_rows: 0, features: [4], classes: 2}
optimizer: {name: adam, lr: 0.01}
train: {epochs: 100000, max_steps: 1000000, batch: {global: 16}, evaluate_every: never, checkpoint_every: never}
strategy:
  name: independent
  cores: 1
  max_parallel: 1
  pipelines:
    - {name: long, priority: 5}
    - {name: second, config: {train: {epochs: 1, max_steps: 5}}}
    - {name: third, config: {train: {epochs: 1, max_steps: 5}}}
    - {name: never}
"""

with runs.workspace() as folder:
    (folder / "farm.yaml").write_text(FARM)
    run = folder / "run"

    def send(code, words, *line):
        done = subprocess.run([str(runs.CONVOY), *line], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60)
        runs.check(done.returncode == code, f"{line}: exit {done.returncode}, expected {code}: {done.stdout}")
        for word in words:
            runs.check(word in done.stdout, f"{line}: no '{word}' in {done.stdout}")

    with open(folder / "console", "w") as console:
        farm = subprocess.Popen([str(runs.CONVOY), "run", "farm.yaml", "--output", "run"], cwd=folder, stdout=console,
                                stderr=subprocess.STDOUT)
    try:
        runs.training(run / "pipelines" / "long")
        send(64, ["no such folder"], "cancel", "nowhere", "long")
        send(64, ["no pipeline thrid", "did you mean third?"], "cancel", "run", "thrid")
        send(64, ["-1000000"], "priority", "run", "third", "2000000")
        send(0, ["never: cancelled"], "cancel", "run", "never")
        send(73, ["never has ended already: stopped"], "priority", "run", "never", "3")
        send(0, ["third: has priority 3"], "priority", "run", "third", "3")
        send(0, ["long: cancelled"], "cancel", "run", "long")
        runs.check(farm.wait(60) == 0, f"the farm ends with {farm.returncode}\n{(folder / 'console').read_text()}")
    finally:
        if farm.poll() is None:
            farm.send_signal(signal.SIGKILL)
            farm.wait()
    statuses = {entry["name"]: entry["status"] for entry in runs.summary(run)["pipelines"]}
    runs.check(statuses == {"long": "stopped", "second": "done", "third": "done", "never": "stopped"}, f"{statuses}")
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    started = [event["pipeline"] for event in events if event["event"] == "started"]
    runs.check(started == ["long", "third", "second"], f"the order of starts: {started}")
    runs.check((run / "pipelines" / "long" / "checkpoints" / "latest").exists(), "the cancelled pipeline saved nothing")
    runs.check(not [path.name for path in (run / "inbox").iterdir()], "the inbox keeps answers")
    send(73, ["no process runs this farm"], "cancel", "run", "second")
