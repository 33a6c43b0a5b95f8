"""All pairs of 6,040 users and 3,706 items by NeuMF of RecBole's size, and a top-10 file: against PyTorch"""
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import harness

USERS, ITEMS, ROWS, K = 6040, 3706, 994169, 10
# RecBole's NeuMF: factors and embeddings of 64, layers of 128 and 64. It takes 13.1 s on a GPU for MovieLens-1M.
CONFIG = f"""
name: ranking
seed: 1
device: cpu
model: {{name: ncf, gmf_dim: 64, mlp_dim: 64, hidden: [128, 64]}}
data: {{name: synthetic, kind: interactions, rows: {ROWS}, users: {USERS}, items: {ITEMS}, negatives: 4, cache: .data}}
optimizer: {{name: adam, lr: 1.0e-3}}
train: {{epochs: 1, max_steps: 400, batch: {{global: 1024}}, evaluate_every: never, resume: never}}
strategy: {{name: single}}
launch: {{ranks: 1}}
"""
LARGE = ["data.items=1000000", "data.users=20000", "data.rows=100000", "train.max_steps=5"]
LARGE_USERS = 300  # about a minute; more users take longer and no more memory
OURS, PEER = "convoy recommend", "brute force, PyTorch"


def command(*words, timeout=600, convoy=harness.CONVOY):
    line = [str(convoy), *map(str, words)]
    start = time.perf_counter()
    done = subprocess.run(line, cwd=harness.TOP, timeout=timeout, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(line)}\nended with {done.returncode}:\n"
                 f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - start, done.stdout


def trained(work, name, *sets):
    config = work / "ranking.yaml"
    config.write_text(CONFIG)
    run = work / name
    command("run", config, "--output", run, *[word for item in sets for word in ("--set", item)])
    return run


def columns():
    return harness.synthetic_interactions(ROWS + USERS, f'"items":{ITEMS},')


class Contest:
    def __init__(self, work):
        self.work, self.run = work, trained(work, "run")
        command("export", self.run, "--to", work / "weights")
        self.inside, self.peer_inside = [], []

    def recommend(self):
        seconds, text = command("recommend", self.run, "--k", K, "--to", self.work / "top.csv", "--force", "--json")
        self.inside.append(json.loads(text)["seconds"])
        return seconds

    def arguments(self):
        return ["--weights", self.work / "weights" / "model.safetensors", "--columns", columns(),
                "--users", USERS, "--k", K]

    def brute_force(self):
        start = time.perf_counter()
        measured = harness.peer("ranking.py", *self.arguments(), "--to", self.work / "peer.csv")
        self.peer_inside.append(measured["seconds"])
        return time.perf_counter() - start

    def check(self):
        return harness.peer("ranking.py", *self.arguments(), "--check", self.work / "top.csv")


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="convoy-bench-"))
    contest = Contest(work)
    contest.recommend()  # files are in memory from here on
    contest.inside.clear()
    measured = harness.interleave(options.rounds, {OURS: contest.recommend, PEER: contest.brute_force})
    harness.table(measured, PEER, "seconds, program and all")
    inside, peer_inside = contest.inside, contest.peer_inside
    harness.say(f"without start and loading: convoy {harness.spread(inside)} s, "
                f"PyTorch {harness.spread(peer_inside)} s; "
                f"{USERS * ITEMS / statistics.median(inside) / 1e6:.1f} M pairs a second")
    lists = contest.check()
    harness.say(f"{lists['lists']} lists, {lists['equal']} equal in every place to a ranking in float64, "
                f"{lists['wrong']} wrong; the others swap scores that are equal within rounding")
    large = trained(work, "large", *LARGE)
    users = work / "users.csv"
    users.write_text("user\n" + "".join(f"{user}\n" for user in range(LARGE_USERS)))
    seconds, text = command("recommend", large, "--k", K, "--users", users, "--to", work / "large.csv", "--json")
    memory = json.loads(text)["memory_growth"]
    harness.say(f"1,000,000 items, {LARGE_USERS} users: {seconds:.1f} s, "
                f"{memory / 2**20:.0f} MiB beside model and data")
    shutil.rmtree(work)
    ok = harness.check("seconds, program and all", statistics.median(measured[OURS]), 6, aim=3)
    ok &= harness.check("time ÷ brute force, without start and loading",
                          statistics.median([a / b for a, b in zip(inside, peer_inside)]), 0.7, aim=0.4)
    ok &= harness.check("time ÷ brute force, programs and all", harness.median_ratio(measured, OURS, PEER), 0.7,
                          aim=0.4)
    ok &= harness.check("wrong lists", lists["wrong"], 0)
    ok &= harness.check("MiB in addition to the model, 1 million items", memory / 2**20, 256)
    sys.exit(0 if ok else 1)
