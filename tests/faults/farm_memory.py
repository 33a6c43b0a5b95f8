"""A pipeline exceeds its memory limit, by anonymous memory alone. Only it ends, within 2 s, with cause `memory`,
and is not retried. The others have the bits of runs without a farm, also one that maps far more data than its limit."""
# timeout: 150
import contextlib
import os
import pathlib
import threading
import time

import _faults
import _farm
from _faults import runs

LIMIT = 500  # MB; LibTorch takes 60, with its CUDA half 181
MAPPED = 700  # MB
# The mapping pipeline sleeps at step HELD, so that the farm samples its resources. By then it has read the whole file,
# whatever the order of its rows.
STEPS, HELD = 120, 100


def anonymous(pid):
    """Returns anonymous bytes, summed over the processes below."""
    total = 0
    for process in [pid, *runs.descendants(pid)]:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = pathlib.Path(f"/proc/{process}/statm").read_text().split()
            total += (int(fields[1]) - int(fields[2])) * 4096
    return total


class Watch(threading.Thread):
    """Records when the process tree exceeded the limit, or was last seen below it if it ended before the next sample,
    and when it ended."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.passed, self.above, self.gone = pid, None, False, None
        self.start()

    def run(self):
        while self.gone is None:
            with_children = runs.alive([self.pid, *runs.descendants(self.pid)])
            now = time.monotonic()
            if not with_children:
                self.gone = now
            elif not self.above:
                self.passed = now
                self.above = anonymous(self.pid) > LIMIT * 1000000
            time.sleep(0.02)


def write_rows(path, megabytes):
    """Writes an .npy file with rows of 64 floats, mostly zero."""
    rows = megabytes * 1000000 // 256
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 64), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        block = bytes(256 * 4096)
        for _ in range(rows // 4096):
            file.write(block)
        file.write(bytes(256 * (rows % 4096)))
    return rows


def evict(path):
    """Evicts a file from the page cache: its pages count for the next reader."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


with runs.workspace() as folder:
    rows = write_rows(folder / "rows.npy", MAPPED)
    evict(folder / "rows.npy")
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows},), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    (folder / "target.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
                                        + bytes(i & 1 for i in range(rows)))
    table = f"{{name: table, path: {folder}/rows.npy, target_path: {folder}/target.npy}}"
    farm = _farm.Farm(folder, {
        "plain": "config: {seed: 1}",
        "mapping": f"config: {{data: {table}, train: {{batch: {{global: 32768}}}}}}",
        "greedy": "retries: 3, config: {model: {name: mlp, hidden: [6000, 6000]}}",
    }, f"mapping/sleep:3s@step={HELD}", title="memory", steps=STEPS,
                      strategy=f"  memory: {LIMIT} MB\n  max_parallel: 2\n").start()
    watch = Watch(farm.wait_for_event("greedy", "started")["pid"])
    farm.wait_for_event("greedy", "failed")
    runs.wait_for(lambda: watch.gone, 10, "the end of greedy's processes")
    farm.check(watch.passed is not None and watch.gone - watch.passed <= 2,
               f"exceeded its limit at {watch.passed}, and was gone at {watch.gone}")
    summary = farm.finished(1)
    entry, own = farm.result("greedy")
    farm.check(entry["status"] == "failed" and entry["cause"] == "memory" and entry["attempts"] == 1, f"{entry}")
    farm.check(own["failure"]["cause"] == "memory" and "limit" in own["failure"]["message"], f"{own['failure']}")
    farm.check(not (farm.pipeline("greedy") / ".lock").exists(), "the lock of the one that was killed is left")
    farm.check("greedy (memory)" in summary["failure"]["message"], summary["failure"]["message"])
    for name in ("plain", "mapping"):
        farm.check(farm.result(name)[0]["status"] == "done", f"{farm.result(name)[0]}")
    farm.equals_alone("plain")
    lines = [line for line in runs.records(farm.output, "resources") if line["pipeline"] == "mapping"]
    most = max(line["mapped_bytes"] for line in lines)
    farm.check(most > MAPPED * 950000, f"of {MAPPED} MB that it reads again and again it could keep {most} bytes")
    print(f"greedy ended {watch.gone - watch.passed:.2f} s after it exceeded its limit; the others continued")
