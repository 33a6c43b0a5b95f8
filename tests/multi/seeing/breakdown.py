"""The time breakdown adds up to the wall time, for every strategy, backend and kind of start; resources over time, the
file for Prometheus, and `convoy top`."""
import json
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

TINY = runs.TOP / "configs" / "tiny"
PARTS = ["start_up", "data", "forward", "backward", "communication", "waiting", "update", "evaluation", "checkpoint",
         "other"]


def check_breakdown(title, output, ranks, wall=None):
    summary = runs.summary(output)
    found = summary.get("breakdown")
    runs.check(found is not None, f"{title}: no breakdown in {output}/summary.json")
    runs.check([one["rank"] for one in found["ranks"]] == list(range(ranks)), f"{title}: {found}")
    for one in found["ranks"]:
        total = sum(one[part] for part in PARTS)
        runs.check(abs(total - found["wall_s"]) <= 0.02 * found["wall_s"],
                   f"{title}: {total} of {found['wall_s']} s: {one}")
        runs.check(min(one[part] for part in PARTS) >= 0, f"{title}: {one}")
        # Compares with times that other code measures.
        loop = sum(one[part] for part in ("data", "forward", "backward", "communication", "waiting", "update"))
        runs.check(0 < loop <= summary["train_seconds"] * 1.05 + 0.1,
                   f"{title}: {loop} of {summary['train_seconds']} s")
        runs.check(one["start_up"] <= summary["startup_seconds"] * 1.05 + 0.1,
                   f"{title}: start-up {one}, {summary['startup_seconds']}")
        runs.check(abs(one["evaluation"] - summary["evaluate_seconds"]) <= 0.1 + 0.2 * summary["evaluate_seconds"],
                   f"{title}: evaluation {one}, {summary['evaluate_seconds']}")
        runs.check(one["forward"] > 0 and one["backward"] > 0 and one["update"] > 0, f"{title}: {one}")
        runs.check("times" not in summary["ranks"][one["rank"]], f"{title}: the report is there twice")
    if wall is not None:  # the summary is written before convoy ends
        runs.check(abs(found["wall_s"] - wall) <= 0.02 * wall + 0.4, f"{title}: {found['wall_s']} s, took {wall} s")
    return found


def timed(title, config, output, sets=(), ranks=None, under=(), inject=()):
    start = time.monotonic()
    runs.run(config, output, sets, ranks, under, inject)
    return check_breakdown(title, output, ranks or 1, time.monotonic() - start)


CASES = [("single", "mlp", "single", 1, []), ("ddp", "mlp", "ddp", 2, ["backend=gloo"]),
         ("mpi", "mlp", "ddp", 2, ["backend=mpi"]), ("fsdp", "gpt", "fsdp", 2, []),
         ("pipeline", "gpt", "pipeline", 2, []), ("tensor_parallel", "gpt", "tensor_parallel", 2, []),
         ("model_parallel", "mlp", "model_parallel", 1, ["device=cpu"]), ("ensemble", "ensemble", "ensemble", 1, [])]

