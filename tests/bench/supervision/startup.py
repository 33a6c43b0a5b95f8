"""From launch to the end of the first step, two ranks: convoy over gloo and mpi against torchrun"""
# --hosts: on two simulated hosts, one `convoy run` on each of them against `convoy run --hosts`; it needs root.
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import harness
import simulated_hosts

# Known seconds on two idle cores: torchrun, and one process of Python alone. If this machine runs Python more slowly,
# torchrun's expected value grows by the same factor.
KNOWN_TORCHRUN, KNOWN_ALONE = 3.50, 1.56
ALONE = "python, one process"


def alone():
    start = time.time()
    script = harness.TOP / "tests" / "bench" / "peers" / "startup.py"
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1",
                                            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    return float(done.stdout.split("first step done")[1].split()[0]) - start


def torchrun():
    start = time.time()
    script = harness.TOP / "tests" / "bench" / "peers" / "startup.py"
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
                           str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    return float(done.stdout.split("first step done")[1].split()[0]) - start


def convoy(backend):
    def measure():
        run = harness.Run("configs/tiny/startup.yaml", [f"backend={backend}"], ranks=2)
        return run.summary["startup_seconds"]
    return measure


def on_hosts(count, *words):
    """Seconds from the start of the command, on the first `count` hosts, until the first step is done."""
    def measure():
        folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-bench-"))
        common = [harness.CONVOY, "run", harness.TOP / "configs/tiny/startup.yaml", "--output", folder / "run",
                  "--set", "backend=gloo", "--set", "launch.bind=none", "--set", "launch.ranks=2",
                  "--set", f"launch.remote_shell=[{simulated_hosts.HOSTS},rsh]"]
        nodes = [subprocess.Popen(simulated_hosts.on(f"nodea{number + 1}", *common,
                                                     *(word.format(node=number) for word in words)),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for number in range(count)]
        for node in nodes:
            said = node.communicate(timeout=120)[0]
            if node.returncode != 0:
                sys.exit(f"benchmark: {node.args}\nended with {node.returncode}:\n{said[-3000:]}")
        summary = json.loads((folder / "run" / "summary.json").read_text())
        shutil.rmtree(folder)
        return summary["startup_seconds"]
    return measure


def node_start(options):
    with simulated_hosts.hosts(2):
        measured = harness.interleave(options.rounds, {
            "--hosts": on_hosts(1, "--hosts", "nodea1,nodea2"),
            "a convoy on each node": on_hosts(2, "--nodes", "2", "--node-rank", "{node}",
                                              "--rendezvous", "nodea1:29713"),
        })
    harness.table(measured, "--hosts", "seconds")
    more = [node - hosts for node, hosts in zip(measured["a convoy on each node"], measured["--hosts"])]
    return harness.check("a convoy on each node: seconds more than --hosts", harness.statistics.median(more), 1.0)


if __name__ == "__main__":
    parser = harness.arguments(__doc__, rounds=5)
    parser.add_argument("--hosts", action="store_true", help="node-level start against --hosts")
    options = parser.parse_args()
    if options.hosts:
        sys.exit(0 if node_start(options) else 1)
    convoy("gloo")()  # warm the disk cache for all
    torchrun()
    measured = harness.interleave(options.rounds, {ALONE: alone, "torchrun": torchrun, "convoy gloo": convoy("gloo"),
                                                  "convoy mpi": convoy("mpi")}, reference="torchrun",
                                 expected=lambda this: KNOWN_TORCHRUN * max(1, this[ALONE] / KNOWN_ALONE))
    harness.table(measured, "torchrun", "seconds")
    harness.say(f"torchrun's known figure on idle cores: {KNOWN_TORCHRUN} s; {ALONE}: {KNOWN_ALONE} s")
    ok = True
    for backend in ("gloo", "mpi"):
        ok &= harness.check(f"launch to first step, {backend}, seconds",
                              harness.statistics.median(measured[f"convoy {backend}"]), 2.0, aim=1.0)
    sys.exit(0 if ok else 1)
