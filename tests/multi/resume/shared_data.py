"""Four pipelines over one data set of 500 MB keep it in memory once: every process maps it, and their proportional
sizes add up to one copy."""
# timeout: 150
import array
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

ROWS, WIDTH = 1_000_000, 125  # float32: 500 MB
FARM = """\
name: shared
device: cpu
model: {{name: mlp, hidden: [4]}}
data: {{name: table, path: {folder}/rows.npy, target_path: {folder}/target.npy, evaluate: {{fraction: 0.001}}}}
optimizer: {{name: sgd, lr: 0.01}}
train: {{epochs: 100000, batch: {{global: 20000}}, evaluate_every: never, checkpoint_every: never, log_every: 10}}
strategy:
  name: independent
  cores: 1
  share: 0.25
  pipelines: [{{name: a, config: {{seed: 1}}}}, {{name: b, config: {{seed: 2}}}}, {{name: c, config: {{seed: 3}}}},
              {{name: d, config: {{seed: 4}}}}]
"""


def write_npy(path, described, shape, blocks):
    header = f"{{'descr': '{described}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        for block in blocks:
            file.write(block)


def mapping(pid, path):
    """Returns resident bytes and proportional size (Pss) of one file's mappings, and the anonymous memory of the
    process."""
    resident = share = unshared = 0
    ours = False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            ours = words[-1] == str(path)
        elif words[0] == "Rss:" and ours:
            resident += int(words[1]) * 1024
        elif words[0] == "Pss:" and ours:
            share += int(words[1]) * 1024
        elif words[0] == "Anonymous:":
            unshared += int(words[1]) * 1024
    return resident, share, unshared


with runs.workspace() as folder:
    block = array.array("f", ((i * 37 % 101) / 101 for i in range(WIDTH * 1000))).tobytes()
    write_npy(folder / "rows.npy", "<f4", (ROWS, WIDTH), (block for _ in range(ROWS // 1000)))
    write_npy(folder / "target.npy", "|u1", (ROWS,), [bytes(i & 1 for i in range(ROWS))])
    (folder / "farm.yaml").write_text(FARM.format(folder=folder))
    size = (folder / "rows.npy").stat().st_size
    output = folder / "farm"
    farm = runs.start(folder / "farm.yaml", output)
    try:
        for name in "abcd":
            runs.training(output / "pipelines" / name, 90, 2 * ROWS // 20000)  # all rows were read
        found = [mapping(pid, folder / "rows.npy") for pid in runs.named(runs.descendants(farm.pid), "convoy-rank")]
        logs = "".join(path.read_text() for path in output.glob("pipelines/*/logs/rank0.log"))
    finally:
        farm.send_signal(signal.SIGKILL)
        runs.end(farm, 30)
    runs.check(len(found) == 4, f"{len(found)} convoy-rank processes, not 4")
    for resident, _, unshared in found:
        runs.check(resident > 0.97 * size, f"{resident} of {size} bytes are mapped: {found}")
        runs.check(unshared < 0.8 * size,
                   f"{unshared} bytes are the process's own, which may include the data: {found}")
    held = sum(share for _, share, _ in found)
    runs.check(held < 1.03 * size, f"held {held / size:.2f} times: {found}")
    runs.check(logs.count("rows.npy is mapped read-only") == 4, f"the log does not say so: {logs[-2000:]}")
    print(f"four pipelines hold {size / 1e6:.0f} MB {held / size:.2f} times; their anonymous memory is "
          f"{max(own for _, _, own in found) / 1e6:.0f} MB at most")
