"""One `convoy run` on each of several simulated hosts, without a remote shell: options, each platform's variables,
restarts, and nodes that are missing, late, repeated or contradictory."""
# labels: multi faults
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import simulated_hosts as sim
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "mlp.yaml"
SETS = ["strategy.name=ddp", "backend=gloo", "launch.cores_per_rank=1", "launch.bind=none", "launch.rendezvous=20s",
        "launch.ranks=2"]
SHORT = [*SETS, "train.epochs=1"]
HOSTS = ["nodea1", "nodea2"]


class Node:
    """A `convoy run` on a simulated host."""

    def __init__(self, host, output, sets=SHORT, options=(), variables=None, program=(), secret=None):
        self.host, self.started = host, time.monotonic()
        command = sim.on(host, *runs.command(CONFIG, output, sets), *map(str, options), *program)
        environment = {**runs.environment(), **(variables or {})}
        if secret is not None:
            environment["CONVOY_SECRET"] = secret
        self.process = subprocess.Popen(command, cwd=runs.TOP, env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)

    def ends(self, code, within=60, names=()):
        try:
            text, _ = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            runs.fail(f"{self.host}: still running after {within} s\n{self.process.communicate()[0][-3000:]}")
        self.seconds = time.monotonic() - self.started
        runs.check(self.process.returncode == code,
                   f"{self.host}: exit {self.process.returncode}, not {code}\n{text[-3000:]}")
        for name in names:
            runs.check(name in text, f"{self.host}: does not name {name}:\n{text[-3000:]}")
        return text


def options(node, nodes=2, rendezvous="nodea1:29711"):
    return ["--nodes", nodes, "--node-rank", node, "--rendezvous", rendezvous]


def trains(title, output, first, second):
    for node in (first, second):
        node.ends(0)
    summary = runs.summary(output)
    runs.check(summary["status"] == "done" and summary["backend"] == "gloo", f"{title}: {summary}")
    found = [rank["host"] for rank in summary["ranks"]]
    runs.check(found == HOSTS, f"{title}: ranks on {found}")
    print(f"{title}: done", flush=True)
    return summary


def by_options(folder):
    output = folder / "options"
    # The other node may come first.
    second = Node("nodea2", output, options=options(1))
    time.sleep(1)
    summary = trains("options", output, Node("nodea1", output, options=options(0)), second)
    trains("IPv6", folder / "six", Node("nodea1", folder / "six", options=options(0, rendezvous="[fd77::1]:29712")),
           Node("nodea2", folder / "six", options=options(1, rendezvous="[fd77::1]:29712")))
    private = pathlib.Path(subprocess.run([sim.HOSTS, "private"], capture_output=True, text=True).stdout.strip())
    apart = [Node(host, private / "run", options=options(number)) for number, host in enumerate(HOSTS)]
    for node in apart:
        node.ends(0)
    print("no shared folder: done", flush=True)
    return summary


def by_platforms(folder, reference):
    platforms = {
        "Kubeflow": lambda node: {"PET_NNODES": "2", "PET_NODE_RANK": str(node), "PET_NPROC_PER_NODE": "1",
                                  "PET_MASTER_ADDR": "nodea1", "PET_MASTER_PORT": "29713"},
        "Kubeflow v1": lambda node: {"PET_NNODES": "2", "PET_NODE_RANK": str(node), "PET_MASTER_ADDR": "nodea1",
                                     "RANK": str(node), "WORLD_SIZE": "2", "MASTER_ADDR": "nodea1",
                                     "MASTER_PORT": "29714"},
        "SkyPilot": lambda node: {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": str(node),
                                  "SKYPILOT_NODE_IPS": "10.77.0.1\n10.77.0.2"},
        "NNODES": lambda node: {"NNODES": "2", "NODE_RANK": str(node), "MASTER_ADDR": "nodea1", "MASTER_PORT": "29715"},
        "an Indexed Job": lambda node: {"NNODES": "2", "JOB_COMPLETION_INDEX": str(node), "MASTER_ADDR": "nodea1"},
    }
    for name, variables in platforms.items():
        output = folder / name.replace(" ", "-")
        nodes = [Node(host, output, variables=variables(number)) for number, host in enumerate(HOSTS)]
        summary = trains(name, output, *nodes)
        runs.check(summary["metrics"] == reference["metrics"],
                   f"{name}: {summary['metrics']}, not {reference['metrics']}")


