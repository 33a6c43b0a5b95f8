"""Event files for TensorBoard have every number of metrics.jsonl once, also after a resume; histograms on request. A
decoder of our own reads them; event_files_tensorboard.py uses the real one."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import event_files
import runs

TINY = runs.TOP / "configs" / "tiny"


def compare(output, title):
    """Every scalar of metrics.jsonl is in the event files, once, and no other one of these kinds."""
    wanted = event_files.expected_scalars(runs.records(output))
    found = {}
    for event in event_files.events(output / "tensorboard"):
        for tag, value in event["scalars"].items():
            if tag.startswith("resources/"):
                continue
            key = (tag, event["step"])
            runs.check(key not in found, f"{title}: {key} is there twice")
            found[key] = value
    runs.check(set(found) == set(wanted), f"{title}: {sorted(set(found) ^ set(wanted))[:5]}")
    different = [key for key, value in wanted.items() if not event_files.same(found[key], value)]
    runs.check(not different, f"{title}: other values of {different[:5]}")
    return found


with runs.workspace() as folder:
    output = folder / "ddp"
    runs.run(TINY / "ncf.yaml", output, ["log.histograms=10", "train.evaluate_every=10 steps"])
    compare(output, "ddp")
    events = event_files.events(output / "tensorboard")
    runs.check(events[0]["version"] == "brain.Event:2" and events[0]["step"] == 0, f"the first event: {events[0]}")
    texts = {tag: text for event in events for tag, text in event["texts"].items()}
    runs.check("name: tiny-ncf" in texts["configuration"], f"configuration: {texts}")
    memory = [event["scalars"]["resources/memory_bytes"] for event in events
              if "resources/memory_bytes" in event["scalars"]]
    runs.check(memory and min(memory) > 1 << 20, f"memory: {memory}")
    shown = [event for event in events if event["histograms"]]
    steps = runs.summary(output)["steps"]
    runs.check([event["step"] for event in shown] == list(range(10, steps + 1, 10)),
               f"histograms: {[e['step'] for e in shown]}")
    names = set(shown[0]["histograms"])
    weights = {name[len("weights/"):] for name in names if name.startswith("weights/")}
    gradients = {name[len("gradients/"):] for name in names if name.startswith("gradients/")}
    runs.check(weights == gradients and len(weights) > 4, f"histograms: {sorted(names)}")

    # An ensemble has the values of each member.
    output = folder / "ensemble"
    runs.run(TINY / "ensemble.yaml", output)
    found = compare(output, "ensemble")
    runs.check(any(tag.endswith("/member3") for tag, _ in found), f"members: {sorted(found)[:20]}")

    # A run that is killed after a checkpoint has written steps that the resumed one repeats.
    output = folder / "resumed"
    sets = ["train.checkpoint_every=10 steps", "train.log_every=1"]
    runs.run(TINY / "mlp.yaml", output, sets, inject=["kill:rank=0@step=17"], expect=None)
    before = {event["step"] for event in event_files.events(output / "tensorboard") if event["scalars"]}
    runs.check(max(before) > 10, f"steps before the end: {sorted(before)}")
    runs.run(TINY / "mlp.yaml", output, sets)
    compare(output, "resumed")
    files = sorted((output / "tensorboard").iterdir())
    runs.check(len(files) == 2, f"one file for each process: {files}")
    sessions = [event for event in event_files.events(output / "tensorboard") if event["session"]]
    runs.check([event["step"] for event in sessions] == [11], f"the start of the second: {sessions}")

    output = folder / "off"
    runs.run(TINY / "mlp.yaml", output, ["log.tensorboard=false", "train.epochs=1"])
    runs.check(not (output / "tensorboard").exists(), "log.tensorboard=false writes no event files")
    runs.refused("histograms alone", 78, ["log.histograms", "tensorboard: false"],
                 runs.command(TINY / "mlp.yaml", folder / "no", ["log.tensorboard=false", "log.histograms=5"]))
    print("event files have every number once")
