"""Saving NCF's 150 MB of weights and moments: stall, steps during a write, write rate against dd, memory of a load"""
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import harness
import numpy

CONFIG = "configs/ncf_story.yaml"
# Dense embeddings: a save of sparse embeddings also flushes all rows, which is no part of the copy.
DENSE = ["model.rows=false", "train.evaluate_every=never", "train.log_every=1"]
SPARSE = ["train.evaluate_every=never", "train.log_every=100"]
STATE = 3 * 12_453_873 * 4  # bytes of weights and two moments
SPACING = 1.5  # seconds between saves whose writes must not overlap


class Folder:
    """Runs in one folder, so that a run may resume from another."""

    def __init__(self, top):
        self.top = pathlib.Path(top)

    def run(self, name, overrides, ranks):
        output = self.top / name
        harness.convoy_run(harness.CONVOY, CONFIG, output, overrides, ranks, timeout=900)
        return output

    def summary(self, output):
        return json.loads((output / "summary.json").read_text())

    def newest(self, output):
        checkpoints = output / "checkpoints"
        return checkpoints / (checkpoints / "latest").read_text().strip()

    def forget(self, *outputs):
        for output in outputs:
            subprocess.run(["rm", "-r", str(output)], check=True)


def step_times(output):
    """Returns the seconds of each step, without evaluation and save."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    times = [record["seconds"] for record in map(json.loads, lines) if record["kind"] == "train"]
    return [b - a for a, b in zip(times, times[1:])]


def checkpoint_seconds(summary):
    return max(rank["checkpoint"] for rank in summary["breakdown"]["ranks"])


def memcpy(count, size):
    """Returns the seconds of a copy of `size` bytes by each of `count` processes at once, with memory that is in
    use."""
    def copy(ready, results):
        source, target = numpy.ones(size, numpy.uint8), numpy.zeros(size, numpy.uint8)
        ready.wait()
        times = []
        for _ in range(7):
            start = time.perf_counter()
            numpy.copyto(target, source)
            times.append(time.perf_counter() - start)
        results.put(statistics.median(times))
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(count), context.Queue()
    processes = [context.Process(target=copy, args=(ready, results)) for _ in range(count)]
    for process in processes:
        process.start()
    seconds = max(results.get() for _ in processes)
    for process in processes:
        process.join()
    return seconds


class Stall:
    """Seconds by which a save in the background delays a step of two ranks, and those of a memcpy of the larger file.

    The trace has the duration of each save on the rank's thread; a difference of whole runs would be mostly noise."""

    def __init__(self, folder, overrides, steps_a_second):
        self.folder = folder
        every = max(2, int(SPACING * steps_a_second))
        saves = 8 if every < 500 else 4
        # A trace has at most 1,000 steps. It begins after the first save, which allocates memory for the copy, and ends
        # before the last save, for which the run waits.
        first = 2 * every - min(every - 1, 400)
        last = min(first + 999, every * saves - 1)
        self.traced = last // every - (first - 1) // every
        self.sets = overrides + ["train.checkpoint_async=true", "train.keep_last=1",
                                 f"train.checkpoint_every={every} steps", f"train.max_steps={every * saves}",
                                 f"profile.steps={first}-{last}"]
        self.part = self.ranks = None

    def measure(self):
        saves = self.folder.run("saves", self.sets, 2)
        parts = [path.stat().st_size for path in self.folder.newest(saves).glob("rank-*.safetensors")]
        self.part, self.ranks = max(parts), len(parts)
        events = json.loads((saves / "trace.json").read_text())["traceEvents"]
        held = [[event["dur"] / 1e6 for event in events if event.get("cat") == "phase" and event["name"] == "checkpoint"
                 and event["pid"] == rank] for rank in range(2)]
        self.folder.forget(saves)
        if any(len(times) != self.traced for times in held):
            sys.exit(f"save: the trace has {[len(times) for times in held]} saves of the ranks, not {self.traced}")
        return statistics.median(max(times) for times in zip(*held))

    def reference(self):
        return memcpy(self.ranks, self.part)


def stalls(folder, rounds):
    ok = True
    for name, overrides in (("dense tables", DENSE), ("sparse tables", SPARSE)):
        probe = folder.run("probe",
                           overrides + ["train.max_steps=60", "train.log_every=1", "train.checkpoint_every=never"], 2)
        stall = Stall(folder, overrides, 1 / statistics.median(step_times(probe)[20:]))
        folder.forget(probe)
        measured = {"stall of a save": [], "memcpy": []}
        for number in range(rounds):
            measured["stall of a save"].append(stall.measure())
            measured["memcpy"].append(stall.reference())
            harness.say(f"round {number + 1}/{rounds}: " + "  ".join(f"{key} {values[-1]:.4g}"
                                                                     for key, values in measured.items()))
        harness.table(measured, "memcpy", f"{name}, {stall.part / 1e6:.0f} MB of a rank: seconds")
        ok &= harness.check(f"stall of a save ÷ memcpy of the rank's part, {name}",
                              harness.median_ratio(measured, "stall of a save", "memcpy"), 1.5, aim=1.1)
    return ok


