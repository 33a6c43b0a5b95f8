"""Common code of the farm's fault scripts: a farm of small trainings by name, and each of them trained alone."""
import atexit
import contextlib
import json
import os
import pathlib

import _faults
from _faults import runs

COMMON = """\
name: farm
device: cpu
model: {{name: mlp, hidden: [16]}}
data: {{name: synthetic, rows: 4096, evaluate_rows: 64}}
optimizer: {{name: adam, lr: 0.01}}
train: {{epochs: 100000, max_steps: {steps}, batch: {{global: 64}}, evaluate_every: never, \
checkpoint_every: {checkpoint},
        log_every: {log_every}}}
launch: {{grace: {grace}s, failure_grace: {grace}s, heartbeat: {heartbeat}s, collective: {collective}s}}
"""


def common(steps, checkpoint, log_every):
    return COMMON.format(steps=steps, checkpoint=checkpoint, log_every=log_every, grace=_faults.GRACE,
                         heartbeat=_faults.HEARTBEAT, collective=_faults.COLLECTIVE)


class Farm(_faults.Run):
    """A farm. `pipelines` maps names to further keys of their items, as YAML within braces."""

    def __init__(self, folder, pipelines, *faults, title="farm", steps=60, checkpoint="20 steps", strategy="",
                 log_every=1):
        super().__init__(folder, "gloo", *faults, title=title)
        atexit.register(self.sweep)  # a failing test leaves no endless process
        items = "".join(f"    - {{name: {name}, {rest}}}\n" for name, rest in pipelines.items())
        self.checkpoint, self.log_every = checkpoint, log_every
        self.strategy = f"strategy:\n  name: independent\n  cores: 1\n{strategy}  pipelines:\n{items}"
        self.ends_at(steps)

    def ends_at(self, steps):
        """Ends pipelines at this step from the next start on. So a test with pipelines far from their end does not
        depend on their speed."""
        self.steps = steps
        self.text = common(steps, self.checkpoint, self.log_every)
        self.config.write_text(self.text + self.strategy)

    def ends_soon(self, *names):
        self.ends_at(max(self.step(name) for name in names) + 500)

    def step(self, name):
        """Returns the last step in the pipeline's metrics."""
        steps = [0]
        for line in (self.pipeline(name) / "metrics.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError, KeyError):  # the last line may be incomplete
                steps.append(json.loads(line)["step"])
        return max(steps)

    def journal(self, name=None, event=None):
        lines = []
        with contextlib.suppress(OSError):
            lines = (self.output / "journal.jsonl").read_text().splitlines()
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line may be incomplete
                found.append(json.loads(line))
        return [line for line in found if name in (None, line["pipeline"]) and event in (None, line["event"])]

    def wait_for_event(self, name, event, seconds=60, count=1):
        runs.wait_for(lambda: len(self.journal(name, event)) >= count or self.process.poll() is not None, seconds,
                      f"{self.title}: {name} {event}")
        found = self.journal(name, event)
        self.check(len(found) >= count, f"{name} was never {event}")
        return found[count - 1]

    def pipeline(self, name):
        return self.output / "pipelines" / name

    def wait_for_step(self, name, step, seconds=60):
        runs.training(self.pipeline(name), seconds, step)

    def result(self, name):
        """Returns the pipeline's entry in the farm's summary, and the pipeline's summary."""
        (entry,) = [entry for entry in runs.summary(self.output)["pipelines"] if entry["name"] == name]
        return entry, runs.summary(self.pipeline(name))

    def finished(self, code, seconds=120):
        ended = runs.end(self.process, seconds)
        self.check(ended == code, f"exit {ended}, expected {code}")
        self.clean()
        return runs.summary(self.output)

    def alone(self, name, keys="seed: 1"):
        """Returns the weights of the same training on one core without a farm; `keys` as in the pipeline's config."""
        config = self.folder / f"{name}.yaml"
        config.write_text(self.text.replace("name: farm", f"name: {name}") + f"strategy: single\n{keys}\n")
        core = str(min(os.sched_getaffinity(0)))
        output = self.folder / f"alone-{name}"
        if not output.exists():
            runs.run(config, output, under=["taskset", "-c", core])
        return runs.weights(output)

    def equals_alone(self, name, keys="seed: 1"):
        self.check(runs.weights(self.pipeline(name)) == self.alone(name, keys),
                   f"{name} ended with other weights than alone on one core")


def put(farm, name, text):
    """Submits a valid file, as `convoy add` does."""
    inbox = pathlib.Path(farm.output) / "inbox"
    (inbox / f".{name}").write_text(text)
    os.rename(inbox / f".{name}", inbox / f"{name}.yaml")
