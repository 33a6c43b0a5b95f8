"""Training on files: text by a vocabulary, a folder of images, visits with features; a damaged file is named."""
import math
import pathlib
import random
import struct
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

GPT = """
name: words
device: cpu
model: {{name: gpt, layers: 1, heads: 2, dim: 16, positions: rotary, attention_dropout: 0.1}}
data: {{name: text, path: {folder}/story.txt, vocabulary: {folder}/words.json, unknown: "?", length: 8}}
optimizer: {{name: adamw, lr: 3.0e-2}}
train: {{epochs: 4, batch: {{global: 16}}, evaluate_every: 4 epochs, checkpoint_every: never}}
strategy: {{name: ddp}}
launch: {{ranks: 2, cores_per_rank: 1}}
"""
CONVNET = """
name: colours
device: cpu
model: {{name: convnet, channels: [4, 6], hidden: 8}}
data: {{name: images, path: {folder}/colours, height: 16, width: 16, evaluate: {{fraction: 0.2}}}}
optimizer: {{name: adam, lr: 1.0e-2}}
train: {{epochs: 4, batch: {{global: 24}}, evaluate_every: 4 epochs, checkpoint_every: never}}
strategy: {{name: ddp}}
launch: {{ranks: 2, cores_per_rank: 1}}
"""
NCF = """
name: places
device: cpu
model: {{name: ncf, gmf_dim: 0, mlp_dim: 4, hidden: [32, 16]}}
data:
  name: interactions
  path: {folder}/visits.csv
  columns: {{user: visitor, item: page, time: at, user_features: [east, north]}}
  item_features: {{path: {folder}/pages.csv}}
optimizer: {{name: adam, lr: 1.0e-2}}
train: {{epochs: 1, batch: {{global: 64}}, checkpoint_every: never}}  # later epochs also train ids that are \
negatives only
strategy: {{name: ddp}}
launch: {{ranks: 2, cores_per_rank: 1}}
"""


def visits(folder, visitors=300):
    """Writes visitors and pages on a circle; each page gets two visits, by visitors near it. A visitor's last visit is
    to a page without earlier visits, so the page's id carries no information."""
    def place(angle):
        return f"{math.cos(angle):.4f},{math.sin(angle):.4f}"
    def near(angle):
        return angle + random.uniform(-0.3, 0.3)
    at = [2 * math.pi * visitor / visitors for visitor in range(visitors)]
    pages, lines = [], ["visitor,page,at,east,north,page_east,page_north"]

    def visit(visitor, time):
        when = time + random.random()
        lines.append(f"v{visitor},p{len(pages) - 1},{when:.6f},{place(at[visitor])},{place(pages[-1])}")
    for _ in range(2 * visitors):
        pages.append(random.uniform(0, 2 * math.pi))
        for _ in range(2):
            visit(round(near(pages[-1]) / (2 * math.pi) * visitors) % visitors, 0)
    for visitor in range(0, visitors, 2):
        pages.append(near(at[visitor]))
        visit(visitor, 1)
        visit(visitor + 1, 1)
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    pages += [0] * 20  # that no user visits
    order = random.sample(range(len(pages)), len(pages))
    (folder / "pages.csv").write_text("page,x,y\n" + "".join(f"p{page},{place(pages[page])}\n" for page in order))


def png(path, colour):
    """Returns an image of random size with noise around one colour."""
    width, height = random.randint(12, 40), random.randint(12, 40)
    rows = [bytes([0] + [min(255, max(0, value + random.randint(-60, 60))) for _ in range(width) for value in colour])
            for _ in range(height)]

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b""))


