"""Runs of the real programs, common to all script tests; standard library only."""
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CONVOY_BUILD", TOP / "build"))
CONVOY = BUILD / "convoy"
# Variables of a user who runs mpirun as root with more ranks than slots; the program itself never sets them.
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

# A shell ignores signals for a script in the background, and processes of the script would inherit that.
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.SIG_DFL)


def fail(message):
    sys.exit(f"FAILED: {message}")


def check(condition, message):
    if not condition:
        fail(message)


@contextlib.contextmanager
def workspace():
    """Creates a folder that is removed afterwards."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-test-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def command(config, output=None, sets=(), ranks=None, under=(), inject=()):
    line = [*map(str, under), str(CONVOY), "run", str(config)]
    for item in sets:
        line += ["--set", item]
    for fault in inject:
        line += ["--inject", fault]
    if ranks:
        line += ["--ranks", str(ranks)]
    if output:
        line += ["--output", str(output)]
    return line


def environment(**extra):
    return {**os.environ, **MPI, **extra}


def run(config, output=None, sets=(), ranks=None, under=(), inject=(), expect=0, timeout=120, cwd=TOP, **extra):
    """Runs to the end; returns the summary (or None) after checking the exit code."""
    line = command(config, output, sets, ranks, under, inject)
    done = subprocess.run(line, cwd=cwd, env=environment(**extra), timeout=timeout, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if expect is not None and done.returncode != expect:
        fail(f"{' '.join(line)}\nexit {done.returncode}, expected {expect}:\n{done.stdout[-4000:]}")
    return summary(output) if output else done


def refused(title, code, words, line, within=1.5, **extra):
    """Checks exit code and time limit, and that the output has each of `words`; returns the output."""
    start = time.monotonic()
    done = subprocess.run(line, cwd=TOP, env=environment(**extra), timeout=60, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    took = time.monotonic() - start
    check(done.returncode == code, f"{title}: exit {done.returncode}, expected {code}\n{done.stdout}")
    for word in words:
        check(word in done.stdout, f"{title}: no '{word}' in\n{done.stdout}")
    check(took <= within, f"{title}: reported after {took:.2f} s")
    return done.stdout


def listeners(pids):
    """Returns local addresses of TCP sockets on which these processes listen."""
    inodes = set()
    for pid in pids:
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(entry))
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1])
    return found


def start(config, output, sets=(), ranks=None, under=(), inject=(), **extra):
    """Starts and returns the process; its output goes to OUTPUT.console."""
    console = open(f"{output}.console", "w")
    line = command(config, output, sets, ranks, under, inject)
    return subprocess.Popen(line, cwd=TOP, env=environment(**extra), stdout=console, stderr=subprocess.STDOUT)


def summary(output):
    path = pathlib.Path(output) / "summary.json"
    return json.loads(path.read_text()) if path.exists() else None


def records(output, kind=None):
    lines = (pathlib.Path(output) / "metrics.jsonl").read_text().splitlines()
    all_records = [json.loads(line) for line in lines]
    return [r for r in all_records if kind is None or r["kind"] == kind]


def newest_checkpoint(output):
    folder = pathlib.Path(output) / "checkpoints"
    return folder / (folder / "latest").read_text().strip()


def weights(output):
    """Returns the hash of every safetensors file of the newest checkpoint, by name."""
    files = sorted(newest_checkpoint(output).glob("*.safetensors"))
    check(files, f"no safetensors in {newest_checkpoint(output)}")
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    fail(f"waited {seconds} s in vain: {what}")


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def descendants(pid):
    """Returns process ids below `pid`, with their command names."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        for child in parents.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def named(pids, name):
    kept = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name:
                kept.append(pid)
    return kept


def alive(pids):
    left = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                left.append(pid)
    return left


def rank_pids(process, ranks, seconds=30):
    return wait_for(lambda: (lambda p: p if len(p) == ranks else None)(named(descendants(process.pid), "convoy-rank")),
                    seconds, f"{ranks} convoy-rank processes")


def training(output, seconds=60, step=1):
    """Waits until the metrics have a step; returns nothing."""
    def reached():
        with contextlib.suppress(OSError, ValueError):
            return any(r["step"] >= step for r in records(output, "train"))
        return False
    wait_for(reached, seconds, f"step {step} of {output}")


def survives_two_kills(process, output, ranks):
    """Kills two of these rank processes at random moments. Checks that the run ends with 0; returns its console."""
    for victim in random.sample(ranks, 2):
        time.sleep(random.uniform(0, 0.3))
        os.kill(victim, signal.SIGKILL)
    code = end(process, 60)
    console = pathlib.Path(f"{output}.console").read_text()
    check(code == 0, f"{output}: exit {code}\n{console}")
    return console


def stopped_and_resumed(title, config, output, sets, whole, after):
    """Stops two ranks by TERM after step `after` and resumes them. Checks that they train as many samples as `whole`,
    the undisturbed run. Returns the checkpoint's name."""
    process = start(config, output, sets, ranks=2)
    rank_pids(process, 2)
    training(output, step=after)
    process.send_signal(signal.SIGTERM)
    code = end(process, 35)
    check(code == 143, f"{title}: exit {code} after SIGTERM, expected 143")
    at = newest_checkpoint(output).name
    again = run(config, output, sets, ranks=2)
    check(again["samples"] == whole["samples"], f"{title}: {again['samples']} samples, {whole['samples']} undisturbed")
    return at


def end(process, seconds):
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        for pid in descendants(process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        fail(f"still running after {seconds} s")