with runs.workspace() as folder:
    for title, config, strategy, ranks, sets in CASES:
        if strategy != "ensemble":
            sets = [*sets, f"strategy.name={strategy}"]
        timed(title, TINY / f"{config}.yaml", folder / title, sets, ranks)
    timed("mpirun", TINY / "mlp.yaml", folder / "mpirun", ["strategy.name=ddp"], 2)

    # Rank 1 sleeps 0.5 s before each of three steps: rank 0 waits for it, and the line at the end names it.
    output = folder / "slow"
    line = runs.command(TINY / "mlp.yaml", output, ["strategy.name=ddp", "train.epochs=1"], 2,
                        inject=[f"sleep:0.5s:rank=1@step={step}" for step in (5, 7, 9)])
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=120)
    runs.check(done.returncode == 0, done.stdout[-3000:])
    found = check_breakdown("slow", output, 2)
    first, second = found["ranks"]
    runs.check(first["waits_for"][0]["rank"] == 1 and 1.2 < first["waiting"] < 2.5, f"rank 0 waits for rank 1: {first}")
    runs.check(second["waiting"] < 0.7, f"rank 1 waits for nobody: {second}")
    runs.check(re.search(r"^  time of rank 0: .*waiting \d+ %", done.stdout, re.M),
               f"the line at the end:\n{done.stdout[-2000:]}")

    # A farm has a breakdown for each pipeline.
    farm = folder / "farm.yaml"
    farm.write_text((TINY / "mlp.yaml").read_text().replace("tiny-mlp", "farm").replace(
        "strategy: {name: single}",
        "strategy: {name: independent, pipelines: [{name: a}, {name: b, config: {optimizer: {lr: 1.0e-2}}}]}"))
    runs.run(farm, folder / "farm", ["log.prometheus=" + str(folder / "{name}.prom")])
    for name in "ab":
        check_breakdown(f"pipeline {name}", folder / "farm" / "pipelines" / name, 1)
        text = (folder / f"{name}.prom").read_text()
        runs.check(f'convoy_up{{run="{name}"}} 0' in text, f"{name}.prom: {text}")
        shown = float(re.search(r'part="start_up"} (\S+)', text).group(1))
        summed = runs.summary(folder / "farm" / "pipelines" / name)["breakdown"]["ranks"][0]["start_up"]
        runs.check(abs(shown - summed) < 0.2, f"{name}: start-up {shown} s, {summed} s in the summary")

    runs.refused("one file for two pipelines", 78, ["log.prometheus", "{name}"],
                 runs.command(farm, folder / "no", ["log.prometheus=" + str(folder / "x.prom")]))

    # Resources, Prometheus and top of a running job.
    output, prometheus = folder / "watched", folder / "watched.prom"
    process = runs.start(TINY / "ncf.yaml", output,
                         ["train.epochs=100000", f"log.prometheus={prometheus}", "train.log_every=5"])
    runs.wait_for(lambda: "convoy_rank_memory_bytes" in (prometheus.read_text() if prometheus.exists() else ""), 60,
                  "Prometheus' file")
    sample = re.compile(r'^(convoy_[a-z_]+)\{run="watched"(,[a-z]+="[^"]*")*\} (-?[0-9.e+-]+|NaN|[+-]Inf)$')
    known = {}
    for text_line in prometheus.read_text().splitlines():
        if text_line.startswith("# TYPE "):
            known[text_line.split()[2]] = text_line.split()[3]
        elif not text_line.startswith("# HELP "):
            match = sample.match(text_line)
            runs.check(match and match.group(1) in known, f"not in the text format: {text_line}")
    runs.check(known["convoy_step"] == "gauge" and known["convoy_rank_cpu_seconds_total"] == "counter", f"{known}")

    def top():
        return subprocess.run([runs.CONVOY, "top", output, "--once"], stdout=subprocess.PIPE, text=True,
                              timeout=30).stdout

    shown = runs.wait_for(lambda: (text := top()) and "time of rank 0: " in text and "loss: " in text and text, 60,
                          "top shows times and a curve")
    runs.check(re.search("[\u2801-\u28ff]", shown), f"no curve:\n{shown}")
    process.terminate()
    process.wait(timeout=60)
    lines = [json.loads(text_line) for text_line in (output / "resources.jsonl").read_text().splitlines()]
    runs.check({one["rank"] for one in lines} == {0, 1}, f"resources: {lines}")
    for one in lines:
        runs.check(one["memory_bytes"] > 1 << 20 and one["cpu_s"] > 0 and one["time_s"] > 0, f"resources: {one}")
    runs.refused("a file that cannot be written", 73, ["log.prometheus"],
                 runs.command(TINY / "mlp.yaml", folder / "no",
                              ["log.prometheus=" + str(folder / "nowhere" / "x.prom")]), within=5)
    print("times add up:", json.dumps(found["ranks"][0]))
