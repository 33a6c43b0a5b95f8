"""A run resumes with the ids and classes of its checkpoint: other data is refused, or trained with the checkpoint's
numbers if data.changed is allow. Hosts with other data than rank 0's are refused."""
import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import checkpoints
import runs

RECOMMENDER = """
name: visits
device: cpu
model: {name: ncf, gmf_dim: 8, mlp_dim: 8, hidden: [16, 8]}
data: {name: interactions, path: visits.csv, columns: {user: who, item: what}, holdout: random, negatives: 4, \
candidates: 20}
optimizer: {name: adam, lr: 1.0e-2}
train: {epochs: 12, batch: {global: 64}, evaluate_every: 12 epochs, checkpoint_every: 4 epochs}
strategy: {name: ddp}
launch: {ranks: 2, cores_per_rank: 1}
"""
TABLE = """
name: kinds
device: cpu
model: {name: mlp, hidden: [16]}
data: {name: table, path: kinds.csv, target: kind, evaluate: {fraction: 0.2}}
optimizer: {name: adam, lr: 3.0e-2}
train: {epochs: 10, batch: {global: 32}, evaluate_every: 10 epochs, checkpoint_every: 10 epochs}
strategy: {name: single}
"""


def write_visits(path, rows):
    path.write_text("who,what\n" + "".join(f"{who},{what}\n" for who, what in rows))


def names(checkpoint, which):
    """Reads a stored list without convoy."""
    stored = checkpoints.parts((checkpoint / "data.safetensors").read_bytes())
    text, ends = stored[f"{which}.bytes"][1], stored[f"{which}.ends"][1]
    places = [0] + [int.from_bytes(ends[i:i + 8], "little") for i in range(0, len(ends), 8)]
    return [text[a:b].decode() for a, b in zip(places, places[1:])]


def refused(title, code, line, *words):
    done = subprocess.run(line, cwd=line_folder, env=runs.environment(), timeout=60, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == code, f"{title}: exit {done.returncode}, expected {code}\n{done.stdout[-3000:]}")
    for word in words:
        runs.check(word in done.stdout, f"{title}: no '{word}' in\n{done.stdout[-3000:]}")
    return done.stdout


def hit_ratio(summary):
    return summary["metrics"]["hr@10"]["last"]


random.seed(3)
# Each user takes items of one of four kinds.
VISITS = [(f"u{who}", f"i{what}") for who in range(60) for what in range(48) if what % 4 == who % 4]
random.shuffle(VISITS)

