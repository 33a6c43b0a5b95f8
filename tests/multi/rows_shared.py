"""Sparse embeddings of which the ranks of a host share one copy: the bits of separate copies, over every backend,
resumed, and on two hosts; dense Adam's values."""
# labels: multi
# timeout: 180
import hashlib
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import simulated_hosts as sim
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "ncf.yaml"
SHORT = ["model.rows=true", "train.max_steps=30", "train.checkpoint_every=10 steps", "train.evaluate_every=7 steps",
         "train.log_every=4", "train.keep_last=9", "train.checkpoint_async=true"]
APART = ["launch.host_memory=false"]
RSH = f"launch.remote_shell=[{sim.HOSTS},rsh]"


def shared_by(summary):
    return [rank.get("tables_shared_by", 1) for rank in summary["ranks"]]


def norms(folder):
    """Returns the norms of logged steps. Ranks with shared tables exchange the norm only in those."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["gradient_norm"] for line in lines
            if line["kind"] == "train" and "gradient_norm" in line}


def accumulated(work):
    """Returns norms of accumulated updates. A logged step prints the norm of the last update, which an
    earlier step may have made."""
    folder = work / "accumulated"
    runs.run(CONFIG, folder, [*SHORT, "strategy.sync.every=3", "train.max_steps=12", "backend=gloo"], ranks=2)
    runs.check(sorted(norms(folder)) == [4, 8, 12], f"accumulated: {norms(folder)}")


def same_norms(title, one, other):
    mine, theirs = norms(one), norms(other)
    runs.check(sorted(mine) == [1, 4, 8, 12, 16, 20, 24, 28, 30] and sorted(mine) == sorted(theirs),
               f"{title}: {mine} {theirs}")
    far = {step: (norm, theirs[step]) for step, norm in mine.items() if not 0 < abs(norm) or
           abs(norm / theirs[step] - 1) > 1e-5}
    runs.check(not far, f"{title}: other norms: {far}")


def same(title, one, other):
    runs.check(runs.weights(one) == runs.weights(other), f"{title}: weights differ from those of copies")


def verified(title, ranks, sets):
    words = [str(runs.CONVOY), "verify", str(CONFIG), "--ranks", str(ranks), "--steps", "9"]
    sets = ["model.rows=true", "strategy.sync.every=2", "optimizer.clip_norm=0.5", *sets]
    done = subprocess.run(words + [word for item in sets for word in ("--set", item)], cwd=runs.TOP, timeout=60,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=runs.environment())
    runs.check(done.returncode == 0 and "agree" in done.stdout, f"{title}: {done.returncode}\n{done.stdout}")


def on_hosts(title, hosts, output, sets):
    line = sim.on("nodea1",
                  *runs.command(CONFIG, output, [*SHORT, "launch.bind=none", "launch.cores_per_rank=1", RSH, *sets]),
                  "--hosts", hosts)
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=60, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"{title}: exit {done.returncode}\n{done.stdout[-3000:]}")
    return runs.summary(output)


def saves(folder):
    """Returns the hash of every file of tensors that was saved while training continued, by step."""
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
            for step in (10, 20) for path in sorted((folder / "checkpoints" / f"step-{step}").glob("*.safetensors"))}


with runs.workspace() as work:
    for number, (ranks, sets) in enumerate([(2, ["backend=gloo"]), (3, ["backend=gloo"]), (2, ["backend=mpi"]),
                                            (2, ["strategy.name=data_parallel"])]):
        shared, apart = work / f"shared{number}", work / f"apart{number}"
        summary = runs.run(CONFIG, shared, [*SHORT, *sets], ranks=ranks)
        runs.check(shared_by(summary) == [ranks] * ranks, f"{sets}: shared by {shared_by(summary)}")
        runs.check(shared_by(runs.run(CONFIG, apart, [*SHORT, *sets, *APART], ranks=ranks)) == [1] * ranks,
                   f"{sets}: not apart")
        same(f"{sets} on {ranks} ranks", shared, apart)
        # The ranks copied the shared embeddings together. Without sharing, each rank copied its embeddings.
        runs.check(len(saves(shared)) == 2 and saves(shared) == saves(apart), f"{sets} on {ranks} ranks: other saves")
        same_norms(f"{sets} on {ranks} ranks", shared, apart)
        verified(f"{sets} on {ranks} ranks", ranks, sets)

    accumulated(work)

    # A run that resumes from a checkpoint, with shared embeddings or with copies, ends with the same weights.
    for number, sets in enumerate([[], APART]):
        before, again = work / f"before{number}", work / f"again{number}"
        runs.run(CONFIG, before, [*SHORT, "train.max_steps=10", "backend=gloo"], ranks=2)
        runs.run(CONFIG, again, [*SHORT, *sets, "backend=gloo", f"train.resume={runs.newest_checkpoint(before)}"],
                 ranks=2)
        same(f"resumed {sets}", again, work / "shared0")

    with sim.hosts(2):
        two = work / "two_hosts"
        runs.check(shared_by(on_hosts("two hosts", "nodea1:2,nodea2:2", two, [])) == [2] * 4,
                   "two hosts: not by two each")
        copies = work / "two_hosts_apart"
        on_hosts("two hosts with copies", "nodea1:2,nodea2:2", copies, APART)
        same("two hosts", two, copies)
        # Copies would sum in a different order.
        uneven = on_hosts("uneven hosts", "nodea1:2,nodea2:1", work / "uneven", [])
        runs.check(shared_by(uneven) == [1] * 3, f"uneven hosts: shared by {shared_by(uneven)}")
print("shared tables equal copies")
