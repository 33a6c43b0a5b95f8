"""launch.min_ranks for a program that trains by Run::each_batch: it continues without lost ranks and with ranks that
join, and ends with the weights, kept objects and metrics of an undisturbed run (fp64, to 1e-12)."""
# timeout: 600
import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import checkpoints
import runs

PROGRAM = runs.BUILD / "tests" / "members"
COMMON = ["backend=gloo", "device=cpu", "launch.bind=none", "launch.min_ranks=2", "launch.backoff=0.1s",
          "train.log_every=1", "train.checkpoint_every=8 steps"]


def command(output, arguments=(), sets=(), ranks=4, faults=()):
    line = [str(runs.CONVOY), "run", "--ranks", str(ranks), "--output", str(output)]
    for item in [*COMMON, *sets]:
        line += ["--set", item]
    for fault in faults:
        line += ["--inject", fault]
    return [*line, "--", str(PROGRAM), *map(str, arguments)]


def ended(output, arguments=(), sets=(), ranks=4, faults=(), code=0):
    done = subprocess.run(command(output, arguments, sets, ranks, faults), env=runs.environment(), timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == code, f"{output}: exit {done.returncode}, not {code}\n{done.stdout[-5000:]}")
    return done.stdout


def objects(text, ranks):
    """Returns what each rank of the program prints at its end; it is equal on all of them."""
    lines = re.findall(r"rank \d+ of (\d+): (.*)", text)
    runs.check(len(lines) == ranks and {size for size, _ in lines} == {str(ranks)}, f"{ranks} ranks:\n{text[-3000:]}")
    runs.check(len({line for _, line in lines}) == 1, f"{lines}")
    return lines[0][1]


def compare(title, output, expected):
    difference = checkpoints.difference(output, expected)
    runs.check(not difference, f"{title}: {difference}")
    evaluated, wanted = ([(r["step"], r["metrics"]["error"]) for r in runs.records(folder, "evaluate")]
                         for folder in (output, expected))
    runs.check([step for step, _ in evaluated] == [step for step, _ in wanted], f"{title}: evaluations {evaluated}")
    for (step, value), (_, other) in zip(evaluated, wanted):
        runs.check(abs(value - other) <= 1e-9 * max(1, abs(other)), f"{title}: error of step {step}: {value}, {other}")
    steps, wanted = ([r["step"] for r in runs.records(folder, "train")] for folder in (output, expected))
    changes = runs.summary(output)["membership"]
    runs.check(len(set(steps)) == len(steps) >= len(wanted) - len(changes) and set(steps) <= set(wanted),
               f"{title}: logged steps {steps}")


def continues(folder, title, arguments, expected, faults, losses, sets=()):
    output = folder / title
    text = ended(output, arguments, sets, faults=faults)
    summary = runs.summary(output)
    changes = summary["membership"]
    runs.check(summary["status"] == "done" and summary["attempt"] == 0, f"{title}: {summary['failure']}")
    runs.check(sum(len(change["left"]) for change in changes) == losses and changes[-1]["ranks"] == 4 - losses,
               f"{title}: {changes}\n{text}")
    for change in changes:
        runs.check(change["state"] == "memory" or change["step"] == 0, f"{title}: {change}")
    runs.check(objects(text, 4 - losses) == expected[1], f"{title}: {objects(text, 4 - losses)}, not {expected[1]}")
    compare(title, output, expected[0])
    print(f"{title}: continued, {[change['seconds'] for change in changes]} s")


def undisturbed(folder, title, arguments, sets=()):
    return folder / title, objects(ended(folder / title, arguments, sets), 4)


