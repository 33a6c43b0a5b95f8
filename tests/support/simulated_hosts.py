"""Simulated hosts and a small Slurm for the script tests: created for one test and always removed after it."""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import runs

SUPPORT = pathlib.Path(__file__).resolve().parent
HOSTS, SLURM = SUPPORT / "hosts", SUPPORT / "slurm"


def _up(tool, variable, count):
    """Runs a tool; on failure exits with 77, which ctest calls skipped, with the tool's reason."""
    folder = tempfile.mkdtemp(prefix="convoy-place-", dir="/tmp")  # short, because paths of sockets are short
    os.chmod(folder, 0o755)  # munge's folder is readable by all users
    os.environ[variable] = f"{folder}/at"
    done = subprocess.run([tool, "up", str(count)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120)
    if done.returncode == 77:
        print(f"skipped: {done.stdout.strip()}")
        sys.exit(77)
    runs.check(done.returncode == 0, f"{tool.name} up {count}: {done.stdout}")


@contextlib.contextmanager
def _place(tool, variable, count):
    try:
        _up(tool, variable, count)
        yield
    finally:
        subprocess.run([tool, "down"], timeout=60, check=False)
        os.rmdir(os.path.dirname(os.environ.pop(variable)))


def hosts(count):
    return _place(HOSTS, "CONVOY_HOSTS_DIR", count)


def slurm(nodes):
    return _place(SLURM, "CONVOY_SLURM_DIR", nodes)


def on(host, *words):
    """Returns the command line that runs `words` on a simulated host."""
    return [str(HOSTS), "exec", host, *map(str, words)]


def tell(verb, *words):
    subprocess.run([HOSTS, verb, *words], check=True, timeout=30)


def in_slurm(*words):
    return [str(SLURM), "exec", *map(str, words)]
