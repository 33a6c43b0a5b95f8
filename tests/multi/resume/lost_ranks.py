"""launch.min_ranks: a run that loses ranks continues in the processes that are left, and ends with the weights (fp64,
to 1e-12; to 1e-10 after hundreds of steps) and metrics (to 1e-9) of an undisturbed run."""
# timeout: 600
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import checkpoints
import runs

TINY = runs.TOP / "configs" / "tiny"
COMMON = ["strategy={name: ddp}", "backend=gloo", "precision=fp64", "launch.bind=none",
          "launch.min_ranks=2", "train.log_every=1"]
FAST = 3.0  # seconds from a loss to the next step


def compare(title, output, expected):
    difference = checkpoints.difference(output, expected)
    runs.check(not difference, f"{title}: {difference}")
    evaluated = [(r["step"], r["metrics"]) for r in runs.records(output, "evaluate")]
    wanted = [(r["step"], r["metrics"]) for r in runs.records(expected, "evaluate")]
    runs.check([step for step, _ in evaluated] == [step for step, _ in wanted], f"{title}: evaluations {evaluated}")
    for (step, metrics), (_, other) in zip(evaluated, wanted):
        for name, value in metrics.items():
            runs.check(abs(value - other[name]) <= 1e-9 * max(1, abs(other[name])), f"{title}: {name} of step {step}")
    # If some ranks had finished the interrupted step, it is not repeated, and its metrics are lost.
    steps = [r["step"] for r in runs.records(output, "train")]
    wanted = [r["step"] for r in runs.records(expected, "train")]
    lost = sum(len(change["left"]) for change in runs.summary(output)["membership"])
    runs.check(len(set(steps)) == len(steps) >= len(wanted) - lost and set(steps) <= set(wanted),
               f"{title}: logged steps {steps}")


