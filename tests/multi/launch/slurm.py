"""The launch contract under Slurm: srun with and without PMIx, sbatch and salloc, ends of a job there and leftovers."""
# labels: multi faults
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import simulated_hosts as sim
import runs

config = runs.TOP / "configs" / "tiny" / "mlp.yaml"
SHORT = ["strategy.name=ddp", "train.epochs=1", "launch.bind=none", "launch.cores_per_rank=1"]
LONG = ["strategy.name=ddp", "train.epochs=1000000", "train.evaluate_every=never", "train.checkpoint_every=never",
        "train.log_every=1", "launch.bind=none", "launch.cores_per_rank=1", "launch.failure_grace=2s"]
SRUN = ["srun", "-N2", "-n2", "--kill-on-bad-exit=1"]


def whole(title, under, output, sets, expect=0, inject=()):
    line = sim.in_slurm(*under, *runs.command(config, output, sets, inject=inject))
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=90, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    fits = done.returncode != 0 if expect is None else done.returncode == expect
    runs.check(fits, f"{title}: exit {done.returncode}, not {expect}\n{done.stdout[-3000:]}")
    return done.stdout


def trains(title, under, output, sets, backend, hosts=("sn1", "sn2"), says=()):
    console = whole(title, under, output, sets)
    summary = runs.summary(output)
    found = [rank["host"] for rank in summary["ranks"]]
    runs.check(summary["status"] == "done" and summary["backend"] == backend and found == list(hosts),
               f"{title}: {summary['status']}, {summary['backend']}, ranks on {found}\n{console[-2000:]}")
    for word in says:
        runs.check(console.count(word) == 1, f"{title}: says '{word}' {console.count(word)} times\n{console}")
    print(f"{title}: done", flush=True)


def ways_to_start(folder):
    trains("srun --mpi=pmix", [*SRUN, "--mpi=pmix"], folder / "pmix", SHORT, "mpi")
    trains("plain srun", SRUN, folder / "plain", SHORT, "gloo")
    # Each task refuses separately. Leave out --kill-on-bad-exit: with it, srun sometimes kills the slower task first.
    said = whole("plain srun, mpi", SRUN[:-1], folder / "refused", [*SHORT, "backend=mpi"], expect=78)
    runs.check(said.count("srun --mpi=pmix") == 1, f"the refusal: {said}")
    # An allocation is not a task: convoy starts its ranks here, and reports the variables that it ignores.
    trains("inside salloc", ["salloc", "-N2", "-n2"], folder / "salloc", [*SHORT, "launch.ranks=2", "backend=gloo"],
           "gloo", hosts=[os.uname().nodename] * 2, says=["the allocation of Slurm job"])


def job_id(output):
    return output.strip().split()[-1].split(";")[0]


def submit(folder, *words):
    done = subprocess.run(sim.in_slurm("sbatch", "--parsable", f"--chdir={folder}", *words), env=runs.environment(),
                          capture_output=True, text=True, timeout=30)
    runs.check(done.returncode == 0, f"sbatch: {done.stdout}{done.stderr}")
    return job_id(done.stdout)


def ended(job, folder, seconds):
    def gone():
        listed = subprocess.run(sim.in_slurm("squeue", "-h", "-j", job), capture_output=True, text=True, timeout=30)
        return not listed.stdout.strip()
    try:
        runs.wait_for(gone, seconds, f"the end of job {job}")
    except SystemExit:
        print((folder / f"slurm-{job}.log").read_text()[-3000:])
        raise


def batch(folder):
    """docs/examples/slurm.sbatch: cancelled in the middle, submitted again, and then it resumes."""
    (folder / "build").symlink_to(runs.BUILD)
    script = runs.TOP / "docs" / "examples" / "slurm.sbatch"
    text = config.read_text().replace("epochs: 2", "epochs: 1000000").replace("log_every: 5", "log_every: 1")
    mine = folder / "mine.yaml"
    mine.write_text(text.replace("{name: single}", "{name: ddp}") + "\nlaunch: {bind: none, cores_per_rank: 1}\n")
    output = folder / "runs" / "tiny-mlp"
    job = submit(folder, script, "mine.yaml")
    runs.training(output, step=20)
    subprocess.run(sim.in_slurm("scancel", job), check=True, timeout=30)
    ended(job, folder, 20)
    log = (folder / f"slurm-{job}.log").read_text()
    stopped = runs.summary(output)
    runs.check(stopped["exit_code"] == 143 and stopped["failure"] is not None, f"scancel: {stopped}\n{log[-3000:]}")
    steps = stopped["steps"]
    runs.check(runs.newest_checkpoint(output).name == f"step-{steps}",
               f"scancel: {runs.newest_checkpoint(output)}, {steps} steps")
    print(f"scancel: all ranks stopped after step {steps}, with a checkpoint", flush=True)

    # A warning signal, as Slurm sends it with --signal when the time limit is near.
    job = submit(folder, script, "mine.yaml")
    runs.training(output, step=steps + 20)
    subprocess.run(sim.in_slurm("scancel", "--signal=USR1", job), check=True, timeout=30)
    ended(job, folder, 20)
    log = (folder / f"slurm-{job}.log").read_text()
    runs.check("continuing the unfinished run" in log, f"the second submission: {log[-3000:]}")
    more = runs.summary(output)["steps"]
    runs.check(more > steps and runs.newest_checkpoint(output).name == f"step-{more}",
               f"USR1: {more} steps\n{log[-3000:]}")
    print(f"the next submission resumed, and stopped after step {more} when it was warned", flush=True)

    mine.write_text(mine.read_text().replace("epochs: 1000000", f"epochs: {more // 13 + 2}"))
    job = submit(folder, script, "mine.yaml")
    ended(job, folder, 60)
    last = runs.summary(output)
    runs.check(last["status"] == "done" and last["steps"] > more,
               f"{last}\n{(folder / f'slurm-{job}.log').read_text()[-3000:]}")


