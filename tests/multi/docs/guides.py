"""Commands and files of docs/howto, docs/using.md, docs/recommenders.md, docs/farm.md and docs/data.md, as they are
written."""
# timeout: 300
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs


def blocks(page, kind):
    text = (runs.TOP / "docs" / page).read_text()
    return [block for found, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if found == kind]


def shell(page, script, folder):
    started = time.monotonic()
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=runs.environment(), timeout=120, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"docs/{page}: exit {done.returncode} of\n{script}\n{done.stdout[-3000:]}")
    print(f"docs/{page}: {time.monotonic() - started:.1f} s: {script.splitlines()[0]}", flush=True)
    return done.stdout


def trains(page, yaml, folder, *sets):
    (folder / "page.yaml").write_text(yaml)
    words = " ".join(f"--set '{item}'" for item in sets)
    return shell(page, f"build/convoy run page.yaml {words}", folder)


def interactions(path, header, line, users=400):
    """Writes twenty of 300 items for each user."""
    draw = random.Random(1)
    lines = [line(user, item, 20 * user + k)
             for user in range(users) for k, item in enumerate(draw.sample(range(300), 20))]
    path.write_text("\n".join([header, *lines]) + "\n")


def project(folder):
    """Creates a folder in which the pages' commands work as in the project, on small data."""
    folder.mkdir()
    (folder / "build").symlink_to(runs.BUILD)
    (folder / "configs").symlink_to(runs.TOP / "configs")
    (folder / ".data").mkdir()
    interactions(folder / ".data" / "ml-100k.inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float",
                 lambda user, item, time: f"u{user}\ti{item}\t4\t{time}")
    return folder


def commands(page, folder, least):
    """Runs the page's blocks of `bash` in order, unchanged."""
    found = blocks(page, "bash")
    runs.check(len(found) >= least, f"docs/{page}: only {len(found)} blocks of bash")
    for script in found:
        shell(page, script, folder)
    for summary in (folder / "runs").glob("*/summary.json"):
        runs.check(json.loads(summary.read_text())["status"] == "done", f"docs/{page}: {summary}")


def recommender(folder):
    script, lists = blocks("recommenders.md", "python")
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)
    page = [block for block in blocks("recommenders.md", "yaml") if block.startswith("name: ")]
    runs.check(len(page) == 1, f"docs/recommenders.md has {len(page)} complete files")
    said = trains("recommenders.md", page[0], folder, "train.epochs=1")
    runs.check("hr@10" in said and "ndcg@10" in said, f"docs/recommenders.md: no HR@10 and NDCG@10 in\n{said}")
    shell("recommenders.md", "build/convoy recommend runs/visits --k 10 --to top.npy", folder)
    shown = subprocess.run([sys.executable, "-c", lists], cwd=folder, check=True, capture_output=True, text=True).stdout
    runs.check(re.match(r"v\d+ \['p\d+'( 'p\d+')+\] \[", shown), f"docs/recommenders.md: the lists are {shown}")


def farms(folder):
    first, pipeline, grid, search, halving, loop = blocks("farm.md", "yaml")
    said = trains("farm.md", first, folder, "train.max_steps=3")
    runs.check("convoy: 3 pipelines" in said, said)
    common = first.split("strategy:")[0]
    said = trains("farm.md", common + "model: {name: mlp, hidden: [8]}\n" + grid, folder, "train.max_steps=3",
                  "strategy.grid.seed=[1]", "name=grid")
    runs.check("convoy: 4 pipelines" in said, said)
    said = trains("farm.md", common + "model: {name: mlp, hidden: [8]}\n" + search + halving, folder, "train.epochs=2",
                  "strategy.search.random=4", "strategy.grid.seed=[1]", "name=search")
    runs.check("convoy: 4 pipelines" in said and "lost: rung 1" in said, said)
    (folder / "ncf_ddp.yaml").write_text((runs.TOP / "configs" / "ncf_ddp.yaml").read_text())
    said = trains("farm.md", common + "strategy:\n  name: independent\n  pipelines:\n" + pipeline, folder, "name=file")
    runs.check("convoy: 1 pipeline" in said, said)
    trains("farm.md", loop, folder, "device=cpu", "strategy.gpus=0", "strategy.cores=1", "strategy.grid.seed=[0]",
           "strategy.grid.optimizer.lr=[1.0e-3]", "train.max_steps=2", "model.channels=[1]", "name=loop")

    sweep, search = blocks("howto/sweep.md", "yaml")
    trains("howto/sweep.md", sweep, folder, "strategy.grid.seed=[1]", "train.max_steps=2")
    said = shell("howto/sweep.md", "build/convoy add runs/sweep --set strategy.grid.seed=[3]", folder)
    runs.check("4 pipelines added to runs/sweep" in said, said)
    said = trains("howto/sweep.md", sweep[:sweep.index("  names:")] + "  metric: accuracy\n" + search, folder,
                  "strategy.search.random=3", "data.rows=1000", "name=searched")
    runs.check("convoy: 3 pipelines" in said and "lost: rung 1" in said, said)