def recovers(folder, title, config, sets, expected, faults, losses, ranks=4):
    output = folder / title
    done = subprocess.run(runs.command(config, output, [*COMMON, *sets], ranks, inject=faults), cwd=runs.TOP,
                          env=runs.environment(), timeout=90, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    runs.check(done.returncode == 0, f"{title}: exit {done.returncode}\n{done.stdout[-4000:]}")
    summary = runs.summary(output)
    runs.check(summary["status"] == "done" and summary["failure"] is None, f"{title}: {summary['failure']}")
    changes = summary["membership"]
    runs.check(sum(len(change["left"]) for change in changes) == losses, f"{title}: {changes}")
    if losses == 1:
        runs.check(changes[0]["left"] == [int(re.search(r"rank=(\d+)", faults[0])[1])], f"{title}: {changes}")
    runs.check(changes[-1]["ranks"] == ranks - losses and len(summary["ranks"]) == ranks - losses,
               f"{title}: {changes}")
    lines = [line for line in done.stdout.splitlines() if "membership" in line and "continue" in line]
    runs.check(1 <= len(lines) <= losses, f"{title}: {lines}\n{done.stdout}")
    for change in changes:
        runs.check(change["why"] and change["step"] is not None, f"{title}: {change}")
        if change["seconds"] is None:  # no step follows, or the ranks changed again before one was done
            runs.check(title.startswith("last-") or change is not changes[-1], f"{title}: no step after {change}")
        else:
            runs.check(change["seconds"] <= FAST, f"{title}: {change['seconds']} s until the next step was done")
    compare(title, output, expected)
    print(f"{title}: continued, {[change['seconds'] for change in changes]} s")
    return summary


def undisturbed(folder, title, config, sets, ranks=4):
    runs.run(config, folder / title, [*COMMON, *sets], ranks)
    return folder / title


def moments(folder):
    config = TINY / "gpt.yaml"
    sets = ["train.max_steps=30", "train.evaluate_every=10 steps", "train.checkpoint_every=8 steps"]
    expected = undisturbed(folder, "gpt", config, sets)
    one = [("first-step", "kill:rank=1@step=0"), ("step", "kill:rank=1@step=20"), ("rank-0", "kill:rank=0@step=20"),
           ("last-step", "kill:rank=2@step=29"), ("collective", "kill:rank=3@collective=12"),
           ("evaluation", "kill:rank=1@evaluate=2"), ("last-evaluation", "kill:rank=0@evaluate=3"),
           ("save", "kill:rank=0@save=2"), ("segv", "segv:rank=1@step=20")]
    for title, fault in one:
        recovers(folder, title, config, sets, expected, [fault], 1)
    recovers(folder, "two", config, sets, expected, ["kill:rank=1@step=8", "kill:rank=2@step=20"], 2)
    recovers(folder, "two-at-once", config, sets, expected, ["kill:rank=1@step=20", "kill:rank=2@step=20"], 2)
    recovers(folder, "accumulating", config, [*sets, "strategy.sync.every=2"],
             undisturbed(folder, "accumulated", config, [*sets, "strategy.sync.every=2"]), ["kill:rank=1@step=21"], 1)


def many_steps(folder):
    """Rounding adds up over many steps: after these, runs with 3 and 4 ranks that nothing disturbs differ by 2e-11 in
    the bias of the keys, whose gradient is zero but for rounding. A lost row would make 1e-5."""
    config = TINY / "gpt.yaml"
    sets = ["train.epochs=~", "train.max_steps=340", "train.evaluate_every=never",
            "train.checkpoint_every=170 steps"]
    whole = undisturbed(folder, "four-340", config, sets)
    apart = checkpoints.difference(undisturbed(folder, "three-340", config, sets, 3), whole, 1e-10)
    runs.check(not apart, f"3 and 4 ranks: {apart}")
    output = folder / "killed-340"
    summary = runs.run(config, output, [*COMMON, *sets], 4, inject=["kill:rank=1@step=24"])
    runs.check(len(summary["membership"]) == 1, f"{summary['membership']}")
    apart = checkpoints.difference(output, whole, 1e-10)
    runs.check(not apart, f"340 steps: {apart}")
    print("340 steps: equal to 1e-10")


def models(folder):
    for name, sets in (("convnet", ["strategy.batch_norm=sync"]), ("ncf", ["model.rows=true"]),
                       ("ncf", ["model.rows=false"])):
        config = TINY / f"{name}.yaml"
        sets = [*sets, "train.max_steps=24", "train.checkpoint_every=7 steps", "train.evaluate_every=8 steps"]
        title = f"{name}-{sets[0].rpartition(chr(61))[2]}"
        recovers(folder, f"{title}-lost", config, sets, undisturbed(folder, title, config, sets),
                 ["kill:rank=1@collective=13"], 1)


def random_kills(folder):
    config = TINY / "mlp.yaml"
    sets = ["train.epochs=60", "train.checkpoint_every=50 steps", "train.evaluate_every=60 steps"]
    expected = undisturbed(folder, "mlp", config, sets, ranks=4)
    for number in range(6):
        output = folder / f"random-{number}"
        process = runs.start(config, output, [*COMMON, *sets], ranks=4)
        ranks = runs.rank_pids(process, 4)
        runs.training(output)
        runs.survives_two_kills(process, output, ranks)
        compare(output.name, output, expected)
    print("random: equal")


def late_rank(folder):
    """A rank that is late for a membership opens its files there while the others are in the next one. The state files
    of the next one must be those of its ranks: the failure of a rank that is lost later has the step."""
    config, output = TINY / "mlp.yaml", folder / "late"
    sets = ["train.epochs=3000", "train.checkpoint_every=never", "train.evaluate_every=never"]
    process = runs.start(config, output, [*COMMON, *sets], ranks=4)
    zero, late, other, three = sorted(runs.rank_pids(process, 4))  # they start in this order
    runs.training(output, step=20)
    log = output / "logs" / "rank1.log"
    os.kill(late, signal.SIGSTOP)
    os.kill(three, signal.SIGKILL)
    runs.wait_for(lambda: "membership 2:" in log.read_text(), 30, "membership 2")
    os.kill(zero, signal.SIGKILL)
    runs.wait_for(lambda: "membership 3:" in log.read_text(), 30, "membership 3")
    time.sleep(0.3)  # time for `other` to create its state file
    os.kill(late, signal.SIGCONT)
    runs.wait_for(lambda: len(runs.summary(output)["membership"]) == 2 and
                  runs.summary(output)["membership"][-1]["seconds"], 30, "a step of membership 3")
    os.kill(other, signal.SIGKILL)
    code = runs.end(process, 30)
    failure = runs.summary(output)["failure"]
    runs.check(code == 137 and failure["rank"] == 1 and failure["step"] and failure["step"] >= 20,
               f"exit {code}, {failure}")
    print("late: each rank has its own state file")


def silent(folder):
    """Ranks that stall together, or while the others leave the membership, count as lost after launch.heartbeat."""
    config = TINY / "mlp.yaml"
    sets = ["train.epochs=60", "train.checkpoint_every=50 steps", "train.evaluate_every=60 steps",
            "launch.heartbeat=2s"]
    expected = undisturbed(folder, "heard", config, sets)

    def disturbed(title, first, second, more=(), stop=False):
        output = folder / title
        process = runs.start(config, output, [*COMMON, *sets, *more], ranks=4)
        ranks = sorted(runs.rank_pids(process, 4))  # they start in this order
        runs.training(output)
        os.kill(ranks[1], first)
        time.sleep(0.01)
        os.kill(ranks[3], second)
        if stop:
            time.sleep(0.5)
            process.terminate()
        return output, runs.end(process, 30), runs.summary(output)

    for title, first, second in (("stop-stop", signal.SIGSTOP, signal.SIGSTOP),
                                 ("kill-stop", signal.SIGKILL, signal.SIGSTOP),
                                 ("stop-kill", signal.SIGSTOP, signal.SIGKILL)):
        output, code, summary = disturbed(title, first, second)
        changes = summary["membership"]
        runs.check(code == 0 and sum(len(change["left"]) for change in changes) == 2,
                   f"{title}: exit {code}, {changes}")
        runs.check(any("heartbeat" in change["why"] for change in changes), f"{title}: {changes}")
        for change in changes:  # the numbers are those of the membership that ends
            named = re.match(r"rank (\d+) on ", change["why"])
            runs.check(named and [int(named[1])] == change["left"], f"{title}: {change}")
        compare(title, output, expected)
    output, code, summary = disturbed("too-silent", signal.SIGKILL, signal.SIGSTOP, ["launch.min_ranks=3"])
    runs.check(code == 110 and "heartbeat" in summary["failure"]["message"], f"exit {code}, {summary['failure']}")
    output, code, summary = disturbed("stopped", signal.SIGKILL, signal.SIGSTOP, stop=True)
    runs.check(code == 143 and "heartbeat" in summary["failure"]["message"], f"exit {code}, {summary['failure']}")
    print("silent: lost after a heartbeat")


def sharded(folder):
    """A lost rank had a part of the state: the others return to the newest checkpoint, with fewer ranks. `--inject` may
    name the last rank, which the next membership lacks."""
    config = TINY / "gpt.yaml"
    sets = ["train.max_steps=16", "train.checkpoint_every=4 steps", "train.evaluate_every=8 steps",
            "launch.min_ranks=1"]
    for name, ranks in (("fsdp", 3), ("pipeline", 2)):
        options = [*COMMON, *sets, f"strategy={{name: {name}}}"]
        expected, output = folder / f"{name}-whole", folder / name
        runs.run(config, expected, options, ranks)
        summary = runs.run(config, output, options, ranks, inject=[f"kill:rank={ranks - 1}@step=11"])
        change = summary["membership"][-1]
        runs.check(change["left"] == [ranks - 1] and change["state"] == "checkpoint" and change["step"] in (4, 8),
                   f"{change}")
        evaluated, wanted = ({r["step"]: r["metrics"]["loss"] for r in runs.records(each, "evaluate")}
                             for each in (output, expected))
        runs.check(list(evaluated) == list(wanted) == [8, 16], f"{name}: {evaluated} {wanted}")
        runs.check(all(abs(evaluated[step] - wanted[step]) < 1e-9 for step in wanted), f"{name}: {evaluated} {wanted}")
        runs.check(len(runs.records(output, "evaluate")) == 2, f"{name}: an evaluation is there twice")
    print("sharded: from the checkpoint")


def too_few(folder):
    """Below min_ranks the run ends, or restarts with all ranks."""
    config = TINY / "mlp.yaml"
    faults = [f"kill:rank={rank}@step=10" for rank in (1, 2, 3)]
    output = folder / "too-few"
    runs.run(config, output, COMMON, 4, inject=faults, expect=137)
    summary = runs.summary(output)
    runs.check(summary["failure"]["signal"] == 9 and len(summary["membership"]) == 2, f"{summary['failure']}")
    output = folder / "restarted"
    summary = runs.run(config, output, [*COMMON, "launch.max_restarts=1", "launch.backoff=0.1s"], 4, inject=faults)
    runs.check(summary["attempt"] == 1 and len(summary["ranks"]) == 4, f"{summary['attempts']}")
    compare("restarted", output, undisturbed(folder, "not-restarted", config, []))
    print("too few: ends, or restarts")


def refusals(folder):
    config = TINY / "mlp.yaml"
    for title, sets, words in (
            ("fsdp", ["strategy={name: fsdp}", "train.checkpoint_every=never"],
             ["train.checkpoint_every", "launch.min_ranks"]),
            ("mpi", ["backend=mpi"], ["launch.min_ranks", "backend: gloo"]),
            ("local", ["backend=local"], ["launch.min_ranks", "threads"]),
            ("per rank", ["train.batch={per_rank: 10}"], ["train.batch", "train.batch.global"]),
            ("sync", ["strategy.sync={what: parameters, every: 4}"],
             ["strategy.sync", "launch.min_ranks", "what: gradients"]),
            ("port", ["launch.port=23456"], ["launch.port"]),
            ("many", ["launch.min_ranks=5"], ["launch.min_ranks", "4 ranks"])):
        runs.refused(title, 78, words, runs.command(config, folder / "refused", [*COMMON, *sets], 4))


with runs.workspace() as folder:
    refusals(folder)
    moments(folder)
    many_steps(folder)
    models(folder)
    late_rank(folder)
    silent(folder)
    sharded(folder)
    too_few(folder)
    random_kills(folder)
