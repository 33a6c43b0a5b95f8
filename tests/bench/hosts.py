"""Two simulated hosts, two ranks each, joined by 1 Gbit/s: bytes across the link against a ring of hosts; needs root"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import harness
import simulated_hosts

HOSTS, RANKS, STEPS = 2, 4, 40
CONFIG = """name: hosts
seed: 1
model: {name: mlp, hidden: [2048, 1024]}
data: {name: synthetic, kind: classification, rows: 65536, features: [256], classes: 10}
optimizer: {name: sgd, lr: 0.01}
train: {epochs: ~, batch: {global: 64}, evaluate_every: never, checkpoint_every: never, log_every: 1}
strategy: {name: ddp, sync: {what: gradients}}
backend: gloo
"""


def sent(host):
    """Bytes that the host has put on its link."""
    lines = subprocess.run(simulated_hosts.on(host, "cat", "/proc/net/dev"), check=True, capture_output=True,
                           text=True).stdout
    return next(int(line.split(":")[1].split()[8]) for line in lines.splitlines() if line.strip().startswith("eth0:"))


def run(folder, steps, *sets):
    """Returns the summary of a run on both hosts, its seconds a step, and the bytes that nodea1 sent meanwhile."""
    output = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "run"
    before = sent("nodea1")
    words = [str(harness.CONVOY), "run", str(folder / "hosts.yaml"), "--output", str(output),
             "--hosts", "nodea1,nodea2"]
    for text in (f"launch.ranks={RANKS}", "launch.cores_per_rank=1", "launch.bind=none", f"train.max_steps={steps}",
                 f"launch.remote_shell=[{simulated_hosts.HOSTS},rsh]", *sets):
        words += ["--set", text]
    done = subprocess.run(simulated_hosts.on("nodea1", *words), cwd=harness.TOP, timeout=600, capture_output=True,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(words)}\nended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    times = [record["seconds"] for record in records if record["kind"] == "train"]
    return (json.loads((output / "summary.json").read_text()), (times[-1] - times[4]) / (len(times) - 5),
            sent("nodea1") - before)


def measure(folder, *sets, passes=2):
    """Returns seconds a step, and bytes a step across the link, as a multiple of what a ring of hosts sends."""
    few, many = run(folder, STEPS // 2, *sets), run(folder, STEPS, *sets)
    ring = passes * (HOSTS - 1) / HOSTS * 4 * many[0]["parameters"]
    return many[1], (many[2] - few[2]) / (STEPS - STEPS // 2) / ring


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    seconds, bytes_ = {"convoy": [], "every rank for itself": []}, {"convoy": [], "every rank for itself": []}
    sharded = []
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as top, simulated_hosts.hosts(HOSTS):
        folder = pathlib.Path(top)
        (folder / "hosts.yaml").write_text(CONFIG)
        for host in ("nodea1", "nodea2"):
            subprocess.run(simulated_hosts.on(
                host, *"tc qdisc add dev eth0 root tbf rate 1gbit burst 256kb latency 50ms".split()), check=True)
        for number in range(options.rounds):
            for name, sets in (("convoy", []), ("every rank for itself", ["launch.host_memory=false"])):
                step, ratio = measure(folder, *sets)
                seconds[name].append(step)
                bytes_[name].append(ratio)
            # Gathers parameters for forward and backward, and reduce-scatters gradients.
            sharded.append(measure(folder, "strategy={name: fsdp}", passes=3)[1])
            harness.say(f"round {number + 1}/{options.rounds}: " + "  ".join(
                f"{name} {seconds[name][-1]:.4g} s a step, {bytes_[name][-1]:.3f} of a ring's bytes"
                for name in seconds))
    harness.table(seconds, "every rank for itself", "seconds a step")
    ok = harness.check("bytes across the link ÷ a ring of hosts", statistics.median(bytes_["convoy"]), 1.05, aim=1)
    harness.say(f"       every rank for itself: {statistics.median(bytes_['every rank for itself']):.3f}")
    ok &= harness.check("fsdp: the same", statistics.median(sharded), 1.05, aim=1)
    sys.exit(0 if ok else 1)
