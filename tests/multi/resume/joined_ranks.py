"""Ranks that join a running job (launch.min_ranks): in the place of a lost one under launch.max_restarts, or by
`convoy run --join`. The result equals that of an undisturbed run (fp64, to 1e-12)."""
# timeout: 300
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import checkpoints
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "gpt.yaml"
COMMON = ["strategy={name: ddp}", "backend=gloo", "precision=fp64", "launch.bind=none", "launch.min_ranks=1",
          "train.log_every=1", "launch.backoff=0.1s"]
SHORT = ["train.max_steps=30"]
LONG = ["train.epochs=~", "train.max_steps=100000", "train.evaluate_every=never", "train.checkpoint_every=never"]
FAST = 5.0  # seconds until a new rank takes part


def joins(output):
    return [change for change in runs.summary(output).get("membership", []) if "joined" in change]


def took_part(output, count, seconds=30):
    runs.wait_for(lambda: len([c for c in joins(output) if c["seconds"] is not None]) >= count, seconds,
                  f"{count} joined ranks in {output}")
    for change in joins(output):
        runs.check(change["seconds"] is None or change["seconds"] <= FAST, f"{change}")


def stopped(process, output):
    process.send_signal(signal.SIGTERM)
    code = runs.end(process, 30)
    console = pathlib.Path(f"{output}.console").read_text()
    runs.check(code == 143, f"{output}: exit {code}\n{console}")
    return console


def replaced(folder):
    """Rank 0 sleeps after the loss, so that the replacement is ready before the training ends."""
    expected = folder / "undisturbed"
    runs.run(CONFIG, expected, [*COMMON, *SHORT], 4)
    for title, faults, count in (("one", ["kill:rank=1@step=10", "sleep:2s:rank=0@step=12"], 1),
                                 ("two", ["kill:rank=1@step=5", "sleep:2s:rank=0@step=7", "kill:rank=2@step=18",
                                          "sleep:2s:rank=3@step=20"], 2)):
        output = folder / title
        summary = runs.run(CONFIG, output, [*COMMON, *SHORT, "launch.max_restarts=3"], 4, inject=faults)
        runs.check(len(joins(output)) == count and summary["membership"][-1]["ranks"] == 4, f"{summary['membership']}")
        runs.check(summary["attempt"] == 0, f"{title}: {summary['attempts']}")
        took_part(output, count)
        difference = checkpoints.difference(output, expected)
        runs.check(not difference, f"{title}: {difference}")
        print(f"replaced {title}: {[change['seconds'] for change in joins(output)]} s")


def asked(folder):
    output = folder / "asked"
    process = runs.start(CONFIG, output, [*COMMON, *LONG], ranks=2)
    runs.training(output, step=20)
    for ranks in (3, 4):
        done = subprocess.run([runs.CONVOY, "run", "--join", output], timeout=60, capture_output=True, text=True)
        runs.check(done.returncode == 0 and f"{ranks} ranks train" in done.stdout, f"{done}")
        runs.check(len(runs.rank_pids(process, ranks)) == ranks, "processes")
    took_part(output, 2)
    stopped(process, output)
    print(f"asked: {[change['seconds'] for change in joins(output)]} s")
    runs.refused("ended", 73, ["no process runs it"], [runs.CONVOY, "run", "--join", output])


def replacement_starts(output, ranks):
    """Kills rank 1 of a run whose lost ranks are replaced. Returns the convoy, the ranks before, and the new
    process."""
    process = runs.start(CONFIG, output, [*COMMON, *LONG, "launch.max_restarts=2"], ranks=ranks)
    before = runs.rank_pids(process, ranks)
    runs.training(output, step=20)
    os.kill(before[1], signal.SIGKILL)
    new = runs.wait_for(lambda: [p for p in runs.named(runs.descendants(process.pid), "convoy-rank")
                                 if p not in before],
                        10, "a replacement")
    return process, before, new[0]


def dies_while_starting(folder):
    output = folder / "dies"
    process, _, new = replacement_starts(output, 3)
    os.kill(new, signal.SIGKILL)
    took_part(output, 1)
    console = stopped(process, output)
    runs.check("did not join" in console, console)
    print("dies while it starts: the next one joins")


def another_is_lost_while_starting(folder):
    """The replacement knows the ranks before the second loss, so it is dropped, and others start for both places."""
    output = folder / "another"
    process, before, _ = replacement_starts(output, 4)
    os.kill(before[2], signal.SIGKILL)
    took_part(output, 2)
    changes = runs.summary(output)["membership"]
    runs.check(changes[-1]["ranks"] == 4, f"{changes}")
    stopped(process, output)
    print("another rank is lost meanwhile: both are replaced")


