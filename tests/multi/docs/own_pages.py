"""The files of docs/howto/own_data.md and docs/from, unchanged, on small data."""
# timeout: 300
import pathlib
import random
import re
import struct
import subprocess
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs


def blocks(page, kind):
    text = (runs.TOP / "docs" / page).read_text()
    return [block for found, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if found == kind]


def trains(page, yaml, folder, *sets):
    name = re.search(r"^name: (\S+)$", yaml, re.M)[1]
    (folder / f"{name}.yaml").write_text(yaml)
    words = [word for item in ("train.max_steps=3", *sets) for word in ("--set", item)]
    done = subprocess.run([runs.CONVOY, "run", f"{name}.yaml", *words], cwd=folder, env=runs.environment(), timeout=120,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"docs/{page}, {name}: exit {done.returncode}\n{done.stdout[-3000:]}")
    print(f"docs/{page}: {name}")
    return done.stdout


def array(path, kind, numbers, shape, letter):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() +
                     struct.pack(f"<{len(numbers)}{letter}", *numbers))


def picture(path, grey):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 50, 8, 0, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress((b"\0" + bytes([grey]) * 40) * 50)) + chunk(b"IEND", b""))


def files(folder):
    """Writes the files that the pages describe; CSV files begin with the printed lines."""
    draw = random.Random(1)
    leaves, clicks = blocks("howto/own_data.md", "csv")
    (folder / "leaves.csv").write_text(leaves + "".join(
        f"{draw.uniform(3, 9):.2f},{draw.uniform(1, 4):.2f},{draw.randint(4, 12)},{draw.choice(['birch', 'oak'])}\n"
        for _ in range(100)))
    (folder / "clicks.csv").write_text(clicks + "".join(
        f"v{visitor},p{page},{time}\n"
        for visitor in range(1, 60) for time, page in enumerate(draw.sample(range(60), 8))))
    array(folder / "x.npy", "<f4", [draw.gauss(0, 1) for _ in range(200 * 16)], (200, 16), "f")
    array(folder / "y.npy", "<i8", [row % 2 for row in range(200)], (200,), "q")
    for row in range(40):
        picture(folder / "pictures" / ("cats" if row % 2 else "dogs") / f"{row}.png", draw.randint(0, 255))
    (folder / "my.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (folder / ".data").mkdir()
    (folder / ".data" / "ml-100k.inter").write_text(
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "".join(
            f"u{user}\ti{item}\t4\t{time}\n"
            for user in range(60) for time, item in enumerate(draw.sample(range(300), 8))))


with runs.workspace() as work:
    files(work)
    data = blocks("howto/own_data.md", "yaml")
    runs.check(len(data) == 5, f"docs/howto/own_data.md has {len(data)} files")
    for yaml in data:
        trains("howto/own_data.md", yaml, work)

    (yaml,) = blocks("from/lightning.md", "yaml")
    trains("from/lightning.md", yaml, work)
    (yaml,) = blocks("from/recbole.md", "yaml")
    runs.check("hr@10" in trains("from/recbole.md", yaml, work), "docs/from/recbole.md: no HR@10")
    bagging, sweep = blocks("from/joblib.md", "yaml")
    runs.check("vote_accuracy" in trains("from/joblib.md", bagging, work), "docs/from/joblib.md: no vote")
    runs.check("4 pipelines" in trains("from/joblib.md", sweep, work), "docs/from/joblib.md: no four pipelines")
