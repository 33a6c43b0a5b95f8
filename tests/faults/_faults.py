"""Common code of the fault scripts: a run with faults by `--inject`, the time until it ends, and a check for
leftovers."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import struct
import sys
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

# Time limits of these tests, in seconds. That of the rendezvous is short only if the rendezvous itself fails, because a
# busy machine may start slowly. Numbers of cases in these scripts are those of the project's list of faults.
GRACE, HEARTBEAT, COLLECTIVE, RENDEZVOUS = 2, 5, 5, 10
PATIENT_RENDEZVOUS = 60
MARK = "CONVOY_FAULT_TEST"

CONFIG = """\
name: faulty
device: cpu
model: {{name: mlp, hidden: [16]}}
data: {{name: synthetic, rows: 4096, evaluate_rows: 64}}
optimizer: {{name: sgd, lr: 0.01}}
train: {{epochs: 100000, max_steps: {steps}, batch: {{global: 64}}, evaluate_every: never, \
checkpoint_every: {checkpoint},
        log_every: 1}}
strategy: {strategy}
backend: {backend}
launch:
  ranks: {ranks}
  cores_per_rank: {cores}
  bind: none
  grace: {grace}s
  failure_grace: {grace}s
  heartbeat: {heartbeat}s
  collective: {collective}s
  rendezvous: {rendezvous}s
"""


def within(under=(), limit=0):
    """Returns the seconds in which a run ends after a fault: `limit`, if a time limit has to find the fault, 1 s and
    the grace period. mpirun needs up to 2 s more to end its job, whether the user or convoy started it."""
    return limit + 1 + GRACE + (2 if under else 0)


# The command as a user types it; convoy binds cores.
MPIRUN = ["mpirun", "-n", "2", "--bind-to", "none"]


def shared_memory():
    """Returns all shared memory except Python's semaphores, which belong to no program of these tests."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in names if not name.startswith("sem.mp-")}


def mapped_by_somebody(name):
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if f"/dev/shm/{name}" in maps.read_text():
                return True
    return False


