"""Two simulated hosts with two ranks each train as four ranks of one host do, in fp64."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs
import simulated_hosts as sim

SETS = ["launch.ranks=4", "launch.bind=none", "backend=gloo", "precision=fp64", "train.log_every=1",
        f"launch.remote_shell=[{sim.HOSTS},rsh]"]


def losses(output, model, strategy, on_hosts):
    """Trains and returns the loss of each step, and the hosts of the ranks."""
    command = runs.command(runs.TOP / "configs" / "tiny" / f"{model}.yaml", output,
                           [*SETS, f"strategy.name={strategy}"])
    if on_hosts:
        command = [*sim.on("nodea1", *command), "--hosts", "nodea1,nodea2"]
    done = subprocess.run(command, cwd=runs.TOP, env=runs.environment(), timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == 0, f"{model}, {strategy}: exit {done.returncode}\n{done.stdout[-3000:]}")
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return ([record["metrics"]["loss"] for record in records if record["kind"] == "train"],
            [rank["host"] for rank in runs.summary(output)["ranks"]])


with runs.workspace() as folder, sim.hosts(2):
    for model, strategy in (("mlp", "ddp"), ("gpt", "fsdp"), ("ncf", "ddp")):
        wanted, _ = losses(folder / f"{model}-one", model, strategy, False)
        found, hosts = losses(folder / f"{model}-two", model, strategy, True)
        runs.check(hosts == ["nodea1", "nodea1", "nodea2", "nodea2"], f"hosts: {hosts}")
        runs.check(len(found) == len(wanted) > 20, f"{model}: {len(found)} and {len(wanted)} steps")
        worst = max(abs(a - b) / abs(a) for a, b in zip(wanted, found))
        runs.check(worst <= 1e-12, f"{model}, {strategy}: losses differ by {worst}")
        print(f"{model}, {strategy}: {len(found)} losses, at most {worst:.1e} apart")
