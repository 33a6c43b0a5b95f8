"""`convoy init`: for each kind of data it writes a file that runs, and refuses what cannot be learnt from."""
# timeout: 300
import json
import os
import pathlib
import pty
import random
import re
import select
import statistics
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

DRAW = random.Random(1)


def init(folder, *words, code=0):
    done = subprocess.run([runs.CONVOY, "init", *words], cwd=folder, env=runs.environment(), timeout=60, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == code, f"init {words}: exit {done.returncode}, expected {code}\n{done.stdout}")
    return done.stdout


def trains(folder, name, expected, *words, sets=()):
    """Runs `convoy init` and the command that it prints; returns the summary."""
    text = init(folder, *words)
    runs.check(text.rstrip().endswith(f"convoy run {name}.yaml"), f"init {words} prints no command:\n{text}")
    written = (folder / f"{name}.yaml").read_text()
    for line in expected:
        runs.check(line in written, f"{name}: no '{line}' in\n{written}")
    summary = runs.run(f"{name}.yaml", sets=sets, cwd=folder) and runs.summary(folder / "runs" / name)
    runs.check(summary["status"] == "done", f"{name}: {summary}")
    print(f"{name}: {text.splitlines()[0]}")
    return summary


def table(path, header, rows):
    path.write_text(",".join(header) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))


def array(path, kind, numbers, shape, letter):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{len(numbers)}{letter}", *numbers))


def tensors(path, entries):
    """Entries: (name, dtype, shape, letter, numbers)."""
    header, data = {}, b""
    for name, dtype, shape, letter, numbers in entries:
        bytes_ = struct.pack(f"<{len(numbers)}{letter}", *numbers)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def better_than_the_mean(folder, name, targets, summary):
    """The held-out loss must be below a tenth of the variance, which is the loss of predicting the mean."""
    loss, variance = summary["metrics"]["loss"]["last"], statistics.pvariance(targets)
    runs.check(loss < variance / 10, f"{name}: loss {loss}, variance of the target {variance}")


