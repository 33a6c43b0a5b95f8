"""docs/examples/training_loop, built against an installation, as tasks of srun."""
# labels: slow
# timeout: 600
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import installed
import simulated_hosts as sim
import runs

with sim.slurm(2), runs.workspace() as work:
    build = installed.build_example("training_loop", work, installed.install(work))
    program = [build / "training_loop", "--data", installed.fashion_mnist(work / "data"), "--epochs", "1",
               "--batch", "512"]
    work.chmod(0o755)
    for way in ([], ["--mpi=pmix"]):
        folder = work / f"srun{len(way)}"
        folder.mkdir()
        under = sim.in_slurm("srun", "-N2", "-n2", "--kill-on-bad-exit=1", *way)
        said = installed.shell([*under, *program], cwd=folder)
        summary = runs.summary(folder / "runs" / "training_loop")
        runs.check(summary and summary["status"] == "done" and summary["world_size"] == 2,
                   f"srun {way}: {summary}\n{said}")
        print(f"srun {' '.join(way)}: 2 ranks, {summary['backend']}", flush=True)