class Run:
    """One faulty run in a separate folder. All processes that it starts, also detached ones, have its mark in their
    environment."""

    def __init__(self, folder, backend, *faults, title="", rendezvous=PATIENT_RENDEZVOUS, steps=1000000,
                 strategy="{name: ddp}", ranks=2, checkpoint="never", sets=()):
        self.faults = faults
        self.title = f"{title or backend}{': ' if faults else ''}{', '.join(faults)}"
        self.folder = pathlib.Path(folder) / uuid.uuid4().hex[:8]
        self.folder.mkdir()
        self.output = self.folder / "run"
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.identity = uuid.uuid4().hex
        self.memory_before = shared_memory()
        self.sets = sets
        self.config = self.folder / "faulty.yaml"
        self.config.write_text(CONFIG.format(strategy=strategy, ranks=ranks, backend=backend, checkpoint=checkpoint,
                                             cores=1 if ranks <= len(os.sched_getaffinity(0)) else "auto", grace=GRACE,
                                             heartbeat=HEARTBEAT, collective=COLLECTIVE, rendezvous=rendezvous,
                                             steps=steps))
        self.process = None
        self.failed_at = None

    def start(self, under=(), program=None, **environment):
        self.under = under
        environment = {MARK: self.identity, "TMPDIR": str(self.temporary), **environment}
        line = runs.command(self.config, self.output, sets=self.sets, under=under, inject=self.faults)
        if program:
            line[line.index(str(runs.CONVOY))] = str(program)
        with open(self.folder / "console", "w") as console:
            self.process = runs.subprocess.Popen(line, cwd=runs.TOP, env=runs.environment(**environment),
                                                 stdout=console, stderr=runs.subprocess.STDOUT)
        return self

    def console(self):
        return (self.folder / "console").read_text(errors="replace")

    def log(self, rank):
        return (self.output / "logs" / f"rank{rank}.log").read_text(errors="replace")

    def check(self, condition, message):
        if condition:
            return
        console = self.console()[-3000:]
        summary = runs.summary(self.output) or {}
        summary = {key: summary.get(key) for key in ("status", "exit_code", "failure", "injected", "attempts")}
        runs.fail(f"{self.title}: {message}\n--- console\n{console}--- summary\n{json.dumps(summary)[:1500]}")

    def marked(self):
        """Returns the living processes of this run, with descendants of any depth."""
        found = []
        needle = f"{MARK}={self.identity}".encode()
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if needle in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return runs.alive(found)

    def ranks(self):
        """Returns process ids of the ranks in rank order, once both train."""
        def all_there():
            found = {}
            for pid in runs.named(self.marked(), "convoy-rank"):
                with contextlib.suppress(OSError):
                    for item in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                        if item.startswith(b"CONVOY_RANK="):
                            found[int(item.split(b"=")[1])] = pid
            return found if len(found) == 2 else None
        found = runs.wait_for(all_there, 60, f"{self.title}: two ranks")
        return [found[0], found[1]]

    def state(self, rank):
        """Returns (step, collective) from a rank's state file: core/rank_state/state_file.cpp has the layout."""
        data = (self.output / "logs" / f"rank{rank}.state").read_bytes()
        version, = struct.unpack_from("<I", data, 8)  # 0: being created
        step, = struct.unpack_from("<q", data, 16)
        self.check(version in (0, 3), f"the state file has layout version {version}: change this function too")
        slots, phase_words, words, busy = 8, 4, 16, 2**64 - 1
        at = 32 + 8 + slots * 8 * (1 + phase_words) + 8
        size = 8 * (1 + words)
        newest, text = 0, b""
        for slot in range(at, at + slots * size, size):
            ticket, = struct.unpack_from("<Q", data, slot)
            if newest < ticket < busy:
                newest, text = ticket, data[slot + 8:slot + size].split(b"\0")[0]
        return step, text.decode()

    def training(self, step=5):
        def reached():
            self.check(self.process.poll() is None, f"it ended before step {step}")
            with contextlib.suppress(OSError, struct.error):
                return self.state(0)[0] >= step and self.state(1)[0] >= step
        runs.wait_for(reached, 60, f"{self.title}: step {step}")

    def signal(self, pid, number):
        """Sends a signal to a process that is not a rank."""
        self.failed_at = time.time()
        os.kill(pid, number)

    def happened(self, seconds=60):
        """Waits until the last requested fault has happened; returns its time."""
        def last():
            injected = (runs.summary(self.output) or {}).get("injected") or []
            return injected[-1]["seconds"] if len(injected) == len(self.faults) else None
        # The summary is written at the end; until then only the console has the state.
        words = f"injected fault {self.faults[-1]} happens now"
        runs.wait_for(lambda: words in self.console() or last(), seconds, f"{self.title}: {words}")
        return time.time()

    def ends(self, code, within, kind=None, rank=None, signal_number=None, step=None, says=()):
        """Waits for the end; checks exit code, time, summary and leftovers. Returns the summary."""
        limit = 90 if self.failed_at is None else within + 30
        try:
            ended = self.process.wait(timeout=limit)
        except runs.subprocess.TimeoutExpired:
            self.sweep()
            self.check(False, f"still running {limit} s later")
        now = time.time()
        injected = (runs.summary(self.output) or {}).get("injected") or []
        if self.failed_at is None and injected:
            self.failed_at = injected[-1]["seconds"]
        while self.under and self.marked() and time.time() < now + 1:
            time.sleep(0.02)  # mpirun does not wait for what its processes have started
        left = self.marked()
        self.check(code is None or ended == code, f"exit {ended}, expected {code}")
        self.check(self.failed_at is not None, "the fault did not happen")
        self.check(0 <= now - self.failed_at <= within,
                   f"took {now - self.failed_at:.2f} s to end, at most {within} allowed")
        self.clean(left)
        summary = runs.summary(self.output)
        if kind is None:
            return summary
        status = "stopped" if kind == "stopped" else "failed"
        self.check(summary is not None and summary["status"] == status, f"the summary does not say {status}")
        failure = summary["failure"]
        self.check(failure["cause"] == kind, f"cause {failure['cause']}, expected {kind}")
        self.check(rank is None or failure["rank"] == rank, f"rank {failure['rank']}, expected {rank}")
        self.check((failure["signal"] or None) == signal_number,
                   f"signal {failure['signal']}, expected {signal_number}")
        self.check(step is None or failure["step"] == step, f"step {failure['step']}, expected {step}")
        for words in says:
            self.check(words in failure["message"], f"the message lacks '{words}'")
        print(f"{self.title}: exit {ended} after {now - self.failed_at:.2f} s: {failure['message'][:110]}")
        return summary

    def clean(self, left=None):
        """Checks that no process lives, and that nothing is left in shared memory, TMPDIR or of our temporary files."""
        left = self.marked() if left is None else left
        if left:
            names = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
                     for pid in left if os.path.exists(f"/proc/{pid}")]
            self.sweep()
            self.check(False, f"still alive: {names}")
        # Other runs release their segments within a moment, as do the last threads of processes that have ended.
        end = time.time() + 3
        while (new := self.segments()) and time.time() < end:
            time.sleep(0.1)
        self.check(not new, f"left in shared memory: {new}")
        files = [str(f) for f in self.temporary.rglob("*") if not f.is_dir()]
        self.check(not files, f"left in TMPDIR: {files}")
        sessions = [str(f) for f in self.temporary.glob("ompi.*/pid.*")]
        self.check(not sessions, f"Open MPI's session is left: {sessions}")
        hidden = [str(f) for f in self.output.rglob(".*") if not f.name.startswith(".lock")]
        # mpirun may kill a `convoy` that writes a file.
        self.check(self.under or not hidden, f"temporary files in the run folder: {hidden}")

    def segments(self):
        """Returns new shared-memory segments that no process holds."""
        return [name for name in shared_memory() - self.memory_before if not mapped_by_somebody(name)]

    def sweep(self):
        for pid in self.marked():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def swept(folder, run):
    """Checks that the next run of the same user removes leftovers of a killed mpirun: old ones that no process
    holds."""
    sessions = list(run.temporary.glob("ompi.*/pid.*"))
    # A process looks ended before the last of its threads has freed its memory.
    runs.wait_for(lambda: len(run.segments()) == len(shared_memory() - run.memory_before), 5, "unused segments")
    segments = run.segments()
    for name in segments:
        run.check(name.startswith("vader_segment."), f"left in shared memory: {name}")
    long_ago = time.time() - 3600
    for path in [*sessions, *(f"/dev/shm/{name}" for name in segments)]:
        os.utime(path, (long_ago, long_ago))
    after = Run(folder, "mpi", title="the run after", steps=3)
    after.start(TMPDIR=str(run.temporary))
    after.check(after.process.wait(timeout=60) == 0, "it failed")


def together(*jobs):
    """Runs several faulty runs at once, because they mostly wait. Reports the first failure when all have ended."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        for ended in [pool.submit(job) for job in jobs]:
            ended.result()
