"""Ranks that train locally between synchronisations: stopped and resumed bit for bit, with other ranks from the
average, refusals."""
# timeout: 300
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "ncf.yaml"
SETS = ["launch.cores_per_rank=1", "train.epochs=20", "train.checkpoint_every=20 epochs", "train.log_every=1"]
POLICIES = {
    "parameters": ["strategy.sync.what=parameters", "strategy.sync.every=5"],
    "diloco": ["strategy.sync.what=diloco", "strategy.sync.every=5", "strategy.sync.start_after=3"],
    # Stale rows are caught up when a run stops. Only step-by-step catch-up has the bits of an undisturbed run.
    "rows": ["strategy.sync.what=parameters", "strategy.sync.every=5", "model.rows=true", "optimizer.catch_up=exact"],
    "narrow rows": ["strategy.sync.compress=bf16", "model.rows=true", "optimizer.catch_up=exact"],
    "narrow sharded rows": ["strategy.sync.compress=fp16", "model.rows=sharded", "optimizer.catch_up=exact"],
    "groups": ["strategy.sync={compress: bf16, groups: [{match: embedding|users|items, what: parameters, every: 4, "
               "moments: averaged}]}"],
}


def undisturbed_and_stopped(folder, name, policy, backend):
    """Compares weights of a run that was stopped in the middle of a period and resumed with those of an undisturbed
    one."""
    sets = [*SETS, *policy, f"backend={backend}", "strategy.name=ddp"]
    whole = runs.run(CONFIG, folder / "whole", sets, ranks=2)
    stopped = folder / "stopped"
    at = runs.stopped_and_resumed(name, CONFIG, stopped, sets, whole, after=5)
    runs.check(runs.weights(stopped) == runs.weights(folder / "whole"),
               f"{name}, {backend}: weights differ after a stop at {at}")
    print(f"{name}, {backend}: stopped at {at}, resumed: equal", flush=True)


def resumed_by_others(folder, ranks):
    """Resumes a checkpoint of four ranks with other numbers of ranks."""
    sets = [*SETS, *POLICIES["diloco"], "strategy.name=ddp", "train.checkpoint_every=7 steps",
            "launch.cores_per_rank=auto"]
    runs.run(CONFIG, folder / "four", [*sets, "train.max_steps=7"], ranks=4)
    line = runs.command(CONFIG, folder / "others", [*sets, f"train.resume={folder / 'four'}"], ranks)
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=120, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"{ranks} ranks after four: exit {done.returncode}\n{done.stdout}")
    logs = done.stdout + "".join(path.read_text() for path in (folder / "others" / "logs").glob("rank*.log"))
    runs.check("trained locally" in logs and "average" in logs, f"{ranks} ranks after four: not told\n{logs}")


def refused(folder, texts, *sets):
    begun = time.monotonic()
    done = subprocess.run(runs.command(CONFIG, folder / "refused", ["strategy.name=ddp", *sets], 2), cwd=runs.TOP,
                          env=runs.environment(), timeout=60, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == 78, f"{sets}: exit {done.returncode}, expected 78\n{done.stdout}")
    for text in texts:
        runs.check(text in done.stdout, f"{sets}: no '{text}' in\n{done.stdout}")
    runs.check(not (folder / "refused").exists(), f"{sets}: a folder was made although nothing started")
    return time.monotonic() - begun


with runs.workspace() as work:
    for name, policy in POLICIES.items():
        for backend in ("gloo", "mpi"):
            undisturbed_and_stopped(work / f"{name}-{backend}", name, policy, backend)
    resumed_by_others(work, 2)
    # A rank sends no gradient before the first synchronisation. Sums of 16-bit numbers need half the bytes.
    short = ["strategy.name=ddp", "train.max_steps=8", "train.evaluate_every=never", "train.checkpoint_every=never",
             "launch.cores_per_rank=1"]
    sent = {sync: runs.run(CONFIG, work / f"sent{number}", [*short, f"strategy.sync={sync}"],
                           ranks=2)["bytes_sent_per_step"]
            for number, sync in enumerate(["{}", "{what: parameters, every: 8}", "{compress: bf16}"])}
    whole, averaged, narrow = sent.values()
    runs.check(averaged < 0.2 * whole and 0.4 * whole < narrow < 0.6 * whole, f"bytes a step: {sent}")
    refused(work, ["strategy.sync.groups.0.match", "nothing-has-this"],
            "strategy.sync={groups: [{match: nothing-has-this, what: parameters}]}")
    refused(work, ["strategy.sync.groups.0.every", "conflicts with sync.every = 2"],
            "strategy.sync={every: 2, groups: [{match: weight, every: 3}]}")
    refused(work, ["strategy.sync.compress", "average parameters"], "strategy.sync={what: parameters, compress: bf16}")
    refused(work, ["strategy.sync.compress", "loss scale"], "strategy.sync={compress: bf16}", "precision=fp16")
    refused(work, ["strategy.sync.start_after", "what is gradients"], "strategy.sync={start_after: 3}")
    # Sparse embeddings: reported if they stay dense, and fewer bytes than dense ones.
    tables = [*short, "data.users=20000", "data.items=10000", "train.max_steps=16"]
    often = ["strategy.sync={what: parameters, every: 4}"]
    rows = runs.run(CONFIG, work / "rows", [*tables, *often, "model.rows=true"], ranks=2)["bytes_sent_per_step"]
    dense = runs.run(CONFIG, work / "dense", [*tables, *often], ranks=2)["bytes_sent_per_step"]
    runs.check(rows < dense / 2, f"rows {rows} bytes a step, dense {dense}")
    # Only rank 0 reports options that have no effect, or cost more than they save, and each of them once.
    def reports(name, words, *sets):
        runs.run(CONFIG, work / name, [*short, *sets], ranks=2)
        logs = [(work / name / "logs" / f"rank{rank}.log").read_text() for rank in (0, 1)]
        for word in words:
            runs.check([log.count(word) for log in logs] == [1, 0],
                       f"{name}: '{word}' not once in\n{logs[0]}\nor in\n{logs[1]}")
        return logs[0]
    reports("more", ["averages of whole tables would take"], "strategy.sync={what: parameters, every: 8}",
            "model.rows=true")
    runs.check("whole tables" not in (work / "rows" / "logs" / "rank0.log").read_text(),
               "warned although rows are fewer")
    reports("lazy", ["optimizer.lazy: true has no effect"], "optimizer.lazy=true")
    log = reports("swept", ["embedding.user.weight of 70000 rows stays dense"], "data.users=70000",
                  "optimizer.weight_decay=0.1")
    runs.check("optimizer.weight_decay" in log and "embedding.item" not in log, log)
    line = runs.command(CONFIG, work / "told", [*short, "strategy.sync.what=diloco", "model.rows=true"], 2)
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=120, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0 and "stay dense" in done.stdout,
               f"rows under diloco: {done.returncode}\n{done.stdout}")
    refused(work, ["strategy.sync.outer", "diloco"], "strategy.sync={what: parameters, outer: {lr: 0.5}}")
print("ranks with local updates resume, and options without meaning are refused")
