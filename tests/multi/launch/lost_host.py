"""launch.min_ranks with --hosts: the ranks of one host continue when the other is cut off, or when a rank there is
killed, and end with the weights of an undisturbed run (fp64, to 1e-12). When the host returns, others take their
places. A host that is lost after all results takes nothing with it."""
# labels: multi faults
# timeout: 300
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import checkpoints
import detached_shell
import runs
import simulated_hosts as sim

SETS = ["strategy={name: ddp}", "backend=gloo", "precision=fp64", "launch.bind=none",
        "launch.min_ranks=2", "launch.heartbeat=2s", "launch.collective=30s", "launch.rendezvous=60s",
        "train.log_every=1", "train.max_steps=30", "train.evaluate_every=10 steps", "train.checkpoint_every=8 steps"]


def begin(output, inject=(), sets=(), config="gpt", shell=f"[{sim.HOSTS},rsh]"):
    command = runs.command(runs.TOP / "configs" / "tiny" / f"{config}.yaml", output,
                           [*SETS, *sets, f"launch.remote_shell={shell}"], 4, inject=inject)
    return subprocess.Popen(sim.on("nodea1", *command, "--hosts", "nodea1,nodea2"), cwd=runs.TOP,
                            env=runs.environment(), stdout=open(f"{output}.console", "w"), stderr=subprocess.STDOUT)


def end_shells(process):
    """Kills the remote shells to nodea2."""
    shells = [pid for pid in runs.descendants(process.pid)
              if {"nodea2", detached_shell.__file__}
              <= set(pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0"))]
    runs.check(shells, "no remote shell runs")
    for pid in shells:
        os.kill(pid, signal.SIGKILL)


def ends(output, process, expected, left, ranks):
    code = runs.end(process, 60)
    console = pathlib.Path(f"{output}.console").read_text()
    runs.check(code == 0 and "convoy: failed" not in console and runs.summary(output)["status"] == "done",
               f"{output.name}: exit {code}\n{console}")
    summary = runs.summary(output)
    changes = summary["membership"]
    runs.check(sum(len(change.get("left", [])) for change in changes) == left and changes[-1]["ranks"] == ranks and
               len(summary["ranks"]) == ranks, f"{output.name}: {changes}")
    runs.check(all("nodea2" in change["why"] for change in changes if "left" in change), f"{output.name}: {changes}")
    difference = checkpoints.difference(output, expected)
    runs.check(not difference, f"{output.name}: {difference}")
    print(f"{output.name}: continued, {[change['seconds'] for change in changes]} s", flush=True)


with runs.workspace() as folder, sim.hosts(2):
    folder.chmod(0o755)
    undisturbed = folder / "undisturbed"
    process = begin(undisturbed)
    runs.check(runs.end(process, 60) == 0, pathlib.Path(f"{undisturbed}.console").read_text())

    output = folder / "killed"
    ends(output, begin(output, ["kill:rank=3@step=12"]), undisturbed, 1, 3)

    output = folder / "cut"
    process = begin(output, ["sleep:2s@step=12"])
    runs.training(output, step=11)
    sim.tell("cut", "nodea2")
    ends(output, process, undisturbed, 2, 2)
    sim.tell("heal", "nodea2")

    def ranks_now():
        return (runs.summary(output).get("membership") or [{"ranks": 4}])[-1]["ranks"]

    # Rank 0 sleeps until the host has returned and its ranks are ready.
    output = folder / "returns"
    process = begin(output, ["sleep:2s@step=12", "sleep:6s:rank=0@step=14", "sleep:4s:rank=0@step=16"],
                    ["launch.max_restarts=9", "launch.backoff=0.2s"])
    runs.training(output, step=11)
    sim.tell("cut", "nodea2")
    runs.wait_for(lambda: ranks_now() == 2, 30, "two lost ranks")
    sim.tell("heal", "nodea2")
    ends(output, process, undisturbed, 2, 4)
    hosts = [rank["host"] for rank in runs.summary(output)["ranks"]]
    runs.check(hosts == ["nodea1", "nodea1", "nodea2", "nodea2"], f"ranks on {hosts}")

    # A rank joins by hand, and dies with the job.
    output = folder / "asked"
    process = begin(output, ["kill:rank=3@step=12"],
                    ["train.epochs=~", "train.max_steps=100000", "train.evaluate_every=never"])
    runs.wait_for(lambda: runs.summary(output) is not None and ranks_now() == 3, 30, "a lost rank")
    done = subprocess.run([*sim.on("nodea1", runs.CONVOY, "run", "--join", output)], timeout=60, capture_output=True,
                          text=True)
    runs.check(done.returncode == 0 and "rank 3 takes part" in done.stdout, f"{done}")
    joined = [rank["pid"] for rank in runs.summary(output)["ranks"]]
    runs.check(len(runs.alive(joined)) == 4, f"process IDs {joined}")
    process.terminate()
    runs.check(runs.end(process, 30) == 143, pathlib.Path(f"{output}.console").read_text())
    runs.check(not runs.alive(joined), f"{joined}")

    # Only the remote shell ends.
    shell = detached_shell.serve(folder / "sshd", [sim.HOSTS, "rsh"])
    output = folder / "shell"
    process = begin(output, ["sleep:2s@step=12"], shell=shell)
    runs.training(output, step=11)
    end_shells(process)
    ends(output, process, undisturbed, 2, 2)

    # Processes of nodea1 stay a while after their results, and those of nodea2 can no longer report that they ended.
    plugin = runs.BUILD / "tests" / "libplugin_wrong.so"
    stays = [f"model={{plugin: {plugin}, name: wrong, over: nothing, stays: 5}}", "train.epochs=~"]
    kill, ready = "kill:rank=3@step=12", "sleep:4s:rank=0@step=14"
    for name, by, sets, faults, changes in (
            ("complete", "cut", ["launch.min_ranks=4", "launch.max_restarts=2"], [], 0),
            ("complete, shell", "shell", ["launch.min_ranks=4", "launch.max_restarts=2"], [], 0),
            ("changed, complete", "cut", [], [kill], 1),
            ("changed, complete, shell", "shell", [], [kill], 1),
            ("joined, complete", "cut", ["launch.max_restarts=2", "launch.backoff=0.2s"], [kill, ready], 2),
            ("joined, complete, shell", "shell", ["launch.max_restarts=2", "launch.backoff=0.2s"], [kill, ready], 2)):
        output = folder / name
        process = begin(output, faults, [*stays, *sets], "mlp", shell)
        runs.wait_for(lambda: process.poll() is not None or (output / "checkpoints" / "step-30").exists(), 60,
                      f"{name}: the last checkpoint")
        time.sleep(1)
        if by == "cut":
            sim.tell("cut", "nodea2")
        else:
            end_shells(process)
        code = runs.end(process, 30)
        console = pathlib.Path(f"{output}.console").read_text()
        summary = runs.summary(output)
        runs.check(code == 0 and summary["status"] == "done" and len(summary["attempts"]) == 0 and
                   len(summary.get("membership", [])) == changes, f"{name}: exit {code}, {summary}\n{console}")
        sim.tell("heal", "nodea2")
        print(f"{name}: done without nodea2", flush=True)
