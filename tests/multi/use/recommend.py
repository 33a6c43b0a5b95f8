"""`convoy recommend`: lists equal brute force in Python on exported weights, with ids of the file; formats,
mistakes."""
# timeout: 240
import csv
import json
import math
import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

try:
    import numpy
    import torch
    from safetensors.torch import load_file
except ImportError:
    print("skipped: this Python has no torch, no numpy or no safetensors; ./check installs them")
    sys.exit(77)

USERS, ITEMS, EACH = 90, 70, 11
random.seed(4)
interactions = []  # (user, item, time, hour, price)
for user in range(USERS):
    for place, item in enumerate(random.sample(range(ITEMS), EACH)):
        interactions.append((f"u{user}", f"item, {item}", 1000 * place + user, random.random()))
random.shuffle(interactions)
prices = {f"item, {item}": random.random() for item in range(ITEMS)}

CONFIG = """
name: lists
seed: 1
model: {{name: ncf, gmf_dim: 6, mlp_dim: 8, hidden: [16, 8]{model}}}
data:
  name: interactions
  path: {folder}/visits.csv
  columns: {{user: who, item: what, time: at, context: [hour]}}
  item_features: {{path: {folder}/items.csv, columns: [price]}}
  candidates: 20
optimizer: {{name: adam, lr: 1.0e-2}}
train: {{epochs: 3, batch: {{global: 64}}, evaluate_every: never}}
strategy: {strategy}
backend: gloo
launch: {{ranks: {ranks}}}
"""


def recommend(run, to, *words, code=0):
    line = [str(runs.CONVOY), "recommend", str(run), "--to", str(to), *map(str, words)]
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == code, f"{' '.join(line)}\nexit {done.returncode}, expected {code}:\n{done.stdout}")
    return done.stdout


def numbered(values):
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


user_number, item_number = numbered(row[0] for row in interactions), numbered(row[1] for row in interactions)


def brute_force(weights, contexts, k):
    """{user: [(item, score)]} in float64, by a forward of each pair."""
    w = {name: value.double() for name, value in weights.items()}
    features = torch.tensor([prices[item] for item in item_number], dtype=torch.float64)[:, None]
    seen = {}
    for user, item, *_ in interactions:
        seen.setdefault(user, set()).add(item_number[item])
    lists = {}
    for user, hour in contexts:
        u, i = w["user.weight"][user_number[user]], w["item.weight"]
        row = torch.cat([u[6:], torch.tensor([hour], dtype=torch.float32).double()])
        h = torch.relu(w["first_row.weight"] @ row + w["first_row.bias"] +
                       torch.cat([i[:, 6:], features.float().double()], 1) @ w["first_item.weight"].t())
        h = torch.relu(h @ w["hidden.1.weight"].t() + w["hidden.1.bias"])
        scores = (torch.cat([u[:6] * i[:, :6], h], 1) @ w["output.weight"].t() + w["output.bias"])[:, 0]
        scores[list(seen[user])] = -torch.inf
        order = torch.sort(scores, descending=True, stable=True).indices[:k].tolist()
        names = list(item_number)
        lists.setdefault(user, []).append([(names[number], float(scores[number])) for number in order])
    return lists


def compare(rows, lists, title):
    """Each list, item by item: scores as in float64, and the same items but for equal scores."""
    for user, expected in lists.items():
        got = [row for row in rows if row["who"] == user]
        want = [pair for each in expected for pair in each]
        runs.check(len(got) == len(want), f"{title}: {len(got)} items of {user}, expected {len(want)}")
        for row, (item, score) in zip(got, want):
            near = abs(float(row["score"]) - score) < 1e-5
            runs.check(near, f"{title}: {user}, rank {row['rank']}: {row}, expected {item}, {score}")
        runs.check(sum(row["what"] != item for row, (item, _) in zip(got, want)) == 0,
                   f"{title}: {got}, expected {want}")