def steps_during_writes(folder, rounds):
    """A write takes longer than the steps between two saves, so each save waits for the one before it: a write is in
    flight during every step. While no rank waits, convoy writes 500 MB a second at most
    (core/checkpoint/checkpoint.cpp)."""
    sets = DENSE + ["strategy={name: single}", "launch.cores_per_rank=1", "launch.bind=none", "train.max_steps=101",
                    "train.keep_last=1", "train.checkpoint_async=true"]

    def measure(every):
        def steps():
            output = folder.run("steps", sets + [f"train.checkpoint_every={every}"], 1)
            times = step_times(output)[5:]
            waited = checkpoint_seconds(folder.summary(output))
            if every != "never" and waited < 0.2 * sum(times):
                harness.say(f"  the saves took {waited:.2f} s of {sum(times):.2f} s of steps: "
                            "writes may have ended early")
            folder.forget(output)
            return statistics.median(times)
        return steps
    measured = harness.interleave(rounds, {"other steps": measure("never"),
                                           "steps during a write": measure("16 steps")})
    harness.table(measured, "other steps", "seconds a step")
    return harness.check("steps during a write ÷ other steps",
                           harness.median_ratio(measured, "steps during a write", "other steps"), 1.10, aim=1.03)


def write_rates(folder, rounds):
    source, target = folder.top / "source", folder.top / "target"
    source.write_bytes(os.urandom(STATE))

    def dd():
        done = subprocess.run(["dd", f"if={source}", f"of={target}", "bs=1M", "conv=fsync"], check=True,
                              capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        seconds = float(done.stderr.rsplit(" copied, ", 1)[1].split()[0])
        target.unlink()
        return STATE / seconds / 1e6

    def convoy():
        count = 5
        output = folder.run("rate",
                            DENSE + ["strategy={name: single}", "train.checkpoint_async=false", "train.keep_last=9",
                                     f"train.max_steps={2 * count}", "train.checkpoint_every=2 steps"], 1)
        seconds = checkpoint_seconds(folder.summary(output))
        folder.forget(output)
        return count * STATE / seconds / 1e6
    measured = harness.interleave(rounds, {"dd conv=fsync": dd, "a save": convoy})
    harness.table(measured, "dd conv=fsync", "MB a second")
    return harness.check("write rate of a save ÷ dd", harness.median_ratio(measured, "a save", "dd conv=fsync"), 0.8,
                           at_most=False, aim=0.95)


def load_memory(folder, rounds):
    """Peak of a process that loads, above one that begins anew with the same model and data."""
    ok = True
    for name, sets, sharded in (("fsdp", DENSE, "strategy={name: fsdp}"),
                                ("sharded tables", SPARSE, "model.rows=sharded")):
        four = folder.run("four", sets + [sharded, "train.max_steps=10", "train.checkpoint_every=10 steps",
                                          "launch.bind=none"], 4)
        manifest = json.loads((folder.newest(four) / "manifest.json").read_text())
        files = [file["bytes"] for file_name, file in manifest["files"].items() if file_name.startswith("rank-")]
        alone = sets + ["strategy={name: single}", "train.checkpoint_every=never"]
        over = []
        for number in range(rounds):
            one = folder.run("one", alone + ["train.max_steps=11", f"train.resume={four}"], 1)
            fresh = folder.run("fresh", alone + ["train.max_steps=1"], 1)
            peaks = [folder.summary(output)["ranks"][0]["peak_resident_bytes"] for output in (one, fresh)]
            folder.forget(one, fresh)
            over.append((peaks[0] - peaks[1]) / max(files))
            harness.say(f"round {number + 1}/{rounds}, {name}: peak {peaks[0] / 1e6:.0f} MB, "
                        f"without a load {peaks[1] / 1e6:.0f} MB; "
                        f"{len(manifest['entries'])} pieces of {sum(files) / 1e6:.0f} MB, "
                        f"largest file {max(files) / 1e6:.0f} MB")
        folder.forget(four)
        ok &= harness.check(f"loading four ranks' {name} on one: "
                              "peak beyond that without a load ÷ one of the four slices", statistics.median(over), 1.0)
    return ok


PARTS = {"stall": stalls, "steps": steps_during_writes, "rate": write_rates, "load": load_memory}

if __name__ == "__main__":
    parser = harness.arguments(__doc__, rounds=5)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part of the benchmark (default: all)")
    parser.add_argument("--disk", default=None, help="folder on the disk to measure (default: of temporary files)")
    options = parser.parse_args()
    ok = True
    with tempfile.TemporaryDirectory(prefix="convoy-bench-", dir=options.disk) as top:
        for part in options.only or PARTS:
            ok &= PARTS[part](Folder(top), options.rounds)
    sys.exit(0 if ok else 1)