random.seed(1)
with runs.workspace() as folder:
    (folder / "story.txt").write_text("the cat sat on the mat & " * 200)
    (folder / "words.json").write_text('["the ", "cat ", "sat ", "on ", "mat ", " ", "?"]')
    (folder / "gpt.yaml").write_text(GPT.format(folder=folder))
    done = runs.run(folder / "gpt.yaml", folder / "gpt", ["train.checkpoint_every=4 epochs"])
    # 200 stories of eight tokens give 199 sequences of eight tokens, because each sequence needs one more token as the
    # last target. A tenth of the sequences is for evaluation.
    runs.check(done["samples"] == 4 * 179 and done["tokens"] == 8 * done["samples"],
               f"{done['samples']} sequences with {done['tokens']} tokens")
    runs.check(done["metrics"]["loss"]["last"] < 0.5, f"the story was not learnt: {done['metrics']}")
    runs.check((folder / "story.txt.cache.safetensors").exists(), "no cache next to the text")
    runs.run(folder / "gpt.yaml", folder / "refused", ["model.heads=3"], expect=78)
    # Mistakes that only a rank can find are reported at the key too: tokens are fewer than bytes.
    failed = runs.run(folder / "gpt.yaml", folder / "long", ["data.length=2000"], expect=65)
    runs.check("--set data.length=2000: data.length: " in failed["failure"]["message"], failed["failure"])
    # Another text, and the tokens in a different order, with the numbers of the checkpoint; a new token has none.
    (folder / "story.txt").write_text("the cat sat on the mat & " * 180)
    on = [f"train.resume={folder / 'gpt'}", "train.epochs=5", "train.evaluate_every=1 epoch"]
    runs.refused("another text", 78, ["is not the data that"],
                 runs.command(folder / "gpt.yaml", folder / "other-text", on), within=30)
    (folder / "words.json").write_text('["mat ", "sat ", "on ", "cat ", "the ", " ", "?"]')
    done = runs.run(folder / "gpt.yaml", folder / "allowed-text", [*on, "data.changed=allow"])
    runs.check(done["metrics"]["loss"]["last"] < 0.5, f"tokens have other numbers: {done['metrics']}")
    (folder / "words.json").write_text('["the ", "cat ", "sat ", "on ", "mat ", " ", "?", "mats"]')
    runs.refused("a new token", 78, ["token 'mats' is new"],
                 runs.command(folder / "gpt.yaml", folder / "new-token", [*on, "data.changed=allow"]), within=30)
    (folder / "words.json").write_text('["the ", "cat "')
    runs.refused("damaged tokens", 78, ["gpt.yaml:5:", "data.vocabulary: ", "words.json:1:16: is not JSON"],
                 runs.command(folder / "gpt.yaml", folder / "damaged"))
    runs.check(not (folder / "damaged").exists(), "a folder was made although nothing started")
    # Both ranks find this mistake, far into the file. Besides the failure, at most one rank's line about it is printed.
    (folder / "words.json").write_text('["the ", "cat ", "sat ", "on ", "mat ", " ", "?"]')
    (folder / "story.txt").write_text("the cat sat on the mat " * 60000 + "!")
    text = runs.refused("an unknown byte", 65, ["failed: "],
                        runs.command(folder / "gpt.yaml", folder / "again", ["data.unknown=~"]), within=30)
    runs.check(text.count("begins no token") < 3, f"reported for each rank:\n{text}")

    for name, colour in {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}.items():
        for number in range(40):
            png(folder / "colours" / name / f"{number}.png", colour)
    (folder / "convnet.yaml").write_text(CONVNET.format(folder=folder))
    done = runs.run(folder / "convnet.yaml", folder / "convnet", ["train.checkpoint_every=4 epochs"])
    runs.check(done["samples"] == 4 * 96 and done["tokens"] is None, f"{done['samples']} images")
    runs.check(done["metrics"]["accuracy"]["last"] > 0.9, f"colours were not learnt: {done['metrics']}")
    (folder / "colours" / "red").rename(folder / "colours" / "amber")  # a different number for every class
    on = [f"train.resume={folder / 'convnet'}", "train.epochs=5", "train.evaluate_every=1 epoch"]
    runs.refused("a renamed class", 78,
                 ["convnet.yaml:5:", "data.path: ", "class 'amber' is new, and not in the checkpoint",
                  "'red' is missing"],
                 runs.command(folder / "convnet.yaml", folder / "renamed", on), within=30)
    runs.run(folder / "convnet.yaml", folder / "still-renamed", [*on, "data.changed=allow"], expect=78)
    # Blue is the first class by name. Without it, red and green keep their numbers of the checkpoint.
    (folder / "colours" / "amber").rename(folder / "colours" / "red")
    (folder / "colours" / "blue").rename(folder / "blue")
    runs.refused("a missing class", 78, ["class 'blue' is missing"],
                 runs.command(folder / "convnet.yaml", folder / "two-colours", on), within=30)
    done = runs.run(folder / "convnet.yaml", folder / "two-allowed", [*on, "data.changed=allow"])
    runs.check(done["metrics"]["accuracy"]["last"] > 0.9, f"classes have other numbers: {done['metrics']}")
    (folder / "blue").rename(folder / "colours" / "blue")
    broken = folder / "colours" / "red" / "7.png"
    broken.write_bytes(broken.read_bytes()[:-100])
    failed = runs.run(folder / "convnet.yaml", folder / "broken", expect=65)
    for words in ("convnet.yaml:5:", "data.path: ", "red/7.png: "):
        runs.check(words in failed["failure"]["message"], failed["failure"])

    # Visits depend on the features of a page only. As context columns, these features are equal for a positive and its
    # negatives, and a warning reports that.
    visits(folder)
    (folder / "ncf.yaml").write_text(NCF.format(folder=folder))
    hits = runs.run(folder / "ncf.yaml", folder / "features")["metrics"]["hr@10"]["last"]
    shared = runs.run(folder / "ncf.yaml", folder / "context",
                      ["data.item_features=~", "data.columns.context=[page_east, page_north]"])
    runs.check(hits > 0.6 and shared["metrics"]["hr@10"]["last"] < 0.2,
               f"HR@10 {hits} by features, {shared['metrics']['hr@10']} by context")
    log = (folder / "context" / "logs" / "rank0.log").read_text()
    runs.check("'page_east' of" in log and "list it under data.columns.item_features" in log, log)
    runs.check("one value per" not in (folder / "features" / "logs" / "rank0.log").read_text(), "warned of features")
    for key, code, words in (("data.columns.item=pages", 78, "no column 'pages'"),
                             ("data.columns.context=[visitor]", 65, "is not a number")):
        text = runs.refused(words, code, [key.split("=")[0], words],
                            runs.command(folder / "ncf.yaml", folder / "columns", [key]))
        runs.check("placement" not in text and text.count(words) == 1, f"found before any rank starts:\n{text}")
    (folder / "pages.csv").write_text((folder / "pages.csv").read_text().replace("p7,", "p7x,"))
    failed = runs.run(folder / "ncf.yaml", folder / "absent", expect=65)
    runs.check("pages.csv: has no x, y for item 'p7'; " in failed["failure"]["message"], failed["failure"])
    # The message names the option to blame before the one that it advises.
    (folder / "visits.csv").write_text("user,item,price\n" + "".join(
        f"u{u},i{i},{i + (u == 38 and i == 3)}\n" for u in range(40) for i in range(u % 5, 20)))
    failed = runs.run(folder / "ncf.yaml", folder / "prices", [
        f"data.path={folder}/visits.csv", "data.item_features=~",
        "data.holdout=random",
        "data.columns={user: user, item: item, item_features: [price]}"], expect=65)
    told = failed["failure"]["message"]
    runs.check("data.columns.item_features: " in told.split("differs from an earlier line")[0], told)
    runs.check("data.columns.context: " not in told, told)
    print("text and images: trained, and damage is named:", failed["failure"]["message"])
