"""Jobs on communicators of an MPI program: all ranks, then halves of them in reverse order."""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

program = runs.BUILD / "tests" / "embedded_mpi"
if not program.exists():
    sys.exit(77)


def start(ranks, *arguments):
    return subprocess.run(["mpirun", "--bind-to", "none", "-n", str(ranks), str(program), *arguments],
                          env=runs.environment(), timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)


for ranks in (1, 3):
    done = start(ranks)
    runs.check(done.returncode == 0, f"{ranks} ranks: exit {done.returncode}\n{done.stdout}")
    for size in {ranks, (ranks + 1) // 2}:
        runs.check(f"rank 0 of {size}: {size} along data" in done.stdout, f"no job of {size}\n{done.stdout}")
# The message of an uncaught exception names its rank and step. Ranks 0 and 1 name the stalled rank for which they wait;
# the first of the two that reaches its limit may end the wait of the other.
done = start(3, "throw")
runs.check(done.returncode != 0, f"throw: exit 0\n{done.stdout}")
runs.check(re.search(r"error: rank 2 on \S+, step 2: the program broke", done.stdout),
           f"throw: not named\n{done.stdout}")
for rank in (0, 1):
    runs.check(f"rank {rank}: peer_lost: " in done.stdout and "rank 2 (training): the program broke" in done.stdout,
               f"throw: rank {rank} does not get the text of rank 2\n{done.stdout}")
runs.check(not re.search(r"error: rank [01] on", done.stdout),
           f"throw: a rank without a mistake is blamed\n{done.stdout}")
done = start(3, "hang")
for rank in (0, 1):
    runs.check(re.search(rf"rank {rank}: (hang|peer_lost): .*'Job::sum'.* for rank 2 \(step 2, "
                         r".*which has not called it", done.stdout),
               f"hang: rank {rank} does not name rank 2\n{done.stdout}")
print("jobs work on communicators of an application")
