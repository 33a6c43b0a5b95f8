"""Pipelines that are killed, throw, exit or hang affect no other. One that fails twice succeeds at its
third attempt, after back-off."""
# timeout: 180
import _faults
import _farm
from _faults import runs

with runs.workspace() as folder:
    farm = _farm.Farm(folder, {
        "hangs": "timeout: 6s",
        "killed": "priority: 1",
        "throws": "priority: 1",
        "leaves": "priority: 1",
        "flaky": "retries: 2, backoff: 0.5s, priority: 1",
        "well": "config: {seed: 5}",
    }, "hangs/loop@step=5", "killed/kill@step=25", "throws/throw@step=25", "leaves/exit:3@step=25",
        "flaky/throw@step=25", "flaky/kill:attempt=1@step=45").start()
    summary = farm.finished(1)

    def failed(name, code, cause, attempts=1, says=""):
        entry, own = farm.result(name)
        farm.check(entry["status"] == "failed" and entry["exit_code"] == code and entry["cause"] == cause
                   and entry["attempts"] == attempts and says in entry["message"], f"{name}: {entry}")
        farm.check(own["status"] == "failed" and own["failure"]["cause"] == cause, f"{name}: {own['failure']}")
        farm.check(f"{name} ({cause})" in summary["failure"]["message"], f"not named: {summary['failure']}")

    failed("killed", 137, "signal", says="signal 9")
    failed("throws", 70, "training")
    failed("leaves", 70, "training")
    failed("hangs", 110, "timeout", says="6 s")
    (start,) = farm.journal("hangs", "started")
    (end,) = farm.journal("hangs", "failed")
    took = end["time"] - start["time"]
    farm.check(6 <= took <= 6 + _faults.GRACE + 2, f"the one that hangs was ended after {took:.1f} s")

    for name, keys in (("well", "seed: 5"), ("flaky", "seed: 1")):
        entry, own = farm.result(name)
        farm.check(entry["status"] == "done" and own["status"] == "done", f"{name}: {entry}")
        farm.equals_alone(name, keys)
    farm.check(farm.result("flaky")[0]["attempts"] == 3, "the flaky one's attempts are not counted")
    retries, starts = farm.journal("flaky", "retry"), farm.journal("flaky", "started")
    farm.check([line["after"] for line in retries] == [0.5, 1.0], f"back-off: {retries}")
    for retry, start in zip(retries, starts[1:]):
        farm.check(start["time"] - retry["time"] >= retry["after"], "the back-off was not kept")
    places = [row["pipeline"] for row in summary["leaderboard"]["rows"]]
    farm.check(set(places[:2]) == {"well", "flaky"} and len(places) == 6, f"leaderboard: {places}")
    print(f"{summary['failure']['message']}; the others equal runs without a farm")

    # The same command repeats no completed pipeline.
    before = {name: (farm.pipeline(name) / "summary.json").stat().st_mtime_ns for name in ("well", "flaky")}
    farm.faults = ()
    summary = farm.start().finished(0)
    farm.check({entry["status"] for entry in summary["pipelines"]} == {"done"}, f"{summary['pipelines']}")
    for name, time in before.items():
        farm.check((farm.pipeline(name) / "summary.json").stat().st_mtime_ns == time, f"{name} was repeated")
        farm.check(len(farm.journal(name, "started")) == len([e for e in starts if e["pipeline"] == name]) or
                   name == "well",
                   f"{name} was started again")
    for name in ("killed", "throws", "leaves", "hangs"):
        farm.equals_alone(name)
    print("the same command again: only what had failed, from its checkpoint; same weights")
