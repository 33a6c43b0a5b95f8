"""Jobs on communicators of an MPI program: all ranks, then halves of them in reverse order."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

program = runs.BUILD / "tests" / "embedded_mpi"
if not program.exists():
    sys.exit(77)
for ranks in (1, 3):
    done = subprocess.run(["mpirun", "--bind-to", "none", "-n", str(ranks), str(program)], env=runs.environment(), timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == 0, f"{ranks} ranks: exit {done.returncode}\n{done.stdout}")
    for size in {ranks, (ranks + 1) // 2}:
        runs.check(f"rank 0 of {size}: {size} along data" in done.stdout, f"no job of {size}\n{done.stdout}")
print("jobs work on communicators of an application")