def asked_near_the_end(folder):
    """Asks at different moments of the last steps: the run is always done, and the answer says what happened."""
    answers = set()
    for number, step in enumerate((850, 1000, 1050, 1090)):
        output = folder / f"end{number}"
        process = runs.start(CONFIG, output, [*COMMON, *LONG, "train.max_steps=1100"], ranks=2)
        runs.training(output, step=step)
        done = subprocess.run([runs.CONVOY, "run", "--join", output], timeout=60, capture_output=True, text=True)
        code = runs.end(process, 60)
        runs.check(code == 0, f"{output}: exit {code}\n" + pathlib.Path(f"{output}.console").read_text())
        runs.check(runs.summary(output)["steps"] == 1100, f"{runs.summary(output)['steps']} steps")
        runs.check((done.returncode == 0) == ("take" in done.stdout) and done.returncode in (0, 73), f"{done}")
        answers.add(done.returncode)
    print(f"asked near the end: exit codes {sorted(answers)}")


def asked_twice_and_between_attempts(folder):
    """Two commands ask at once: the first one gets its rank, and the second one ends with 75. A command that asks
    during a restart gets its rank afterwards."""
    output = folder / "twice"
    process = runs.start(CONFIG, output, [*COMMON, *LONG, "launch.max_restarts=2", "launch.backoff=2s"], ranks=2)
    runs.training(output, step=20)
    join = [runs.CONVOY, "run", "--join", output]
    first = subprocess.Popen(join, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs.wait_for(lambda: "a process starts for rank 2" in pathlib.Path(f"{output}.console").read_text(), 10,
                  "a process")
    second = subprocess.run(join, timeout=60, capture_output=True, text=True)
    runs.check(second.returncode in (0, 75), f"{second}")
    text, _ = first.communicate(timeout=20)
    runs.check(first.returncode == 0 and "rank 2 takes part" in text, f"{first.returncode}: {text}")
    for pid in runs.named(runs.descendants(process.pid), "convoy-rank"):
        os.kill(pid, signal.SIGKILL)
    runs.wait_for(lambda: "all ranks start again" in pathlib.Path(f"{output}.console").read_text(), 10, "a restart")
    asked = subprocess.run(join, timeout=60, capture_output=True, text=True)
    runs.check(asked.returncode == 0 and "takes part" in asked.stdout, f"{asked}")
    before = runs.summary(output)["membership"]
    stopped(process, output)
    runs.check(not (output / "join").exists(), "the folder of requests is left")
    more = runs.summary(output)["steps"] + 20
    runs.run(CONFIG, output,
             [*COMMON, *LONG, "launch.max_restarts=2", "launch.backoff=2s", f"train.max_steps={more}"], 2)
    runs.check(runs.summary(output)["membership"][:len(before)] == before, "a resumed run keeps the changes")
    print("asked twice, and while the run restarts: answered")


def stop_while_starting(folder):
    output = folder / "stop"
    process, before, new = replacement_starts(output, 3)
    stopped(process, output)
    runs.check(not runs.alive([*before, new]) and not joins(output), f"{joins(output)}")
    print("stop while one starts: no trace")


def asked_while_it_stops(folder):
    """Rank 1 sleeps, so that the others wait for it in the step after which they stop."""
    output = folder / "stops"
    process = runs.start(CONFIG, output, [*COMMON, *LONG, "launch.grace=20s"], ranks=2,
                         inject=["sleep:3s:rank=1@step=40"])
    runs.training(output, step=39)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    runs.refused("stops", 73, ["ended, stopped or lost a rank"], [runs.CONVOY, "run", "--join", output], within=5)
    console = pathlib.Path(f"{output}.console").read_text()
    runs.check(runs.end(process, 30) == 143, console)
    print("asked while it stops: no rank starts")


def refusals(folder):
    runs.refused("nothing", 64, ["no such folder"], [runs.CONVOY, "run", "--join", folder / "nothing"])
    runs.refused("file", 64, ["is no folder"], [runs.CONVOY, "run", "--join", runs.TOP / "README.md"])
    runs.refused("options", 64, ["--join"], [runs.CONVOY, "run", "--join", folder, "--ranks", "3"])
    for title, sets, words in (("fixed", ["launch.min_ranks=0"], ["launch.min_ranks"]),
                               ("shards", ["strategy={name: fsdp}", "train.checkpoint_every=1000 steps"],
                                ["cannot receive the state"])):
        output = folder / title
        process = runs.start(CONFIG, output, [*COMMON, *LONG, *sets], ranks=2)
        runs.training(output, step=20)
        runs.refused(title, 78, words, [runs.CONVOY, "run", "--join", output])
        stopped(process, output)


with runs.workspace() as folder:
    replaced(folder)
    asked(folder)
    dies_while_starting(folder)
    another_is_lost_while_starting(folder)
    asked_near_the_end(folder)
    asked_twice_and_between_attempts(folder)
    stop_while_starting(folder)
    asked_while_it_stops(folder)
    refusals(folder)