def refusals(folder):
    output = folder / "refused"
    alone = Node("nodea1", output, sets=[*SHORT[:-3], "launch.rendezvous=3s", "launch.ranks=2"], options=options(0))
    alone.ends(75, within=10, names=["node 1", "launch.rendezvous"])
    late = Node("nodea2", folder / "late", sets=[*SHORT[:-3], "launch.rendezvous=3s", "launch.ranks=2"],
                options=options(1))
    late.ends(75, within=10, names=["node 0 does not answer", "nodea1"])
    twice = [Node("nodea1", folder / "twice", options=options(0, nodes=3))]
    twice += [Node(host, folder / "twice", options=options(1, nodes=3)) for host in ("nodea2", "nodea3")]
    twice[0].ends(78, within=10, names=["two nodes have the number 1", "nodea2", "nodea3"])
    for node in twice[1:]:
        node.ends(78, within=10)
    counts = [Node("nodea1", folder / "counts", options=options(0, nodes=2)),
              Node("nodea2", folder / "counts", options=options(1, nodes=3))]
    for node in counts:
        node.ends(78, within=10, names=["3 nodes"])
    other = [Node("nodea1", folder / "config", options=options(0)),
             Node("nodea2", folder / "config", sets=[*SHORT, "train.batch.global=32"], options=options(1))]
    for node in other:
        node.ends(78, within=20)
    runs.check("train.batch" in runs.summary(folder / "config")["failure"]["message"], "config: the key is not named")
    secrets = [Node("nodea1", folder / "secret", sets=[*SHORT[:-3], "launch.rendezvous=3s", "launch.ranks=2"],
                    options=options(0), secret="a"),
               Node("nodea2", folder / "secret", sets=[*SHORT[:-3], "launch.rendezvous=3s", "launch.ranks=2"],
                    options=options(1), secret="b")]
    secrets[1].ends(75, within=10, names=["secret"])
    secrets[0].ends(75, within=10, names=["nothing came from node 1", "was refused", "the same CONVOY_SECRET"])
    wrong = Node("nodea2", folder / "wrong", options=options(0))
    wrong.ends(75, within=10, names=["nodea1", "no address of this host"])
    for variables, names in (({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "nodea1", "PET_NNODES": "3"},
                              ["NNODES"]),
                             ({"NNODES": "2", "MASTER_ADDR": "nodea1"}, ["NODE_RANK"])):
        node = Node("nodea2", folder / "bad", variables=variables)
        node.ends(78, within=5, names=names)
        runs.check(node.seconds < 1.5, f"{variables}: refused after {node.seconds:.1f} s")
    one = [Node(host, folder / "one", sets=[*SHORT, "launch.ranks=1", "strategy.name=single"], options=options(number))
           for number, host in enumerate(HOSTS)]
    for node in one:
        node.ends(64, within=10, names=["one rank", "--ranks 2", "strategy.name=ddp"])
    mpi = [Node(host, folder / "mpi", sets=[*SHORT, "backend=mpi"], options=options(number))
           for number, host in enumerate(HOSTS)]
    for node in mpi:
        node.ends(78, within=10, names=["backend"])
    print("refusals: named", flush=True)


def stopped(folder):
    """A second node 1 is refused while the job runs. A TERM for one node, as a platform sends it, stops the job after a
    step on all nodes, with a checkpoint."""
    output = folder / "stopped"
    sets = [*SETS, "train.epochs=1000000", "train.evaluate_every=never", "train.checkpoint_every=never",
            "train.log_every=1"]
    nodes = [Node(host, output, sets=sets, options=options(number)) for number, host in enumerate(HOSTS)]
    runs.training(output, step=20)
    late = Node("nodea3", output, sets=sets, options=options(1))
    late.ends(78, within=10, names=["its node 1 is on nodea2", "--node-rank"])
    nodes[1].process.terminate()
    for node in nodes:
        node.ends(143, within=20)
    runs.check(runs.summary(output)["status"] == "stopped", f"stopped: {runs.summary(output)}")
    runs.newest_checkpoint(output)
    print("stopped: done", flush=True)


def restarted(folder):
    """A node is killed; the job waits for it, and a new process on that host takes its place."""
    output = folder / "restart"
    sets = [*SETS, "train.epochs=1000000", "train.max_steps=4000", "train.evaluate_every=never",
            "train.checkpoint_every=50 steps", "train.log_every=1", "launch.max_restarts=2", "launch.heartbeat=3s",
            "launch.failure_grace=2s"]
    first, second = [Node(host, output, sets=sets, options=options(number)) for number, host in enumerate(HOSTS)]
    runs.training(output, step=60)
    second.process.send_signal(signal.SIGKILL)
    subprocess.run(sim.on("nodea2", "sh", "-c", "true"), check=True)
    time.sleep(1)
    again = Node("nodea2", output, sets=sets, options=options(1))
    first.ends(0, within=120)
    again.ends(0, within=20)
    summary = runs.summary(output)
    runs.check(summary["attempt"] >= 1 and summary["steps"] == 4000, f"restart: {summary}")
    print("restart: done", flush=True)


if __name__ == "__main__":
    with sim.hosts(3), tempfile.TemporaryDirectory(prefix="convoy-nodes-") as name:
        folder = pathlib.Path(name)
        reference = by_options(folder)
        by_platforms(folder, reference)
        refusals(folder)
        stopped(folder)
        restarted(folder)