def rank_pids(ranks):
    def found():
        pids = [int(p.name) for p in pathlib.Path("/proc").glob("[0-9]*") if p.name.isdigit()]
        ours = []
        for pid in runs.named(pids, "convoy-rank"):
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if os.environ["CONVOY_SLURM_DIR"].encode() in variables:
                ours.append((int(variables.split(b"SLURM_PROCID=")[1].split(b"\0")[0]), pid))
        return [pid for _, pid in sorted(ours)] if len(ours) == ranks else None
    return runs.wait_for(found, 30, f"{ranks} ranks under Slurm")


def killed(folder, backend, under, victim):
    output = folder / f"kill-{backend}-{victim}"
    console = open(f"{output}.console", "w")
    process = subprocess.Popen(sim.in_slurm(*under, *runs.command(config, output, [*LONG, f"backend={backend}"])),
                               cwd=runs.TOP, env=runs.environment(), stdout=console, stderr=subprocess.STDOUT)
    runs.training(output, step=20)
    pids = rank_pids(2)
    started = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    code = runs.end(process, 10)
    seconds = time.monotonic() - started
    summary = runs.summary(output)
    failure = summary["failure"]
    said = pathlib.Path(f"{output}.console").read_text()[-2000:]
    runs.check(code != 0, f"{backend}: srun returned 0")
    runs.check(summary["exit_code"] == 137 and (failure["rank"], failure["host"]) == (victim, f"sn{victim + 1}"),
               f"{backend}, rank {victim} killed: {summary['exit_code']}, {failure}\n{said}")
    runs.check(seconds < 5, f"{backend}, rank {victim} killed: srun took {seconds:.1f} s")
    runs.wait_for(lambda: not runs.alive(pids), 3, "the end of all ranks after srun's")
    print(f"{backend}: rank {victim} killed, srun returned {code} after {seconds:.1f} s", flush=True)


def faults(folder):
    """A rank is killed, and a rank throws, as in tests/faults; `batch` has the stop request."""
    for backend, under in (("mpi", [*SRUN, "--mpi=pmix"]), ("gloo", SRUN)):
        for victim in (0, 1):
            killed(folder, backend, under, victim)
        # PMIx may end the Slurm step before srun receives the exit code 70. The summary has it.
        output = folder / f"throw-{backend}"
        whole("a model that throws", under, output, [*LONG, f"backend={backend}"], expect=None,
              inject=["throw:rank=1:block=0@step=20"])
        summary = runs.summary(output)
        failure = summary["failure"]
        runs.check((summary["exit_code"], failure["rank"], failure["step"], failure["host"]) == (70, 1, 20, "sn2"),
                   f"{backend}, a model that throws: {summary['exit_code']}, {failure}")


def hung_up(folder):
    """SIGHUP to the tasks of a step requests a stop."""
    output = folder / "hup"
    with open(f"{output}.console", "w") as console:
        process = subprocess.Popen(sim.in_slurm(*SRUN, *runs.command(config, output, [*LONG, "backend=gloo"])),
                                   cwd=runs.TOP, env=runs.environment(), stdout=console, stderr=subprocess.STDOUT)
    runs.training(output, step=20)
    for pid in rank_pids(2):
        os.kill(runs.parent(pid), signal.SIGHUP)
    runs.end(process, 20)
    summary = runs.summary(output)
    said = pathlib.Path(f"{output}.console").read_text()[-2000:]
    runs.check(summary["status"] == "stopped" and summary["exit_code"] == 143, f"HUP under srun: {summary}\n{said}")
    runs.check(runs.newest_checkpoint(output).name == f"step-{summary['steps']}",
               f"HUP under srun: no checkpoint\n{said}")
    runs.check(not (output / "failure.json").exists(), "HUP under srun: a stopped run has left failure.json")
    print(f"HUP under srun: all ranks stopped after step {summary['steps']}", flush=True)


if __name__ == "__main__":
    only = sys.argv[1:]
    with sim.slurm(2), runs.workspace() as folder:
        for part in (ways_to_start, batch, hung_up, faults):
            if not only or part.__name__ in only:
                part(folder)