def arrays(folder, rows=64):
    """Writes x.npy, y.npy and all.safetensors: three features and their sum."""
    x = [float((row * k) % 7) for row in range(rows) for k in (1, 2, 3)]
    y = [sum(x[3 * row:3 * row + 3]) for row in range(rows)]
    for name, values, shape in (("x", x, f"({rows}, 3)"), ("y", y, f"({rows},)")):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        header += " " * (-(len(header) + 11) % 64) + "\n"
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
        (folder / f"{name}.npy").write_bytes(content + struct.pack(f"<{len(values)}f", *values))
    described = json.dumps({"x": {"dtype": "F32", "shape": [rows, 3], "data_offsets": [0, 12 * rows]},
                            "y": {"dtype": "F32", "shape": [rows], "data_offsets": [12 * rows, 16 * rows]}}).encode()
    described += b" " * (-len(described) % 8)
    (folder / "all.safetensors").write_bytes(struct.pack("<Q", len(described)) + described +
                                             struct.pack(f"<{4 * rows}f", *x, *y))


def tokens(folder, count=5000):
    """Writes tokens.npy, tokens.bin and a tokenizer with a token for each byte and one merge."""
    numbers = struct.pack(f"<{count}H", *(token * token % 251 for token in range(count)))
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({count},), }}".ljust(117) + "\n"
    (folder / "tokens.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                                        numbers)
    (folder / "tokens.bin").write_bytes(numbers)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable] + [chr(256 + more) for more in range(256 - len(printable))]
    model = {"type": "BPE", "vocab": {token: number for number, token in enumerate([*letters, "th"])},
             "merges": ["t h"]}
    (folder / "gpt2").mkdir()
    (folder / "gpt2" / "tokenizer.json").write_text(json.dumps(
        {"model": model, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}))


def data_sets(folder):
    arrays(folder)
    tokens(folder)
    lines = [f"{30 + row % 170}.5,{1 + row % 7},{row % 80}.0,{row % 3},{400 + row % 300}.25" for row in range(200)]
    (folder / "houses.csv").write_text("area,rooms,age,heating,price\n" + "\n".join(lines) + "\n")
    (folder / "story.txt").write_text("Once upon a time there was a rank that waited. " * 200)
    whole, *parts = blocks("data.md", "yaml")
    trains("data.md", whole, folder, "train.max_steps=2")
    head, tail = re.match(r"(.*?)data: .*?\n(optimizer: .*)", whole, re.S).groups()
    models = {"text": "{name: gpt, layers: 1, heads: 2, dim: 8}", "interactions": "{name: ncf}"}
    ran = 0
    for part in parts:
        name = re.search(r"name: (\w+)", part).group(1)
        if name in ("images", "fashion_mnist"):  # tests/multi/data_files.py and launch/modes.py train on these
            continue
        ran += 1
        model = models.get(name, "{name: mlp, hidden: [8]}")
        yaml = re.sub(r"model: .*", f"model: {model}", head) + part + tail
        trains("data.md", yaml, folder, "train.max_steps=2", "train.batch.global=8", "strategy.name=single",
               "launch.ranks=1")
    runs.check(ran == 9, f"docs/data.md: {ran} data sets ran")


def trained_runs(folder):
    """The runs that docs/using.md uses: a recommender, two of them with other rates, and more epochs of the first."""
    (folder / "using.yaml").write_text((runs.TOP / "configs" / "ncf_ddp.yaml").read_text())
    for name, rate in (("ncf-ddp", 1e-3), ("ncf-a", 1e-3), ("ncf-b", 3e-3)):
        shell("using.md", f"build/convoy run using.yaml --set train.max_steps=20 --set optimizer.lr={rate} "
                          f"--output runs/{name}", folder)


with runs.workspace() as work:
    used = project(work / "used")
    trained_runs(used)
    commands("using.md", used, 3)
    commands("howto/launch.md", project(work / "launch"), 6)
    commands("howto/python.md", project(work / "python"), 3)
    resumed = project(work / "resume")
    commands("howto/resume.md", resumed, 4)
    trial = runs.summary(resumed / "runs" / "trial")
    runs.check(len(trial["attempts"]) == 1 and trial["status"] == "done", f"docs/howto/resume.md: {trial['attempts']}")
    for page in ("howto/hangs.md", "howto/monitor.md"):
        commands(page, resumed, 1)
    folder = project(work / "files")
    recommender(folder)
    farms(folder)
    data_sets(folder)
