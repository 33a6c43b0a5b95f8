"""A rank dies between joining and connecting, or never finishes that; a port that is taken, and two
jobs on one port, which never connect."""
import os
import socket
import sys
import time

import _faults
from _faults import runs

WITHIN = _faults.RENDEZVOUS + 1


def dies_connecting(folder, backend, rank, under=()):
    run = _faults.Run(folder, backend, f"kill:rank={rank}@join", rendezvous=_faults.RENDEZVOUS,
                      title=f"{'mpirun, ' if under else ''}{backend}")
    run.start(under=under)
    run.ends(None if under else 75, within=_faults.within(under, _faults.RENDEZVOUS - 2), kind="rendezvous", rank=rank,
             says=[f"rank {rank}", "signal 9", "between joining"])


def port_taken(folder, backend):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = _faults.Run(folder, backend, rendezvous=_faults.RENDEZVOUS, sets=[f"launch.port={port}"],
                          title=f"{backend}: port taken")
        run.failed_at = time.time()
        run.start().ends(75, within=WITHIN, kind="rendezvous", says=[str(port)])


def never_meets(folder):
    """No other rank waits for it, so its supervisor has to notice."""
    run = _faults.Run(folder, "gloo", "loop:rank=0@join", ranks=1, strategy="{name: single}",
                      rendezvous=_faults.RENDEZVOUS / 2, title="set-up without end")
    run.start()
    run.ends(75, within=_faults.within(limit=_faults.RENDEZVOUS / 2 + 1), kind="rendezvous", rank=0,
             says=["rank 0 has been rendezvous", "before its first step", "--set launch.rendezvous="])


def never_meets_others(folder, backend, rank):
    """MPI_Init has no time limit, so there the supervisor finds the rank."""
    run = _faults.Run(folder, backend, f"loop:rank={rank}@join", rendezvous=_faults.RENDEZVOUS / 2,
                      title=f"{backend}: the others wait")
    run.start()
    says = ([f"rank {rank} has not joined within", f"logs/rank{rank}.log"] if backend == "gloo" else
            [f"rank {rank} has been"])
    run.ends(75, within=_faults.within(limit=_faults.RENDEZVOUS / 2 + 1), kind="rendezvous", rank=rank,
             says=[*says, "launch.rendezvous"])


def environment(job, rank):
    return {"CONVOY_RANK": str(rank), "CONVOY_WORLD_SIZE": "2", "CONVOY_LOCAL_RANK": str(rank), "CONVOY_JOB": job}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


# Job A waits for its rank 1 on a port; job B uses the same port, with both of its ranks. B is refused, A completes.
def two_jobs(folder):
    port = free_port()
    a, b = (_faults.Run(folder, "gloo", steps=30, sets=[f"launch.port={port}", "launch.address=127.0.0.1"],
                        rendezvous=60 if job == "a" else _faults.RENDEZVOUS, title=f"two jobs on a port: {job}")
            for job in "ab")
    a.start(**environment("a", 0))
    (file,) = runs.wait_for(lambda: list(a.output.glob(".rendezvous-a")), 30, "job a's rendezvous file")
    # A rank of B gets the address of A's server: host, port, job, secret.
    host, at, job, secret = file.read_text().strip().split(",")
    a.check(int(at) == port and job == "a", f"the rendezvous file: {host}, {at}, {job}")
    b.output.mkdir()
    forged = b.output / ".rendezvous-b"
    with open(os.open(forged, os.O_WRONLY | os.O_CREAT, 0o600), "w") as out:
        out.write(",".join([host, at, "b", secret]) + "\n")
    b.failed_at = time.time()
    b.start(**environment("b", 1))
    code = runs.end(b.process, WITHIN + 5)
    took = time.time() - b.failed_at
    b.check(code == 75 and took <= WITHIN, f"exit {code} after {took:.1f} s")
    b.check("belongs to job a, not to job b" in b.console(), "not refused by its job")
    forged.unlink()
    second = _faults.Run(folder, "gloo", sets=a.sets, rendezvous=_faults.RENDEZVOUS,
                         title="the second job's server")
    second.failed_at = time.time()
    second.start(**environment("c", 0)).ends(75, within=WITHIN, kind="rendezvous", says=[str(port)])
    last = runs.subprocess.Popen(runs.command(a.config, a.output, sets=a.sets), cwd=runs.TOP,
                                 env=runs.environment(**{_faults.MARK: a.identity, **environment("a", 1)}),
                                 stdout=runs.subprocess.DEVNULL, stderr=runs.subprocess.STDOUT)
    a.check(runs.end(a.process, 60) == 0 and last.wait(timeout=10) == 0, "the first job was disturbed")
    print("two jobs on a port: the second was refused, the first completed")


with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for rank in (0, 1):
            dies_connecting(folder, backend, rank)
        port_taken(folder, backend)
    dies_connecting(folder, "mpi", 1, under=_faults.MPIRUN)
    never_meets(folder)
    never_meets_others(folder, "gloo", 0)
    never_meets_others(folder, "mpi", 1)
    two_jobs(folder)
