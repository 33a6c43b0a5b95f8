"""Launcher variables: those that are used, those that are refused by name, and inherited ones, which are reported."""
import pathlib
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

config = runs.TOP / "configs" / "tiny" / "mlp.yaml"
SETS = ["strategy.name=ddp", "train.epochs=1", "device=cpu"]


def refused(variables, *words):
    begin = time.monotonic()
    done = subprocess.run(runs.command(config), cwd=runs.TOP, env=runs.environment(**variables), timeout=30,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = time.monotonic() - begin
    runs.check(done.returncode == 78, f"{variables}: exit {done.returncode}, not 78\n{done.stdout}")
    runs.check(seconds < 1.5, f"{variables}: took {seconds:.1f} s")
    for word in words:
        runs.check(word in done.stdout, f"{variables}: does not say '{word}'\n{done.stdout}")


def trains(title, output, ranks=None, under=(), world=1, says=(), **variables):
    line = runs.command(config, output, SETS, ranks, under)
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(**variables), timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == 0, f"{title}: exit {done.returncode}\n{done.stdout[-3000:]}")
    summary = runs.summary(output)
    runs.check(summary["world_size"] == world, f"{title}: {summary['world_size']} ranks, not {world}")
    for word in says:
        runs.check(done.stdout.count(word) == 1,
                   f"{title}: says '{word}' {done.stdout.count(word)} times\n{done.stdout}")


refused({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "unset OMPI_COMM_WORLD_RANK")
refused({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
refused({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "SLURM_LOCALID", "srun")
refused({"CONVOY_RANK": "0"}, "CONVOY_WORLD_SIZE", "CONVOY_LOCAL_RANK", "CONVOY_JOB")
refused({"PMIX_RANK": "0"}, "PMIX_RANK")
refused({"PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI_RANK", "CONVOY_WORLD_SIZE")
refused({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
         "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        "RANK=0", "OMPI_COMM_WORLD_RANK=1")

with runs.workspace() as folder:
    trains("in a batch script", folder / "batch", ranks=2, world=2, says=["ignored", "batch script"],
           SLURM_JOB_ID="5", SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NTASKS="4", SLURM_NNODES="2")
    trains("in a rank of another run", folder / "nested", says=["of rank 3 of another run"], CONVOY_PROCESS="3",
           CONVOY_RANK="3", CONVOY_CHANNEL="127.0.0.1,1,job,secret", OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="8",
           OMPI_COMM_WORLD_LOCAL_RANK="3", PMIX_RANK="3")
    # Two ranks start separately, the second one 7 s later: in a completed run folder, and in a refused one.
    shutil.copytree(folder / "batch", folder / "other")  # two jobs at once on one folder would see each other's lock
    late = []
    for rank, pause in ((0, 7), (1, 0)):
        where = {"CONVOY_RANK": str(rank), "CONVOY_LOCAL_RANK": str(rank), "CONVOY_WORLD_SIZE": "2"}
        for title, code, name, sets in (("a finished folder", 0, "batch", SETS),
                                        ("a folder of another run", 73, "other", [*SETS, "seed=7"])):
            line = runs.command(config, folder / name, sets, 2)
            variables = runs.environment(**where, CONVOY_JOB=f"late{code}")
            late.append((title, code, subprocess.Popen(line, cwd=runs.TOP, env=variables, stdout=subprocess.PIPE,
                                                       stderr=subprocess.STDOUT, text=True)))
        time.sleep(pause)
    begin = time.monotonic()
    for title, code, process in late:
        text = process.communicate(timeout=60)[0]
        runs.check(process.returncode == code, f"{title}: exit {process.returncode}, expected {code}\n{text}")
    runs.check(time.monotonic() - begin < 10, f"late ranks end after {time.monotonic() - begin:.0f} s")
    # Rank 1 never joins: rank 0 waits no longer than the time limit of the rendezvous.
    begin = time.monotonic()
    alone = runs.environment(CONVOY_RANK="0", CONVOY_LOCAL_RANK="0", CONVOY_WORLD_SIZE="2", CONVOY_JOB="alone")
    done = subprocess.run(runs.command(config, folder / "batch", [*SETS, "seed=7", "launch.rendezvous=3s"], 2),
                          cwd=runs.TOP, env=alone, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    runs.check(done.returncode == 73 and time.monotonic() - begin < 6,
               f"alone: exit {done.returncode} after {time.monotonic() - begin:.0f} s\n{done.stdout}")
    # The number of ranks in a file is for a start without a launcher; a typed number is a contradiction.
    own = folder / "own.yaml"
    own.write_text(config.read_text() + "\nlaunch: {ranks: 2}\n")
    config = own
    trains("mpirun decides", folder / "mpirun", under=["mpirun", "-n", "3"], world=3,
           says=["launch.ranks: 2 has no effect under mpirun"])
    refused({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "x", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "SIZE=x")
    done = subprocess.run(runs.command(own, folder / "typed", ranks=4, under=["mpirun", "-n", "2"]), cwd=runs.TOP,
                          env=runs.environment(), timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    runs.check(done.returncode == 78 and "OMPI_COMM_WORLD_SIZE=2" in done.stdout,
               f"--ranks under mpirun: {done.stdout}")
print("one launcher is used, incomplete and contradictory variables are refused by name, inherited ones are reported")
