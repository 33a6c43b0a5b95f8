"""System limits end a run with a separate code and name: largest file (74), open files (74), memory and threads (71), a
cgroup's memory (71). So does a data file that is truncated while it is mapped (74)."""
import array
import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import uuid

import _faults
from _faults import runs

SINGLE = {"ranks": 1, "strategy": "{name: single}"}
WIDE = ["model.hidden=[2000]", "data.features=[500]"]  # a checkpoint of 4 MB
STRANGER = "54321"


def ended(run, code, words, kind=None):
    """Returns exit code, the text of console and summary, and the cause in the summary if there is one."""
    code_there = runs.end(run.process, 60)
    run.check(code_there == code, f"exit {code_there}, expected {code}")
    console = run.console()
    for word in words:
        run.check(word in console, f"nothing is said of '{word}'")
    summary = runs.summary(run.output)
    if kind is not None:
        run.check(summary is not None and summary["status"] == "failed" and summary["exit_code"] == code,
                  "another summary")
        run.check(summary["failure"]["cause"] == kind, f"cause {summary['failure']['cause']}, expected {kind}")
    else:
        run.check(summary is None or summary["status"] != "running", "the summary says running")
    run.clean()
    print(f"{run.title}: {console.strip().splitlines()[-1][:150]}")


def limited(*limits):
    return ["prlimit", *limits]


def file_size(folder):
    run = _faults.Run(folder, "auto", title="no file beyond 100 KB", **SINGLE)
    run.start(under=limited("--fsize=100000"))
    ended(run, 74, [str(run.output), "File too large"])
    run = _faults.Run(folder, "auto", title="no file beyond 2 MB", checkpoint="10 steps", sets=WIDE, **SINGLE)
    run.start(under=limited("--fsize=2000000"))
    ended(run, 74, [str(run.output / "checkpoints"), "File too large", "ulimit -f"], kind="io")
    for _ in range(3):  # rank 1 only learns of the failure, at the same moment
        run = _faults.Run(folder, "gloo", title="rank 0 cannot save", checkpoint="10 steps", sets=WIDE, ranks=2)
        run.start(under=limited("--fsize=2000000"))
        ended(run, 74, ["File too large"], kind="io")
        blamed = runs.summary(run.output)["failure"]["rank"]
        run.check(blamed == 0, f"rank {blamed} is blamed")
    if shutil.which("mpirun"):
        run = _faults.Run(folder, "mpi", title="no file beyond 300 KB, and MPI's own are larger", ranks=2)
        run.start(under=limited("--fsize=300000"))
        ended(run, 74, ["ulimit -f", "backend=gloo"])
        run.check(not run.output.exists(), "a refused run left its folder")
        # The ranks of an mpirun refuse too, before MPI_Init would wait for ever.
        run = _faults.Run(folder, "auto", title="no file beyond 1 MB under mpirun", ranks=2)
        run.start(under=[*limited("--fsize=1048576"), *_faults.MPIRUN])
        ended(run, 74, ["ulimit -f", "backend=gloo"])


def address_space(folder):
    # In this order, too little for a thread of convoy, LibTorch's libraries, its work before main(), and the model.
    for megabytes in (41, 300, 1500, 2500):
        run = _faults.Run(folder, "auto", title=f"{megabytes} MB of addresses", sets=["model.hidden=[20000,20000]"],
                          **SINGLE)
        run.start(under=limited(f"--as={megabytes}000000"))
        ended(run, 71, ["out of memory", "RLIMIT_AS"])
    # Too little for some part of a rank's start. The line that reports the failure names the limit.
    for kilobytes in (400000, 410000, 420000, 430000, 440000, 450000, 460000):
        run = _faults.Run(folder, "gloo", title=f"{kilobytes} KB of addresses for each of two ranks", steps=3)
        run.start(under=limited(f"--as={kilobytes * 1024}"))
        ended(run, 71, ["out of memory", "RLIMIT_AS"])
        line = next(line for line in run.console().splitlines() if "failed: " in line)
        run.check("RLIMIT_AS (`ulimit -v`) is " in line, f"no limit in '{line}'")
    # Enough for the model, too little for its first forward.
    run = _faults.Run(folder, "auto", title="a forward beyond the limit", **SINGLE,
                      sets=["model.hidden=[100000,10]", "train.batch.global=4000"])
    run.start(under=limited("--as=1200000000"))
    ended(run, 71, ["block 0 (hidden.0), forward, step 0", "out of memory"], kind="out_of_memory")