def answers(folder, lines):
    """Types the lines on a terminal; returns what it shows, and the exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(runs.CONVOY, [str(runs.CONVOY), "init"], runs.environment())
    shown, end = "", time.monotonic() + 60
    lines = list(lines)
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                shown += os.read(terminal, 4096).decode()
            except OSError:
                break
        if lines and shown.endswith(": "):
            os.write(terminal, (lines.pop(0) + "\n").encode())
            shown += "\n"
    return shown, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


with runs.workspace() as folder:
    points = [(DRAW.uniform(-3, 3), DRAW.gauss(5, 2)) for _ in range(400)]
    table(folder / "mine.csv", ("a", "b", "y"),
          [(f"{a:.3f}", f"{b:.3f}", f"{2 * a + b + DRAW.gauss(0, 0.1):.3f}") for a, b in points])
    summary = trains(folder, "mine", ["task: regression", "target: y", "scale: standard"], "--data", "mine.csv",
                     "--target", "y")
    runs.check(summary["metrics"]["loss"]["last"] < 1, f"the line y = 2a + b was not learnt: {summary['metrics']}")

    # Targets far from 0, or of another size than 1: (scale, shift).
    for name, scale, shift in (("thousands", 1000, 5000), ("offset", 1, 20000), ("millions", 4.0e6, 3.0e7),
                               ("small", 1.0e-4, 0)):
        targets = [shift + scale * (2 * a + b + DRAW.gauss(0, 0.1)) for a, b in points]
        table(folder / f"{name}.csv", ("a", "b", "y"),
              [(f"{a:.3f}", f"{b:.3f}", f"{y:.9g}") for (a, b), y in zip(points, targets)])
        summary = trains(folder, name, ["output_mean:", "output_deviation:"], "--data", f"{name}.csv", "--target", "y")
        better_than_the_mean(folder, name, targets, summary)
    (folder / "rows.csv").write_text((folder / "offset.csv").read_text())
    done = subprocess.run([runs.CONVOY, "predict", "runs/offset", "--data", "rows.csv", "--to", "out.csv"], cwd=folder,
                          timeout=60, env=runs.environment(), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, done.stdout)
    predicted = [float(line.split(",")[-1]) for line in (folder / "out.csv").read_text().splitlines()[1:]]
    runs.check(abs(statistics.mean(predicted) - 20005) < 5,
               f"predictions are not in the units of the target: {predicted[:5]}")

    kinds = ["birch", "oak", "elm"]
    rows = [(DRAW.gauss(kinds.index(kind), 0.2), DRAW.gauss(-kinds.index(kind), 0.2), kind)
            for kind in DRAW.choices(kinds, k=300)]
    table(folder / "leaves.csv", ("length", "width", "kind"), rows)
    summary = trains(folder, "leaves", ["task: classification"], "--data", "leaves.csv", "--target", "kind",
                     "--devices", "2")
    runs.check(summary["metrics"]["accuracy"]["last"] > 0.9 and summary["world_size"] == 2, f"{summary['metrics']}")

    rows = [(row, DRAW.choice(["red", "green", "NA"]), DRAW.choice([DRAW.gauss(0, 1), ""]), "same", f"name{row}",
             row % 2)
            for row in range(200)]
    table(folder / "my shop.csv", ("number", "colour", "size", "constant", "who", "bought: it?"), rows)
    trains(folder, "my-shop",
           ["categorical: [colour]", "missing: fill", 'target: "bought: it?"', "without constant, who"],
           "--data", "my shop.csv", "--target", "bought: it?")
    (folder / "semi.csv").write_text("1.5;2;0\n" + "".join(f"{DRAW.gauss(row % 2, 1)};{row};{row % 2}\n"
                                                           for row in range(100)))
    trains(folder, "semi", ['delimiter: ";"', "header: false"], "--data", "semi.csv", "--target", "3")

    clicks = [(user, item, at) for user in range(40) for at, item in enumerate(DRAW.sample(range(60), 8))]
    (folder / "clicks.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\n" +
                                         "".join(f"u{u}\ti{i}\t{t}\n" for u, i, t in clicks))
    trains(folder, "clicks", ["candidates: 51", "holdout: latest"], "--data", "clicks.inter", sets=["train.epochs=2"])
    # A user who has nearly all items leaves few or none to draw.
    for name, most, line in (("dense", 7, "candidates: 2"), ("denser", 9, "ranking: full")):
        few = [(user, item) for user in range(5) for item in range(most if user == 2 else 5)] + [(4, 9)]
        (folder / f"{name}.inter").write_text("user_id:token\titem_id:token\n" +
                                              "".join(f"u{u}\ti{i}\n" for u, i in few) + "u0\ti8\nu1\ti7\n")
        trains(folder, name, [line], "--data", f"{name}.inter", sets=["train.epochs=2"])
    table(folder / "ratings.csv", ("userId", "movieId"), [(u, i) for u, i, _ in clicks])
    trains(folder, "ratings", ["holdout: random", "user: userId"], "--data", "ratings.csv", sets=["train.epochs=2"])

    (folder / "story.txt").write_text(" ".join(DRAW.choice(["the", "cat", "sat", "on", "a", "mat"])
                                               for _ in range(3000)))
    trains(folder, "story", ["name: gpt", "length: 64"], "--data", "story.txt", sets=["train.max_steps=5"])

    array(folder / "x.npy", "<f4", [DRAW.gauss(0, 1) for _ in range(200 * 4)], (200, 4), "f")
    array(folder / "labels.npy", "<i8", [row % 3 for row in range(200)], (200,), "q")
    trains(folder, "x", ["target_path: labels.npy", "task: classification"], "--data", "x.npy",
           "--target", "labels.npy", sets=["train.epochs=2"])

    # Numbers: in two files, and in one file with two targets, half precision, and pictures.
    array(folder / "points.npy", "<f4", [number for point in points for number in point], (400, 2), "f")
    targets = [5000 + 3 * (2 * a + b) for a, b in points]
    array(folder / "y.npy", "<f8", targets, (400,), "d")
    summary = trains(folder, "points", ["target_path: y.npy", "task: regression", "scale: standard", "output_mean: 50"],
                     "--data", "points.npy", "--target", "y.npy")
    better_than_the_mean(folder, "points", targets, summary)
    flat = [number for point in points for number in point]
    tensors(folder / "both.safetensors", [
        ("inputs", "F32", [400, 2], "f", flat), ("y", "F32", [400], "f", targets),
        ("two", "F16", [400, 2], "e", [number for a, b in points for number in (a + b, a - b)]),
        ("kind", "I64", [400], "q", [int(a > 0) for a, _ in points]),
        ("year", "I32", [400], "i", [int(y) for y in targets]),
        ("picture", "F32", [400, 3, 4, 4], "f", [DRAW.random() for _ in range(400 * 48)]),
        ("notes", "U8", [7], "B", list(range(7)))])
    for target, expected in (("y", ["features: [picture]", "task: regression"]), ("kind", ["name: convnet"]),
                             ("year", ["name: mlp", "task: regression"]), ("two", ["task: regression"])):
        os.link(folder / "both.safetensors", folder / f"{target}.safetensors")
        trains(folder, target, [f"target: {target}", *expected], "--data", f"{target}.safetensors", "--target", target,
               sets=["train.epochs=1"])
    tensors(folder / "xy.safetensors",
            [("features", "F32", [400, 2], "f", flat), ("target", "F32", [400], "f", targets)])
    summary = trains(folder, "xy", ["features: [features]", "scale: standard"], "--data", "xy.safetensors",
                     "--target", "target")
    better_than_the_mean(folder, "xy", targets, summary)

    fashion = pathlib.Path("/usr/share/datasets/fashion-mnist")
    if fashion.is_dir():
        trains(folder, "fashion-mnist", ["name: fashion_mnist", "name: convnet"], "--data", str(fashion),
               sets=["train.max_steps=3"])
    else:
        print("skipped: no Fashion-MNIST here")

    # An existing file is kept; nothing is written after a mistake.
    kept = (folder / "mine.yaml").read_text()
    text = init(folder, "--data", "mine.csv", "--target", "a", code=73)
    runs.check("--force" in text and (folder / "mine.yaml").read_text() == kept, text)
    init(folder, "--data", "mine.csv", "--target", "a", "--force")
    runs.check("target: a" in (folder / "mine.yaml").read_text(), "--force did not replace the file")
    table(folder / "gaps.csv", ("a", "y"), [(row, "" if row == 7 else row * 1.5) for row in range(30)])
    table(folder / "equal.csv", ("a", "y"), [(row, 1) for row in range(30)])
    table(folder / "names.csv", ("a", "y"), [(row, f"n{row}") for row in range(30)])
    (folder / "ragged.csv").write_text("a,y\n1,2\n1,2,3\n")
    (folder / "empty.csv").write_text("")
    table(folder / "numbered.csv", ("", "a", "y"), [(row, row % 7, row % 7 * 2.5) for row in range(30)])
    (folder / "latin.csv").write_bytes("größe,y\n".encode("latin-1") + b"1,2\n2,4\n" * 20)
    (folder / "latin-words.csv").write_bytes("a,y\n1,süß\n2,sauer\n".encode("latin-1") * 20)
    (folder / "wide.csv").write_bytes("a,y\n1,2\n2,4\n".encode("utf-16"))
    (folder / "nul.csv").write_bytes(b"a,b,y\n" + b"1,x\x00,2\n2,z,4\n" * 20)
    (folder / "commas.csv").write_text("a;y\n" + "".join(f"{row};{row},5\n" for row in range(30)))
    table(folder / "huge.csv", ("a", "y"), [(row, row * 1e36) for row in range(30)])
    table(folder / "huger.csv", ("a", "y"), [(row * 1e299, row) for row in range(30)])
    array(folder / "nan.npy", "<f4", [1, 2, float("nan")] * 10, (30,), "f")
    array(folder / "few.npy", "<f4", [1, 2, 3], (3,), "f")
    array(folder / "complex.npy", "<c8", [1.0] * 60, (30,), "f")
    array(folder / "thirty.npy", "<f4", [1.0] * 30, (30,), "f")
    whole = (folder / "xy.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-5])
    (folder / "short.safetensors").write_bytes(whole[:5])
    (folder / "damaged.safetensors").write_bytes(whole[:8] + b"[" + whole[9:])
    before = sorted(folder.iterdir())
    for words, code, expected in (
            (["--data", "clicks.inter", "--target", "rating"], 64, ["takes no target", "which user meets which item"]),
            (["--data", "story.txt", "--target", "rating"], 64, ["takes no target", "the next letters"]),
            (["--data", "leaves.csv", "--target", "kid"], 64,
             ["did you mean kind?", "the columns are length, width, kind"]),
            (["--data", "leaves.csv"], 64, ["--target", "length, width, kind"]),
            ([], 64, ["--data"]), (["--data", "nothing.csv"], 64, ["no such file"]),
            (["--data", "mine.csv", "--target", "y", "--model", "mpl"], 64, ["did you mean mlp?"]),
            (["--data", "mine.csv", "--target", "y", "--strategy", "dpd"], 64, ["ddp"]),
            (["--data", "gaps.csv", "--target", "y"], 65, ["gaps.csv:9:", "1 of 30 rows"]),
            (["--data", "equal.csv", "--target", "y"], 78, ["the same value"]),
            (["--data", "names.csv", "--target", "y"], 78, ["30 different words"]),
            (["--data", "ragged.csv", "--target", "y"], 65, ["ragged.csv:3:"]),
            (["--data", "empty.csv", "--target", "y"], 65, ["is empty"]),
            (["--data", "numbered.csv", "--target", "y"], 65,
             ["numbered.csv:1:1: column 1 has no name", "index=False"]),
            (["--data", "latin.csv", "--target", "y"], 65, ["'gr??e' is not UTF-8", "iconv"]),
            (["--data", "latin-words.csv", "--target", "y"], 65, ["'s??' is not UTF-8", "iconv"]),
            (["--data", "wide.csv", "--target", "y"], 65, ["wide.csv: is UTF-16", "iconv -f UTF-16 -t UTF-8 wide.csv"]),
            (["--data", "nul.csv", "--target", "y"], 65, ["holds a NUL byte", "tr -d"]),
            (["--data", "commas.csv", "--target", "y"], 65, ["column y has decimal commas, as in 0,5"]),
            (["--data", "huge.csv", "--target", "y"], 65, ["too large to train on"]),
            (["--data", "huger.csv", "--target", "y"], 65, ["huger.csv:3:1: '1e+299' does not fit"]),
            (["--data", "both.safetensors"], 64, ["--target", "inputs, y, two, kind, year, picture, notes"]),
            (["--data", "both.safetensors", "--target", "knd"], 64, ["did you mean kind?"]),
            (["--data", "both.safetensors", "--target", "notes"], 78, ["no other tensor has the 7 rows of notes"]),
            (["--data", "cut.safetensors", "--target", "target"], 65, ["cut.safetensors", "outside of the file"]),
            (["--data", "short.safetensors", "--target", "target"], 65, ["too short"]),
            (["--data", "damaged.safetensors", "--target", "target"], 65, ["damaged header"]),
            (["--data", "x.npy"], 64, ["--target y.npy"]), (["--data", "x.npy", "--target", "no.npy"], 74, ["no.npy"]),
            (["--data", "x.npy", "--target", "y.npy"], 78, ["200 rows of features, and 400 of targets"]),
            (["--data", "thirty.npy", "--target", "nan.npy"], 65, ["element 2 of the targets"]),
            (["--data", "few.npy", "--target", "few.npy"], 78, ["3 rows"]),
            (["--data", "thirty.npy", "--target", "complex.npy"], 65, ["<c8"]),
            (["--data", "thirty.npy", "--target", "thirty.npy"], 78, ["the same value"]),
            (["--data", "gaps.csv", "--target", "a", "--model", "gpt"], 78, ["gpt"])):
        start = time.monotonic()
        text = init(folder, *words, code=code)
        runs.check(time.monotonic() - start < 1.5, f"init {words}: took {time.monotonic() - start:.1f} s")
        for word in expected:
            runs.check(word in text, f"init {words}: no '{word}' in\n{text}")
    runs.check(sorted(folder.iterdir()) == before, "a refused init left a file")

    shown, code = answers(folder, ["leaves.csv", "", "", "2"])
    runs.check(code == 73, f"the questions: exit {code}\n{shown}")
    (folder / "leaves.yaml").unlink()
    shown, code = answers(folder, ["leaves.csv", "", "", "2"])
    runs.check(code == 0 and "columns: length, width, kind" in shown, f"the questions: exit {code}\n{shown}")
    runs.check("launch: {ranks: 2}" in (folder / "leaves.yaml").read_text(), "an answer was ignored")
    runs.check(not re.search(r"\.tmp", " ".join(map(str, folder.iterdir()))), "a temporary file is left")