with runs.workspace() as folder:
    line_folder = folder
    config, visits = folder / "visits.yaml", folder / "visits.csv"
    config.write_text(RECOMMENDER)
    write_visits(visits, VISITS)
    first = runs.run(config, folder / "first", cwd=folder)
    runs.check(hit_ratio(first) > 0.7, f"nothing was learnt: {first['metrics']}")
    users = names(runs.newest_checkpoint(folder / "first"), "users")
    runs.check(users == list(dict.fromkeys(who for who, _ in VISITS)),
               f"users are not by first appearance: {users[:5]}")

    # The same rows in a different order give every user and item a different number.
    shuffled = random.sample(VISITS, len(VISITS))
    write_visits(visits, shuffled)
    more = ["train.epochs=13", "train.evaluate_every=1 epoch", f"train.resume={folder / 'first'}"]
    refused("shuffled rows", 78, runs.command(config, folder / "refused", more), "visits.yaml:5:",
            "data.path: is not the data", "the users come in another order", "--set data.changed=allow")
    runs.check(not (folder / "refused").exists(), "a refused resume leaves its folder")
    again = runs.run(config, folder / "allowed", [*more, "data.changed=allow"], cwd=folder)
    runs.check(hit_ratio(again) > hit_ratio(first) - 0.1, f"HR@10 {hit_ratio(again)} after {hit_ratio(first)}")
    runs.check(names(runs.newest_checkpoint(folder / "allowed"), "users") == users, "the users have new numbers")
    # The checkpoint of that run has the new data, so a resume from it needs no data.changed.
    more[-1] = f"train.resume={folder / 'allowed'}"
    more[0] = "train.epochs=14"
    again = runs.run(config, folder / "equal", more, cwd=folder)
    runs.check(hit_ratio(again) > hit_ratio(first) - 0.1, f"HR@10 {hit_ratio(again)} with the same data again")

    write_visits(visits, [*shuffled[:300], ("u17", "i48")])
    refused("a new item", 78, runs.command(config, folder / "refused", [*more, "data.changed=allow"]),
            "item 'i48' is new, and not in the checkpoint", "give data that the checkpoint knows")

    # A killed run resumes by itself, except if its data has changed.
    write_visits(visits, VISITS)
    runs.run(config, folder / "killed", inject=["kill:rank=1@step=50"], expect=137, cwd=folder)
    write_visits(visits, shuffled[1:])
    refused("a killed run", 73, runs.command(config, folder / "killed"), "data.path: is not the data",
            f"{len(VISITS) - 1} rows, {len(VISITS)} in the checkpoint", "--set data.changed=allow", "another --output")
    write_visits(folder / "moved.csv", VISITS)
    runs.run(config, folder / "killed", ["data.path=moved.csv"], cwd=folder)
    runs.check(runs.weights(folder / "killed") == runs.weights(folder / "first"),
               "other weights with the same data under another path")

    # On another host the file may differ.
    for name, rows in {"here": VISITS, "there": shuffled}.items():
        (folder / name).mkdir()
        write_visits(folder / name / "visits.csv", rows)
    alone = config.with_name("hosts.yaml")
    alone.write_text(RECOMMENDER.replace("launch: {ranks: 2, cores_per_rank: 1}", ""))
    line = runs.command(alone, folder / "hosts")
    refused("data of another host", 76,
            ["mpirun", "-n", "1", "-wdir", str(folder / "here"), *line, ":", "-n", "1", "-wdir", str(folder / "there"),
             *line],
            "data.path: differs on host", "from what rank 0 reads")

    config, kinds = folder / "kinds.yaml", folder / "kinds.csv"
    config.write_text(TABLE)
    rows = [(random.gauss(3 * (kind == "cat"), 0.3), random.gauss(3 * (kind == "dog"), 0.3), kind)
            for kind in random.choices(["cat", "dog", "owl"], k=300)]
    kinds.write_text("x,y,kind\n" + "".join(f"{x},{y},{kind}\n" for x, y, kind in rows))
    first = runs.run(config, folder / "kinds", cwd=folder)
    runs.check(first["metrics"]["accuracy"]["last"] > 0.9, f"nothing was learnt: {first['metrics']}")
    more = ["train.epochs=11", "train.evaluate_every=1 epoch", f"train.resume={folder / 'kinds'}", "data.changed=allow"]
    kinds.write_text("x,y,kind\n" + "".join(f"{x},{y},{kind.replace('cat', 'yak')}\n" for x, y, kind in rows))
    refused("a renamed class", 78, runs.command(config, folder / "renamed", more), "class 'yak' is new",
            "class 'cat' is missing")
    kinds.write_text("kind,y,x\n" + "".join(f"{kind},{y},{x}\n" for x, y, kind in rows if kind != "cat"))
    again = runs.run(config, folder / "turned", more, cwd=folder)
    runs.check(again["metrics"]["accuracy"]["last"] > 0.9, f"columns in another order: {again['metrics']}")
    told = (folder / "turned" / "logs" / "rank0.log").read_text()
    left = sum(kind != "cat" for _, _, kind in rows)
    runs.check(f"data: 300 rows -> {left} rows: other rows are held out for evaluation now" in told, told)
print("other data is refused by name, or trained with the checkpoint's numbers")