def descriptors(folder):
    run = _faults.Run(folder, "gloo", title="16 descriptors", ranks=2)
    run.start(under=limited("--nofile=16"))
    ended(run, 74, ["ulimit -n", " is 16 "])
    for most in range(13, 32):  # any descriptor may be the first that is lacking
        run = _faults.Run(folder, "gloo", title=f"{most} descriptors", ranks=2, steps=3)
        run.start(under=limited(f"--nofile={most}"))
        if runs.end(run.process, 60) != 0:
            ended(run, 74, ["ulimit -n", f" is {most} "])


def threads(folder):
    if os.geteuid() != 0:
        return print("threads: skipped, as only root can become a user without other processes")
    stranger = ["setpriv", "--reuid", STRANGER, "--regid", STRANGER, "--clear-groups"]
    if subprocess.run([*stranger, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        return print("threads: skipped, as other users may not read this machine's libraries, "
                     "maybe because of the mode of /")
    os.chmod(folder, 0o1777)
    for most in (4, 9):
        run = _faults.Run(folder, "gloo", title=f"{most} threads")
        os.chmod(run.folder, 0o1777)
        os.chmod(run.temporary, 0o1777)
        run.start(under=[*stranger, *limited(f"--nproc={most}")], HOME=str(run.folder))
        ended(run, 71, ["RLIMIT_NPROC", str(most)])


def shorter_file(folder, title, **how):
    rows, width = 4096, 64
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    data, target = folder / "rows.npy", folder / "target.npy"
    data.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() +
                     array.array("f", [0.5] * rows * width).tobytes())
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows},), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    target.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() +
                       bytes(i & 1 for i in range(rows)))
    backend = how.pop("backend", "auto")
    run = _faults.Run(folder, backend, title=f"a mapped file becomes shorter: {title}",
                      sets=[f"data={{name: table, path: {data}, target_path: {target}, evaluate: {{fraction: 0.01}}}}"],
                      **how)
    run.start()
    runs.wait_for(lambda: run.output.joinpath("metrics.jsonl").exists(), 60, "the training")
    os.truncate(data, 4096)
    ended(run, 74, [str(data), "SIGBUS"], kind="io")


def shorter_files(folder):
    shorter_file(folder, "one rank", **SINGLE)
    # Both ranks, threads of one process, meet the missing pages at the same time. One of them reports.
    jobs = []
    for name in "abc":
        own = folder / name
        own.mkdir()
        jobs.append(lambda own=own: shorter_file(own, "two threads", ranks=2, backend="local"))
    _faults.together(*jobs)
    # A truncated mapped file is not a lack of memory.
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="convoy-test-") as memory:
        shorter_file(pathlib.Path(memory), "in /dev/shm", **SINGLE)


def locked_file(folder):
    """Names another program that holds the lock for ever, and does not wait for it."""
    data = folder / "leaves.csv"
    shutil.copy(runs.TOP / "configs" / "tiny" / "leaves.csv", data)
    run = _faults.Run(folder, "auto", title="a data file that another program has locked", steps=5, **SINGLE,
                      sets=[f"data={{name: table, path: {data}, target: kind, evaluate: {{fraction: 0.2}}}}"])
    with open(data) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run.start()
        run.check(runs.end(run.process, 60) == 0, f"exit {run.process.returncode}")
    for word in (str(data), f"(process {os.getpid()})", "flock"):
        run.check(word in run.log(0), f"the log does not say '{word}'")
    print(f"{run.title}: it is named, and the run continues")


def own_memory_group():
    """Returns (folder of a new cgroup that limits memory, the file with the limit), or nothing if none can be
    created."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            if ("memory" in controllers.split(",")) != (name == "memory.limit_in_bytes"):
                continue
            group = pathlib.Path(f"{mount}{path}/convoy-test-{uuid.uuid4().hex[:8]}")
            try:
                group.mkdir()
            except OSError:
                continue
            with contextlib.suppress(OSError):
                if (group / name).exists():
                    (group / name).write_text(str(400 << 20))
                    return group
            group.rmdir()
    return None


def killed_by_kernel(folder):
    group = own_memory_group()
    if group is None:
        return print("a cgroup's memory: skipped, as no cgroup may be made here")
    try:
        run = _faults.Run(folder, "auto", title="a cgroup of 400 MB", sets=["model.hidden=[20000,20000]"], **SINGLE)
        run.start(under=["sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(group)])
        ended(run, 71, ["out of memory", "the kernel killed it", "memory of the cgroup is 400"], kind="out_of_memory")
        run.check(runs.summary(run.output)["failure"]["signal"] == 9, "the signal is not reported")
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


with runs.workspace() as folder:
    file_size(folder)
    address_space(folder)
    descriptors(folder)
    shorter_files(folder)
    locked_file(folder)
    killed_by_kernel(folder)
    threads(folder)