def moments(folder):
    expected = undisturbed(folder, "undisturbed", [])
    for title, fault in (("first-step", "kill:rank=1@step=0"), ("step", "kill:rank=1@step=20"),
                         ("rank-0", "kill:rank=0@step=20"), ("last-step", "kill:rank=2@step=29"),
                         ("collective", "kill:rank=3@collective=12"), ("evaluation", "kill:rank=1@evaluate=2"),
                         ("last-evaluation", "kill:rank=0@evaluate=3"), ("save", "kill:rank=0@save=2"),
                         ("segv", "segv:rank=1@step=20")):
        continues(folder, title, [], expected, [fault], 1)
    continues(folder, "two", [], expected, ["kill:rank=1@step=8", "kill:rank=2@step=20"], 2)
    continues(folder, "two-at-once", [], expected, ["kill:rank=1@step=20", "kill:rank=2@step=20"], 2)
    # Step 20 is not logged, so the others complete its body without rank 0, and do not repeat it.
    third = ["train.log_every=3"]
    continues(folder, "unwritten", ["--do", "unwritten"], undisturbed(folder, "third", [], third), [], 1, third)
    output = folder / "share"
    runs.check(objects(ended(output, ["--do", "share"], ["launch.min_ranks=0"]), 4) == expected[1], "share")
    runs.check(not checkpoints.difference(output, expected[0]), "the range-based loop has other weights")


def kinds(folder):
    for title, arguments in (("every", ["--every", 2]), ("accumulate", ["--accumulate", 2]),
                             ("fused", ["--optimizer", "fused"])):
        expected = undisturbed(folder, title, arguments)
        for moment, fault in (("step", "kill:rank=1@step=21"), ("evaluation", "kill:rank=0@evaluate=2"),
                              ("collective", "kill:rank=2@collective=13")):
            continues(folder, f"{title}-{moment}", arguments, expected, [fault], 1)


# The body of step 19 is interrupted after its update: the state is one update ahead until the body is repeated.
AHEAD = "kill:rank=1@evaluate=2"


def saves(folder):
    """Each checkpoint has as many updates as steps, also if the body that is repeated saves at its beginning."""
    output = folder / "saves"
    ended(output, ["--do", "save"], ["train.checkpoint_every=never", "train.keep_last=100"], faults=[AHEAD])
    runs.check(len(runs.summary(output)["membership"]) == 1, f"saves: {runs.summary(output)['membership']}")
    steps = sorted(int(path.name[len("step-"):]) for path in (output / "checkpoints").glob("step-*"))
    runs.check(len(steps) >= 29, f"saves: {steps}")
    for step in steps:
        updates = int.from_bytes(checkpoints.numbers(output / "checkpoints" / f"step-{step}")["counter/updates"],
                                 "little")
        runs.check(updates == step, f"saves: step-{step} has {updates} updates")
    print("saves: as many updates as steps")


def rates(folder):
    """A checkpoint has the rate of a fused optimizer only if the program has set one, also after a lost rank."""
    for action, stored in (("constant", False), ("rates", True)):
        ended(folder / action, ["--optimizer", "fused", "--do", action], faults=[AHEAD])
        trainer = json.loads((runs.newest_checkpoint(folder / action) / "manifest.json").read_text())["trainer"]
        runs.check(("set_rates" in trainer) == stored, f"{action}: {trainer.get('set_rates')}")
    # Another run that begins from these weights keeps its rate where the checkpoint has none.
    for action, rate in (("constant", "0.003"), ("rates", "0.00970")):
        text = ended(folder / f"from-{action}", ["--optimizer", "fused", "--do", "preset"],
                     [f"train.resume={folder / action}"])
        runs.check(f"rate {rate}" in objects(text, 4), f"from {action}: {objects(text, 4)}")


