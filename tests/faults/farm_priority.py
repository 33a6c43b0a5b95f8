"""An urgent pipeline waits in the queue. It runs next, and running ones continue. With `preempt`, one stops after
its step, and ends later with the weights of an undisturbed run. On a stop request a farm stops in order."""
# timeout: 150
import os
import signal
import time

import _faults
import _farm
from _faults import runs

FOR_EVER = 5000000  # steps
URGENT = """\
name: {name}
priority: {priority}
preempt: {preempt}
cores: 1
config:
"""


def added(farm, name, priority, preempt):
    lines = (farm.text.replace("name: farm", f"name: {name}").replace(f"max_steps: {FOR_EVER}", "max_steps: 30")
             + "strategy: single").splitlines()
    return (URGENT.format(name=name, priority=priority, preempt=preempt) +
            "\n".join(f"  {line}" for line in lines) + "\n")


with runs.workspace() as folder:
    farm = _farm.Farm(folder, {"first": "", "second": ""}, steps=FOR_EVER, checkpoint="1000 epochs", log_every=50,
                      strategy="  max_parallel: 1\n", title="urgent").start()
    farm.wait_for_step("first", 50)
    _farm.put(farm, "next", added(farm, "next", 5, "false"))
    _farm.put(farm, "next2", added(farm, "next", 5, "false"))
    _farm.put(farm, "wrong", added(farm, "wrong", "high", "false"))
    refused = farm.output / "inbox" / "wrong.yaml.refused"
    runs.wait_for(refused.exists, 5, "the refusal")
    farm.check("priority: is 'high'" in refused.read_text(), refused.read_text())
    again = farm.output / "inbox" / "next2.yaml.refused"
    runs.wait_for(again.exists, 5, "the refusal of a name twice")
    farm.check("'next'" in again.read_text(), again.read_text())
    runs.wait_for((farm.output / "inbox" / "next.yaml.taken").exists, 5, "next is taken")
    farm.check(not farm.journal("first", "preempted"), "it was not to be stopped")
    asked = time.time()
    _farm.put(farm, "now", added(farm, "now", 10, "true"))
    start = farm.wait_for_event("now", "started")
    farm.check(start["time"] - asked <= 5, f"it started after {start['time'] - asked:.1f} s")
    (gave_way,) = farm.journal("first", "preempted")
    farm.check(gave_way["exit_code"] == 143, f"{gave_way}")
    farm.wait_for_event("first", "started", count=2)
    farm.wait_for_step("first", farm.step("first") + 50)
    order = [line["pipeline"] for line in farm.journal(event="started")]
    farm.check(order == ["first", "now", "next", "first"], f"order of starts: {order}")

    # After a request it stops in order; the same command resumes it, with the added pipelines.
    farm.signal(farm.process.pid, signal.SIGTERM)
    summary = farm.ends(143, within=_faults.GRACE + 2, kind="stopped", says=["2 of 4 pipelines done"])
    farm.ends_soon("first")
    summary = farm.start().finished(0)
    farm.check({entry["name"]: entry["attempts"] for entry in summary["pipelines"]}
               == {"first": 3, "second": 1, "next": 1, "now": 1}, f"{summary['pipelines']}")
    for name in ("first", "second"):
        farm.equals_alone(name)
    print("the urgent one ran next; the preempted one ended with the weights of an undisturbed run")
