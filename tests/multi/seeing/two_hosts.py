"""Time breakdown, resources and trace of ranks on two simulated hosts: the clocks of both agree within 5 ms."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs
import simulated_hosts as sim

SETS = ["strategy.name=ddp", "launch.ranks=2", "launch.cores_per_rank=1", "launch.bind=none", "profile.steps=5-7",
        f"launch.remote_shell=[{sim.HOSTS},rsh]"]

with runs.workspace() as folder, sim.hosts(2):
    output = folder / "run"
    command = runs.command(runs.TOP / "configs" / "tiny" / "mlp.yaml", output, SETS,
                           inject=["sleep:0.3s:rank=1@step=9"])
    done = subprocess.run([*sim.on("nodea1", *command), "--hosts", "nodea1,nodea2"], cwd=runs.TOP,
                          env=runs.environment(), timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    runs.check(done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-3000:]}")
    summary = runs.summary(output)
    runs.check([rank["host"] for rank in summary["ranks"]] == ["nodea1", "nodea2"], f"hosts: {summary['ranks']}")
    found = summary["breakdown"]
    for rank in found["ranks"]:
        total = sum(value for part, value in rank.items() if part not in ("rank", "waits_for"))
        runs.check(abs(total - found["wall_s"]) <= 0.02 * found["wall_s"], f"{total} of {found['wall_s']} s: {rank}")
    runs.check(found["ranks"][0]["waits_for"][0]["rank"] == 1 and found["ranks"][0]["waiting"] > 0.25, f"{found}")
    lines = [json.loads(line) for line in (output / "resources.jsonl").read_text().splitlines()]
    runs.check({line["rank"] for line in lines} == {0, 1}, f"resources: {lines}")
    trace = json.loads((output / "trace.json").read_text())
    runs.check({event["pid"] for event in trace["traceEvents"]} == {0, 1}, "ranks of the trace")
    # The simulated hosts share one clock, so any offset is an error of the measurement.
    offsets = trace["otherData"]["clock_offsets_ns"]
    runs.check(max(abs(offset) for offset in offsets) < 5e6, f"clocks: {offsets} ns")
    print("two hosts:", json.dumps(found["ranks"][0]))
