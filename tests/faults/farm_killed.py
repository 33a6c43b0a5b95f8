"""The farm itself is SIGKILLed: all its processes end within two seconds, and the same command finishes the rest, with
the weights of an undisturbed run. If a pipeline's convoy is SIGKILLed, the pipeline is retried."""
# timeout: 150
import os
import signal
import time

import _farm
import _faults
from _faults import runs

FOR_EVER = 5000000  # steps

with runs.workspace() as folder:
    farm = _farm.Farm(folder, {"short": "priority: 1, config: {train: {max_steps: 20}}", "long": "retries: 1",
                               "wide": "cores: 2, config: {strategy: ddp, launch: {ranks: 2}, "
                                       "train: {max_steps: 500}}"},
                      "long/orphan@step=3", steps=FOR_EVER, checkpoint="250 steps", title="farm killed").start()
    farm.wait_for_event("short", "done")
    farm.wait_for_step("long", 400)
    time.sleep(0.2)
    farm.signal(farm.process.pid, signal.SIGKILL)
    farm.process.wait()
    runs.wait_for(lambda: not farm.marked() or time.time() > farm.failed_at + 2, 5, "the end")
    farm.check(not farm.marked(), "a process still lives after 2 s")
    print(f"all gone {time.time() - farm.failed_at:.2f} s after the farm was killed")

    farm.faults = ()
    farm.start()
    again = farm.wait_for_event("long", "started", count=2)
    runs.wait_for(lambda: farm.marked() and "step" in str(runs.summary(farm.pipeline("long"))), 30, "the second start")
    farm.wait_for_step("long", 1000)
    os.kill(again["pid"], signal.SIGKILL)
    retry = farm.wait_for_event("long", "retry", 10)
    farm.check(retry["cause"] == "signal" and "signal 9" in retry["message"], f"{retry}")
    farm.check("killed" in farm.console() or "without a summary" in farm.console(), "the farm's end is not reported")
    farm.wait_for_event("wide", "started")  # before `long` again: the cores were reserved for it
    farm.signal(farm.process.pid, signal.SIGTERM)
    # Its next start removes the temporaries of the save during which it was killed.
    farm.check(runs.end(farm.process, 30) == 143, "the farm did not stop in order")
    farm.ends_soon("long")
    farm.start().finished(0)
    farm.check(len(farm.journal("short", "started")) == 1, "completed pipelines were repeated")
    farm.check(len(farm.journal("long", "started")) == 3, f"{farm.journal('long')}")
    entry, own = farm.result("long")
    farm.check(own["attempts"] is not None and own["steps"] == farm.steps, f"{own['steps']} steps")
    farm.equals_alone("long")
    farm.check(farm.result("wide")[1]["world_size"] == 2, "the pipeline had only one process")
    print("the same command again finishes the rest; weights equal an undisturbed run")

    # If mpirun is killed, the slots end their pipelines; a farm alone continues with the rest.
    inside = _farm.Farm(folder, {"a": "", "b": ""}, steps=FOR_EVER, checkpoint="250 steps", title="mpirun killed")
    inside.start(under=_faults.MPIRUN)
    inside.wait_for_step("a", 400)
    inside.wait_for_step("b", 50)
    inside.signal(inside.process.pid, signal.SIGKILL)
    inside.process.wait()
    runs.wait_for(lambda: not inside.marked() or time.time() > inside.failed_at + 3, 5, "the end")
    inside.check(not inside.marked(), "a process still lives after 3 s")
    summary = runs.summary(inside.output)
    inside.check(summary["status"] in ("running", "failed"), f"{summary['status']}")
    _faults.swept(folder, inside)
    inside.ends_soon("a", "b")
    summary = inside.start().finished(0)
    inside.check([entry["attempts"] for entry in summary["pipelines"]] == [2, 2], f"{summary['pipelines']}")
    inside.equals_alone("a")
    print("a killed mpirun leaves nothing running, and the same file alone finishes it")
