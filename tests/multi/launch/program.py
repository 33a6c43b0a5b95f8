"""A program of a user under each launcher: convoy run, a YAML file, started directly, by mpirun, and with torchrun's
variables; in a farm, on hosts, and inside a rank of another run. Keys that do not apply to a program are refused."""
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

JOB = runs.BUILD / "tests" / "job"
FAST = ["--set", "device=cpu", "--set", "launch.cores_per_rank=1", "--set", "launch.bind=none"]


def done(title, line, cwd, code=0, says=(), **variables):
    ended = subprocess.run([str(word) for word in line], cwd=cwd, env=runs.environment(**variables), timeout=120,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs.check(ended.returncode == code, f"{title}: exit {ended.returncode}, not {code}\n{ended.stdout[-3000:]}")
    for words in says:
        runs.check(words in ended.stdout, f"{title}: does not say '{words}'\n{ended.stdout[-3000:]}")
    return ended.stdout


def check_summary(title, folder, ranks, name="job"):
    summary = runs.summary(folder)
    runs.check(summary is not None and summary["status"] == "done", f"{title}: not done in {folder}")
    runs.check(summary["world_size"] == ranks and summary["name"] == name, f"{title}: {json.dumps(summary)[:600]}")
    runs.check(summary["strategy"] == "program" and summary["steps"] == 5, f"{title}: {json.dumps(summary)[:600]}")
    runs.check([one["rank"] for one in summary["ranks"]] == list(range(ranks)), f"{title}: {summary['ranks']}")


with runs.workspace() as folder:
    done("convoy run", [runs.CONVOY, "run", "--ranks", 2, *FAST, "--output", "two", "--", JOB, "--steps", 5], folder,
         says=["rank 1 of 2 added 15 in 5 steps"])
    check_summary("convoy run", folder / "two", 2)
    # The run has ended, and stays unchanged.
    done("again", [runs.CONVOY, "run", "--ranks", 2, *FAST, "--output", "two", "--", JOB, "--steps", 5], folder,
         says=["already done"])
    done("other arguments", [runs.CONVOY, "run", "--ranks", 2, *FAST, "--output", "two", "--", JOB, "--steps", 6],
         folder, 73)

    text = f"program: [{JOB}, --steps, 5]\ndevice: cpu\nlaunch: {{ranks: 2, cores_per_rank: 1, bind: none}}\n"
    (folder / "job.yaml").write_text(text)
    done("a file", [runs.CONVOY, "run", "job.yaml"], folder, says=["rank 0 of 2"])
    check_summary("a file", folder / "runs" / "job", 2)
    # Its resolved configuration can be run too.
    done("the resolved file", [runs.CONVOY, "run", "runs/job/config.yaml", "--output", "resolved"], folder)
    check_summary("the resolved file", folder / "resolved", 2)

    done("by itself", [JOB, "--steps", 5], folder, says=["rank 0 of 1 added 5"])
    check_summary("by itself", folder / "runs" / "job-2", 1)
    done("a second Job", [JOB, "--steps", 5, "--at", 2, "--do", "second"], folder, 78,
         says=["step 2: a second convoy::Job(argc, argv) in this process"])
    done("a Job after the first", [JOB, "--steps", 5, "--do", "again"], folder, says=["caught: a second convoy::Job"])
    text = done("without a Run", [runs.CONVOY, "run", *FAST, "--output", "sums", "--", JOB, "--steps", 2], folder,
                says=["done: "])
    runs.check("samples/s" not in text, f"a program without a Run has figures\n{text}")
    done("no convoy::Job", [runs.CONVOY, "run", "--output", "none", "--", "/bin/true"], folder, 70,
         says=["has to create a convoy::Job(argc, argv)"])
    done("without convoy", [JOB], folder, 127, says=["CONVOY"], CONVOY="/nowhere/convoy")
    done("inside a rank", [JOB, "--steps", 5, "--at", 2, "--do", "nested"], folder,
         says=["rank 0 of 1 added 2 in 2 steps"])

    for backend in ("gloo", "mpi"):
        place = folder / f"mpirun-{backend}"
        place.mkdir()
        line = ["mpirun", "-n", 2, JOB, "--steps", 5] if backend == "mpi" else [
            "mpirun", "-n", 2, runs.CONVOY, "run", "--set", "backend=gloo", *FAST, "--", JOB, "--steps", 5]
        done(f"mpirun, {backend}", line, place, says=["rank 1 of 2 added 15"])
        check_summary(f"mpirun, {backend}", place / "runs" / "job", 2)
        runs.check(runs.summary(place / "runs" / "job")["backend"] == backend, f"mpirun: not {backend}")
    done("mpirun of convoy", [runs.CONVOY, "run", "--ranks", 2, "--set", "backend=mpi", *FAST, "--output", "mpi", "--",
                              JOB, "--steps", 5], folder, says=["rank 1 of 2 added 15"])
    check_summary("mpirun of convoy", folder / "mpi", 2)

    place = folder / "torchrun"
    place.mkdir()
    processes = []
    for rank in (0, 1):
        where = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541", "TORCHELASTIC_RUN_ID": "program"}
        processes.append(subprocess.Popen([JOB, "--steps", "5"], cwd=place, env=runs.environment(**where),
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for rank, process in enumerate(processes):
        text = process.communicate(timeout=120)[0]
        runs.check(process.returncode == 0, f"torchrun's variables: rank {rank}: exit {process.returncode}\n{text}")
    check_summary("torchrun's variables", place / "runs" / "job", 2)

    (folder / "farm.yaml").write_text(f"""name: farm
device: cpu
model: {{name: mlp, hidden: [8]}}
data: {{name: synthetic, rows: 64}}
optimizer: {{name: sgd, lr: 0.1}}
train: {{max_steps: 5, batch: {{global: 8}}, checkpoint_every: never}}
strategy:
  name: independent
  cores: 1
  metric: loss
  pipelines:
    - {{name: first, config: {{program: [{JOB}, --steps, 5]}}}}
    - {{name: second, config: {{program: [{JOB}, --steps, 5], seed: 2}}}}
    - name: third
""")
    done("a farm", [runs.CONVOY, "run", "farm.yaml", "--output", "farm"], folder)
    for name in ("first", "second"):
        check_summary("a farm", folder / "farm" / "pipelines" / name, 1, name)
    top = done("top", [runs.CONVOY, "top", "farm", "--once"], folder, says=["first", "second"])

    hello = folder / "other.yaml"
    hello.write_text(f"program: [{JOB}]\nmodel: {{name: mlp}}\ntrain: {{epochs: 3, log_every: 7}}\n")
    done("a model too", [runs.CONVOY, "run", "other.yaml"], folder, 78,
         ["other.yaml:2:1: model: does not apply", "other.yaml:3:9: train.epochs: does not apply"])
    for command in ("verify", "explain"):
        done(command, [runs.CONVOY, command, "job.yaml"], folder, 78, ["job.yaml:1:10: program: has its own model"])
    done("threads", [runs.CONVOY, "run", "job.yaml", "--set", "backend=local"], folder, 78, ["backend: is local"])
    for fault in ("nan:rank=1@step=2", "mismatch:parameters", "throw:block=0@step=2"):
        done(fault, [runs.CONVOY, "run", "--ranks", 2, "--inject", fault, "--", JOB], folder, 64,
             [f"--inject {fault}: happens in"])
    done("without --", [runs.CONVOY, "run", "--ranks", 2, JOB], folder, 78,
         [f"is a program and no YAML file; type convoy run --ranks 2 -- {JOB}"])
    done("nothing", [runs.CONVOY, "run"], folder, 64, ["a program after --"])
    done("both", [runs.CONVOY, "run", "job.yaml", "--", JOB], folder, 64, ["conflicts with the program"])
    done("bench", [runs.CONVOY, "bench", "all_reduce", "job.yaml", "--sizes", "4K"], folder,
         says=["every element was right"])
print("a program runs under every launcher")
