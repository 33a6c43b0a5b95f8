"""The same two ranks started in every way, each three times: alone, through mpirun, under mpirun, by torchrun's
variables."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

config = runs.TOP / "configs" / "tiny" / "mlp.yaml"
SETS = ["strategy.name=ddp", "train.epochs=1"]
KEYS = ["status", "exit_code", "strategy", "backend", "world_size", "ranks", "parameters", "epochs", "steps", "samples",
        "train_seconds", "samples_per_second", "startup_seconds", "evaluate_seconds", "data_seconds",
        "data_cpu_seconds", "wait_seconds", "cpu_efficiency", "bytes_sent_per_step", "metrics", "failure", "version"]


def look(title, output, backend, console):
    summary = runs.summary(output)
    runs.check(summary is not None and summary["status"] == "done", f"{title}: {summary}\n{console}")
    missing = [key for key in KEYS if key not in summary]
    runs.check(not missing, f"{title}: the summary lacks {missing}")
    empty = [key for key in KEYS if summary[key] is None and key != "failure"]
    runs.check(not empty, f"{title}: empty in the summary: {empty}")
    runs.check(summary["backend"] == backend and summary["world_size"] == 2 and summary["failure"] is None, title)
    runs.check([rank["rank"] for rank in summary["ranks"]] == [0, 1], f"{title}: ranks {summary['ranks']}")
    for rank in summary["ranks"]:
        runs.check(rank["host"] and rank["cores"] and rank["device"] == "cpu", f"{title}: {rank}")
    hidden = [f.name for f in output.rglob(".*")]
    runs.check(not hidden, f"{title}: left in the folder: {hidden}")
    runs.check((output / "config.yaml").exists() and (output / "logs" / "rank1.log").exists(), f"{title}: folder")
    return summary


def whole(title, output, backend, line):
    done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=120, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == 0, f"{title}: exit {done.returncode}\n{done.stdout[-3000:]}")
    runs.check(done.stdout.count("samples/s,") == 1, f"{title}: the result is printed once\n{done.stdout[-3000:]}")
    return look(title, output, backend, done.stdout)


def by_variables(title, output):
    """Sets torchrun's variables: each rank is a separate `convoy`."""
    processes = []
    for rank in range(2):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}
        console = open(f"{output}.{rank}.console", "w")
        processes.append(subprocess.Popen(runs.command(config, output, SETS), cwd=runs.TOP, stdout=console,
                                          stderr=subprocess.STDOUT, env=runs.environment(**variables)))
    codes = [process.wait(timeout=120) for process in processes]
    consoles = [pathlib.Path(f"{output}.{rank}.console").read_text() for rank in range(2)]
    runs.check(codes == [0, 0], f"{title}: exits {codes}\n{consoles}")
    runs.check(consoles[1] == "", f"{title}: rank 1 prints nothing, but: {consoles[1]}")
    return look(title, output, "gloo", consoles[0])


with runs.workspace() as folder:
    mpirun = ["mpirun", "-n", "2"]
    for turn in range(3):
        found = {}
        for backend in ("gloo", "mpi"):
            sets = [*SETS, f"backend={backend}"]
            for name, under, ranks in (("alone", (), 2), ("under mpirun", mpirun, None),
                                       ("under mpirun, unbound", [*mpirun, "--bind-to", "none"], None)):
                title = f"{backend} {name}, turn {turn}"
                output = folder / title.replace(" ", "-").replace(",", "")
                found[title] = whole(title, output, backend, runs.command(config, output, sets, ranks, under))
        # auto: mpi where MPI_Init finds its peers, gloo otherwise.
        output = folder / f"auto-{turn}"
        found["auto"] = whole("auto under mpirun", output, "mpi", runs.command(config, output, SETS, under=mpirun))
        output = folder / f"auto-alone-{turn}"
        found["auto alone"] = whole("auto alone", output, "gloo", runs.command(config, output, SETS, 2))
        found["variables"] = by_variables("variables", folder / f"variables-{turn}")
        for key in ("steps", "samples", "parameters"):
            runs.check(len({summary[key] for summary in found.values()}) == 1,
                       f"{key} differ: { {title: summary[key] for title, summary in found.items()} }")
        own = found[f"gloo alone, turn {turn}"]["ranks"]
        runs.check(not set(own[0]["cores"]) & set(own[1]["cores"]) or len(own[0]["cores"]) == 1,
                   f"cores are divided: {own}")
    print("every kind of start gives equal runs:", found["auto"]["steps"], "steps")