with runs.workspace() as work:
    (work / "visits.csv").write_text("who,what,at,hour\n" +
                                     "".join(f'{u},"{i}",{t},{h}\n' for u, i, t, h in interactions))
    (work / "items.csv").write_text("what,price\n" + "".join(f'"{i}",{p}\n' for i, p in prices.items()))
    last = {}
    for user, _, at, hour in sorted(interactions, key=lambda row: row[2]):
        last[user] = hour
    order = [(user, last[user]) for user in user_number]

    # The checkpoints of one rank, two ranks and a pipeline follow the same rule.
    for name, strategy, ranks in (("single", "{name: single}", 1), ("ddp", "{name: ddp}", 2),
                                  ("pipeline", "{name: pipeline}", 2)):
        (work / "run.yaml").write_text(CONFIG.format(folder=work, strategy=strategy, ranks=ranks, model=""))
        run = work / name
        runs.run(work / "run.yaml", run)
        subprocess.run([str(runs.CONVOY), "export", str(run), "--to", str(work / f"{name}-weights")], check=True,
                       stdout=subprocess.DEVNULL)
        weights = load_file(work / f"{name}-weights" / "model.safetensors")
        recommend(run, work / f"{name}.csv", "--k", 7)
        rows = list(csv.DictReader(open(work / f"{name}.csv")))
        compare(rows, brute_force(weights, order, 7), name)
        runs.check([row["who"] for row in rows[::7]] == list(user_number), f"{name}: users are not in the file's order")

    # The other formats have the same lists.
    run = work / "single"
    weights = load_file(work / "single-weights" / "model.safetensors")
    rows = list(csv.DictReader(open(work / "single.csv")))
    recommend(run, work / "top.jsonl", "--k", 7)
    lines = [json.loads(line) for line in open(work / "top.jsonl")]
    runs.check([item for line in lines for item in line["what"]] == [row["what"] for row in rows], "jsonl: other items")
    recommend(run, work / "top.npy", "--k", 7)
    array = numpy.load(work / "top.npy")
    runs.check(array["what"].reshape(-1).tolist() == [row["what"] for row in rows], "npy: other items")
    runs.check(array["who"].tolist() == list(user_number), "npy: other users")

    # Users and their contexts from a file; one user twice.
    (work / "users.csv").write_text("hour,who\n0.25,u7\n0.75,u3\n0.5,u7\n")
    recommend(run, work / "some.csv", "--users", work / "users.csv", "--k", 4)
    compare(list(csv.DictReader(open(work / "some.csv"))),
            brute_force(weights, [("u7", 0.25), ("u3", 0.75), ("u7", 0.5)], 4), "contexts of the file")
    (work / "ids.txt").write_text("u5\n")
    text = recommend(run, work / "seen.csv", "--users", work / "ids.txt", "--k", ITEMS, "--include-seen")
    runs.check(len(open(work / "seen.csv").readlines()) == 1 + ITEMS, "--include-seen leaves items out")
    recommend(run, work / "all.csv", "--users", work / "ids.txt", "--k", ITEMS)
    runs.check(len(open(work / "all.csv").readlines()) == 1 + ITEMS - EACH, "a list has items that the user has")

    # A plugin's model without a pair scorer: the product of its embeddings; also in an ensemble of two.
    plugin = runs.BUILD / "tests" / "libplugin_scores.so"
    for name, strategy in (("product", "{name: single}"), ("members", "{name: ensemble, members: 2}")):
        text = CONFIG.format(folder=work, strategy=strategy, ranks=1, model="")
        model = next(line for line in text.splitlines() if line.startswith("model:"))
        (work / "run.yaml").write_text(text.replace(model, f"model: {{name: product, plugin: {plugin}}}"))
        runs.run(work / "run.yaml", work / name)
        recommend(work / name, work / f"{name}.csv", "--k", 5)
    members = []
    for run in (work / "product", f"{work}/members@member0", f"{work}/members@member1"):
        to = work / ("weights-" + str(run)[-1])
        subprocess.run([str(runs.CONVOY), "export", str(run), "--to", str(to)], check=True, stdout=subprocess.DEVNULL)
        tables = load_file(to / "model.safetensors")
        members.append(tables["product.user.weight"].double() @ tables["product.item.weight"].double().t())
    names, users = list(item_number), list(user_number)
    for name, scores in (("product", members[0]), ("members", (members[1] + members[2]) / 2)):
        for user, item, *_ in interactions:
            scores[user_number[user], item_number[item]] = -torch.inf
        order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :5].tolist()
        lists = {user: [[(names[i], float(scores[row, i])) for i in order[row]]] for row, user in enumerate(users)}
        compare(list(csv.DictReader(open(work / f"{name}.csv"))), lists, name)

    # Scaled contexts and features, and words as contexts: the scores equal the probabilities of `convoy predict`.
    weather = ("sun", "rain", "snow")
    (work / "prepared.csv").write_text("who,what,at,hour,weather\n" + "".join(
        f'{u},"{i}",{t},{1000 * h},{weather[t % 3]}\n' for u, i, t, h in interactions))
    text = CONFIG.format(folder=work, strategy="{name: single}", ranks=1, model="")
    text = text.replace("visits.csv", "prepared.csv").replace("context: [hour]}", "context: [hour, weather]}\n  "
                        "categorical: [weather]\n  scale: standard")
    (work / "run.yaml").write_text(text)
    runs.run(work / "run.yaml", work / "prepared")
    (work / "users.csv").write_text("weather,who,hour\nrain,u7,250\nsun,u3,750\nsnow,u7,500\n")
    recommend(work / "prepared", work / "prepared-top.csv", "--users", work / "users.csv", "--k", 4)
    rows = list(csv.DictReader(open(work / "prepared-top.csv")))
    runs.check(len(rows) == 12, f"prepared: {len(rows)} lines")
    contexts = [(250, "rain")] * 4 + [(750, "sun")] * 4 + [(500, "snow")] * 4
    with open(work / "pairs.csv", "w") as file:
        file.write("who,what,hour,weather\n")
        for row, (hour, word) in zip(rows, contexts):
            file.write(f'{row["who"]},"{row["what"]}",{hour},{word}\n')
    subprocess.run([str(runs.CONVOY), "predict", str(work / "prepared"), "--data", str(work / "pairs.csv"), "--to",
                    str(work / "pairs-out.csv")], check=True, stdout=subprocess.DEVNULL, timeout=60)
    for row, predicted in zip(rows, csv.DictReader(open(work / "pairs-out.csv")), strict=True):
        probability = 1 / (1 + math.exp(-float(row["score"])))
        near = abs(probability - float(predicted["prediction"])) < 1e-5
        runs.check(near, f"prepared: {row}, predicted {predicted}")
    (work / "users.csv").write_text("weather,who,hour\nhail,u7,250\n")
    text = recommend(work / "prepared", work / "x.csv", "--users", work / "users.csv", code=65)
    runs.check("users.csv:2:1: 'hail' is no category" in text, text)

    # Mistakes.
    run = work / "single"
    (work / "ids.txt").write_text("u5\nnobody\n")
    text = recommend(run, work / "x.csv", "--users", work / "ids.txt", code=65)
    runs.check("ids.txt:2: user 'nobody' is not among" in text, text)
    text = recommend(run, work / "x.csv", "--k", ITEMS + 1, code=64)
    runs.check(f"has {ITEMS} items" in text, text)
    text = recommend(run, work / "x.txt", code=64)
    runs.check(".csv, .jsonl, .npy" in text, text)
    before = (work / "single.csv").read_bytes()
    text = recommend(run, work / "single.csv", code=73)
    runs.check("--force" in text and (work / "single.csv").read_bytes() == before, text)
    recommend(run, work / "single.csv", "--force", "--k", 7)
    runs.check((work / "single.csv").read_bytes() == before, "two calls give different lists")
    runs.check(not [path for path in work.iterdir() if ".tmp-" in path.name], "temporary files remain")
print("lists equal brute force in float64, from checkpoints of three strategies")
