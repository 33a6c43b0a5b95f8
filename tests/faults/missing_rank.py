"""One rank never starts; the others wait no longer than launch.rendezvous and name it. Also a rank with
another configuration, which has no effect: ranks use the configuration that rank 0 has read."""
import signal
import time

import _faults
from _faults import runs

# Rank 1 sleeps instead of running `convoy`, as long as the job lasts.
HALF = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then sleep 20; exit 0; fi; exec "$@"'


def missing(folder, backend):
    run = _faults.Run(folder, backend, title=f"{backend}: rank 1 never starts", rendezvous=_faults.RENDEZVOUS)
    run.failed_at = time.time()
    if backend == "mpi":
        run.start(under=[*_faults.MPIRUN, "sh", "-c", HALF, "half"])
        # mpirun waits for the sleeping rank, so the time until the message is checked.
        runs.wait_for(lambda: "rank 1 of 2" in run.console(), _faults.RENDEZVOUS + 5, "the message")
        took = time.time() - run.failed_at
        run.check(took <= _faults.RENDEZVOUS + 2, f"said after {took:.1f} s")
        run.process.wait(timeout=60)
        run.clean()
    else:
        run.start(CONVOY_RANK="0", CONVOY_WORLD_SIZE="2", CONVOY_LOCAL_RANK="0", CONVOY_JOB="case-14")
        run.ends(75, within=_faults.RENDEZVOUS + 1)
    text = run.console()
    run.check("rank 1 of 2" in text and "launch.rendezvous" in text, "the missing rank is not named")
    print(f"{run.title}: {[line for line in text.splitlines() if 'rank 1 of 2' in line][0]}")


def missing_with_agent(folder, halted):
    """Ranks 0 and 1 of 3 have joined. The end does not wait for rank 1's convoy, not even for one that is halted."""
    title = f"gloo: rank 2 never starts, and rank 1's convoy is {'halted' if halted else 'well'}"
    run = _faults.Run(folder, "gloo", title=title, rendezvous=_faults.RENDEZVOUS)
    where = {"CONVOY_WORLD_SIZE": "3", "CONVOY_JOB": title}
    run.failed_at = time.time()
    run.start(CONVOY_RANK="0", CONVOY_LOCAL_RANK="0", **where)
    other = runs.subprocess.Popen(
        runs.command(run.config, run.output),
        cwd=runs.TOP, stdout=runs.subprocess.DEVNULL, stderr=runs.subprocess.STDOUT,
        env=runs.environment(**{_faults.MARK: run.identity, "CONVOY_RANK": "1", "CONVOY_LOCAL_RANK": "1", **where}))
    if halted:
        time.sleep(_faults.RENDEZVOUS / 2)
        other.send_signal(signal.SIGSTOP)
    code = run.process.wait(timeout=60)
    took = time.time() - run.failed_at
    expected, limit = (110, _faults.RENDEZVOUS / 2 + _faults.HEARTBEAT + 3) if halted else (75, _faults.RENDEZVOUS + 1)
    run.check(code == expected and took <= limit,
              f"exit {code} after {took:.1f} s, expected {expected} within {limit} s")
    other.send_signal(signal.SIGCONT)
    code = other.wait(timeout=_faults.RENDEZVOUS)
    run.check(code in (75, expected), f"rank 1's convoy ended with {code}")
    run.clean()
    print(f"{title}: exit {expected} after {took:.1f} s")


def other_configuration(folder):
    run = _faults.Run(folder, "gloo", title="gloo: rank 1 of another seed")
    where = {"CONVOY_WORLD_SIZE": "2", "CONVOY_JOB": "other"}
    run.failed_at = time.time()
    run.start(CONVOY_RANK="0", CONVOY_LOCAL_RANK="0", **where)
    other = runs.subprocess.Popen(
        runs.command(run.config, run.output, sets=["seed=7"]), cwd=runs.TOP, stdout=runs.subprocess.DEVNULL,
        stderr=runs.subprocess.STDOUT,
        env=runs.environment(**{_faults.MARK: run.identity, "CONVOY_RANK": "1", "CONVOY_LOCAL_RANK": "1", **where}))
    code = other.wait(timeout=_faults.PATIENT_RENDEZVOUS)
    run.ends(78, within=_faults.PATIENT_RENDEZVOUS, kind="config", rank=1, says=["seed", "rank 1"])
    run.check(code == 78, f"rank 1's convoy ended with {code}")
    print(f"{run.title}: refused")


with runs.workspace() as folder:
    _faults.together(lambda: missing(folder, "gloo"), lambda: missing(folder, "mpi"),
                     lambda: missing_with_agent(folder, False), lambda: missing_with_agent(folder, True),
                     lambda: other_configuration(folder))
