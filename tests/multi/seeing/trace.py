"""The trace of chosen steps: its format, slices that nest, and one clock for all ranks."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

TINY = runs.TOP / "configs" / "tiny"
FIRST, LAST = 5, 7


def check_nesting(title, slices):
    """Slices of one lane nest or do not overlap. Moments are exact to a nanosecond."""
    open_slices = []
    for one in sorted(slices, key=lambda e: (round(1000 * e["ts"]), -round(1000 * e["dur"]))):
        begin, end = round(1000 * one["ts"]), round(1000 * (one["ts"] + one["dur"]))
        while open_slices and open_slices[-1][1] <= begin:
            open_slices.pop()
        runs.check(not open_slices or end <= open_slices[-1][1] + 1,
                   f"{title}: {one} crosses the end of {open_slices[-1:]}")
        open_slices.append((begin, end, one["name"]))


def check_trace(title, output, ranks, names):
    trace = json.loads((output / "trace.json").read_text())
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    runs.check({event["ph"] for event in events} == {"X", "M"}, f"{title}: kinds of events")
    for event in slices:
        runs.check(event["dur"] >= 0 and event["ts"] >= 0 and event["name"] and event["cat"], f"{title}: {event}")
    runs.check({event["pid"] for event in slices} == set(range(ranks)), f"{title}: ranks")
    for rank in range(ranks):
        mine = [event for event in slices if event["pid"] == rank]
        for lane in {event["tid"] for event in mine}:
            check_nesting(f"{title}, rank {rank}, lane {lane}", [event for event in mine if event["tid"] == lane])
        steps = [event["name"] for event in mine if event["cat"] == "step"]
        runs.check(steps == [f"step {number}" for number in range(FIRST, LAST + 1)], f"{title}: {steps}")
        found = {event["name"].split(" ")[0] for event in mine}
        runs.check(names <= found, f"{title}, rank {rank}: no {names - found} in {sorted(found)}")
    offsets = trace["otherData"]["clock_offsets_ns"]
    runs.check(max(offsets) - min(offsets) < 1e6, f"{title}: clocks of one host differ: {offsets} ns")
    return slices


with runs.workspace() as folder:
    sets = [f"profile.steps={FIRST}-{LAST}", "data.prefetch=2"]
    for title, backend in (("gloo", "gloo"), ("mpi", "mpi")):
        output = folder / title
        runs.run(TINY / "mlp.yaml", output, [*sets, "strategy.name=ddp", f"backend={backend}"], 2)
        slices = check_trace(title, output, 2, {"train", "backward", "update", "all_reduce", "data"})
        runs.check(any(event["cat"] == "block" for event in slices), f"{title}: no blocks")
        runs.check(any(event["name"] == "batch" for event in slices), f"{title}: no loader")
        runs.check(all(event["args"]["bytes"] >= 0 for event in slices if event["cat"] == "collective"),
                   f"{title}: bytes")
        # No rank leaves an all-reduce before the other has joined it, so the same step overlaps on both ranks.
        for number in range(FIRST, LAST + 1):
            same = [event for event in slices if event["name"] == f"step {number}"]
            begin, end = max(event["ts"] for event in same), min(event["ts"] + event["dur"] for event in same)
            runs.check(begin < end + 1000, f"{title}: step {number} is at different times: {same}")

    runs.run(TINY / "gpt.yaml", folder / "pipeline", [*sets, "strategy.name=pipeline"], 2)
    check_trace("pipeline", folder / "pipeline", 2, {"train", "backward"})
    runs.run(TINY / "mlp.yaml", folder / "devices", [*sets, "strategy.name=model_parallel"], 1)
    check_trace("model_parallel", folder / "devices", 1, {"train"})
    # A thread writes a checkpoint after each step; the trace has what it did during the traced steps.
    output = folder / "saves"
    runs.run(TINY / "gpt.yaml", output,
             [*sets, "strategy.name=ddp", "train.checkpoint_every=1 steps", "train.max_steps=12",
              "train.checkpoint_async=true"], 2)
    slices = check_trace("saves", output, 2, {"save", "write"})
    lanes = {(e["pid"], e["tid"]): e["args"]["name"]
             for e in json.loads((output / "trace.json").read_text())["traceEvents"]
             if e["name"] == "thread_name"}
    saves = [event for event in slices if event["cat"] == "checkpoint"]
    runs.check({lanes[event["pid"], event["tid"]] for event in saves} == {"checkpoint"}, f"lanes of saves: {lanes}")
    runs.check(all(event["args"]["bytes"] > 0 for event in saves if event["name"] == "write" and event["pid"] == 0),
               "bytes")
    runs.check(any(event["name"] == "publish" and event["pid"] == 0 for event in saves), "rank 0 publishes")
    # The training ends before the last traced step.
    output = folder / "short"
    runs.run(TINY / "mlp.yaml", output, [f"profile.steps={FIRST}-{LAST}", f"train.max_steps={LAST}"])
    check_trace("short", output, 1, {"train"})
    runs.run(TINY / "mlp.yaml", folder / "late", [f"profile.steps={FIRST}-{LAST}", f"train.max_steps={FIRST - 1}"])
    said = (folder / "late/logs/rank0.log").read_text()
    runs.check(f"step {FIRST} comes after the {FIRST - 1} steps" in said, f"late steps: {said}")
    for wrong in ("0-3", "7-5", "x", "1-2-3", "1-99999"):
        runs.refused(wrong, 78, ["profile.steps"],
                     runs.command(TINY / "mlp.yaml", folder / "no", [f"profile.steps={wrong}"]))
    print("traces nest, on one clock")