def stopped(folder):
    """A stop request while the state is one update ahead waits for the repeated body. The same command ends as an
    undisturbed run."""
    tries = (("", []), ("-every", ["--every", 2]), ("-accumulate", ["--accumulate", 2]),
             ("-fused", ["--optimizer", "fused"]))
    for title, arguments in tries:
        expected = undisturbed(folder, f"not-stopped{title}", arguments)
        output = folder / f"stopped{title}"
        # Until rank 2 notices the loss, the change of the ranks waits for it: the request arrives before the new loop.
        faults = [AHEAD, "sleep:1s:rank=2@evaluate=2"]
        process = subprocess.Popen(command(output, arguments, faults=faults), env=runs.environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        runs.training(output)
        runs.wait_for(lambda: runs.summary(output)["membership"], 30, f"{output}: a change of the ranks")
        process.terminate()
        code = process.wait(timeout=60)
        runs.check(code == 143 and runs.newest_checkpoint(output).name == "step-20", f"{output}: exit {code}")
        again = ended(output, arguments)
        runs.check(objects(again, 4) == expected[1], f"{output}: {objects(again, 4)}, not {expected[1]}")
        difference = checkpoints.difference(output, expected[0])
        runs.check(not difference, f"{output}: {difference}")
        print(f"stopped{title}: resumed with equal weights")


def replaced(folder):
    """Rank 0 sleeps after the loss, so that the replacement is ready before the training ends."""
    expected = undisturbed(folder, "not-replaced", [])
    output = folder / "replaced"
    text = ended(output, [], ["launch.max_restarts=3"], faults=["kill:rank=1@step=10", "sleep:3s:rank=0@step=12"])
    changes = runs.summary(output)["membership"]
    runs.check(len(changes) == 2 and "joined" in changes[1] and changes[1]["ranks"] == 4, f"{changes}\n{text}")
    runs.check(objects(text, 4) == expected[1], f"replaced: {objects(text, 4)}, not {expected[1]}")
    compare("replaced", output, expected[0])
    print(f"replaced: {[change['seconds'] for change in changes]} s")


def joins_that_fail(folder):
    """A process that communicates before each_batch ends by itself, and the others continue."""
    output = folder / "communicates"
    text = ended(output, ["--do", "sum"], ["launch.max_restarts=1"],
                 faults=["kill:rank=1@step=10", "sleep:3s:rank=0@step=12"])
    runs.check("did not join" in text and "Job::sum" in text, text)
    runs.check(len(runs.summary(output)["membership"]) == 1, f"{runs.summary(output)['membership']}")
    print("communicates before the loop: does not join")


def outside(folder):
    """Before and after the loop, and on errors of the program, the job ends."""
    for moment in ("before", "after"):
        text = ended(folder / moment, ["--do", moment], code=137)
        runs.check("rank 1 on" in text and "defect" not in text and not runs.summary(folder / moment)["membership"],
                   text)
    ended(folder / "broke", ["--do", "throw"], code=70)


def refusals(folder):
    for title, sets, words in (
            ("share", [], ["run.each_batch", "launch.min_ranks"]),
            ("twice", [], ["each_batch", "batch.ends_epoch"]),
            ("shards", [], ["ShardOptions", "launch.min_ranks", "Replicas"]),
            ("two", [], ["launch.min_ranks", "Replicas already"]),
            ("local", [], ["ReplicaOptions", "launch.min_ranks", "what: gradients"]),
            ("unknown", [], ["launch.min_ranks", "Adam"])):
        text = ended(folder / f"refused-{title}", ["--steps", 3, "--do", title], sets, 2, code=78)
        for word in words:
            runs.check(word in text, f"{title}: no '{word}' in\n{text}")
    print("refusals")


def random_kills(folder, count):
    arguments = ["--steps", 1500]
    sets = ["train.checkpoint_every=400 steps"]
    expected = folder / "long"
    wanted = objects(ended(expected, arguments, sets), 4)
    for number in range(count):
        output = folder / f"random-{number}"
        with open(f"{output}.console", "w") as console:
            process = subprocess.Popen(command(output, arguments, sets), env=runs.environment(), stdout=console,
                                       stderr=subprocess.STDOUT)
        runs.training(output)
        ranks = runs.named(runs.descendants(process.pid), PROGRAM.name)
        runs.check(len(ranks) == 4, f"{output}: processes {ranks}")
        text = runs.survives_two_kills(process, output, ranks)
        runs.check(objects(text, 2) == wanted, f"{output}: {objects(text, 2)}, not {wanted}")
        compare(output.name, output, expected)
    print(f"random: {count} equal")


with runs.workspace() as folder:
    if len(sys.argv) > 1:
        random_kills(folder, int(sys.argv[1]))
    else:
        refusals(folder)
        moments(folder)
        kinds(folder)
        saves(folder)
        rates(folder)
        stopped(folder)
        replaced(folder)
        joins_that_fail(folder)
        outside(folder)
        random_kills(folder, 3)
