"""Every public header compiles alone. The projects of docs/examples build against a moved installation and work: alone,
under convoy run, mpirun and torchrun's variables, with equal results."""
# labels: slow
# timeout: 1800
import array
import concurrent.futures
import json
import pathlib
import re
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import checkpoints
import installed
import runs


def headers(prefix):
    """Compiles each header as the first include of a file."""
    listed = sorted((prefix / "include").rglob("*.h"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for header, seen in zip(listed, pool.map(lambda header: installed.includes(header, prefix), listed)):
            for path in seen:
                runs.check(not any(f"/{name}" in path for name in installed.HIDDEN), f"{header} includes {path}")
    print(f"{len(listed)} headers compile alone", flush=True)


def parameters(folder):
    """Returns names and values of the float64 tensors of the newest checkpoint of a run folder."""
    found = {name: values for name, values in checkpoints.tensors(folder).items() if isinstance(values, array.array)}
    runs.check(len(found) >= 8, f"{folder}: float64 tensors {sorted(found)}")
    return found


def difference(a, b):
    """Returns the largest |a - b| over largest |b|, over all tensors."""
    runs.check(a.keys() == b.keys(), f"tensors {sorted(a)} and {sorted(b)}")
    return max(max(map(abs, map(float.__sub__, a[name], b[name])), default=0) / max(1e-3, *map(abs, b[name]))
               for name in a)


def run_folder(folder):
    found = list(folder.glob("**/summary.json"))
    runs.check(len(found) == 1, f"{folder}: {len(found)} run folders")
    summary = json.loads(found[0].read_text())
    runs.check(summary["status"] == "done", f"{folder}: {summary}")
    return found[0].parent, summary


def torchrun(program, folder):
    """Runs two processes with the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(2):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        variables = {name: str(value) for name, value in variables.items()}
        console = open(folder / f"console{rank}", "w")
        started.append(subprocess.Popen(program, cwd=folder, env=runs.environment(**variables), stdout=console,
                                        stderr=subprocess.STDOUT))
    codes = [runs.end(process, 240) for process in started]
    runs.check(codes == [0, 0], f"torchrun's variables: exit {codes}\n{(folder / 'console0').read_text()[-3000:]}")


def training_loop(work, prefix):
    build = installed.build_example("training_loop", work, prefix)
    arguments = ["--data", str(installed.fashion_mnist(work / "data")), "--epochs", "1", "--batch", "256", "--double"]
    said = installed.shell([build / "plain", *arguments], cwd=work)
    plain = float(re.search(r"epoch 1: accuracy ([\d.]+)", said).group(1))
    program = [build / "training_loop", *arguments]
    ways = {
        "alone": lambda folder: installed.shell(program, cwd=folder),
        "convoy run": lambda folder: installed.shell([prefix / "bin/convoy", "run", "--ranks", "2", "--", *program],
                                                     cwd=folder),
        "mpirun": lambda folder: installed.shell(["mpirun", "--bind-to", "none", "-n", "2", *program], cwd=folder),
        "torchrun": lambda folder: torchrun(program, folder),
    }
    alone = None
    for way, start in ways.items():
        folder = work / way.replace(" ", "_")
        folder.mkdir()
        start(folder)
        output, summary = run_folder(folder)
        ranks = summary["world_size"]
        runs.check(ranks == (1 if way == "alone" else 2), f"{way}: {ranks} ranks")
        found = parameters(output)
        alone = alone or found
        apart = difference(found, alone)
        print(f"training_loop, {way}: {ranks} ranks, {apart:.1e} from one rank", flush=True)
        runs.check(apart <= 1e-12, f"{way}: parameters are {apart:.1e} apart from those of one rank")
    runs.check(plain > 0.6, f"the plain program reaches {plain}")


def embedded_mpi(work, prefix):
    build = installed.build_example("embedded_mpi", work, prefix)
    said = installed.shell(["mpirun", "--bind-to", "none", "-n", "3", build / "heat", "--steps", "600"], cwd=work)
    print(said.strip().splitlines()[-1], flush=True)
    off = re.search(r"learned weights 0\.\d+ 0\.\d+ 0\.\d+, at most (\S+) off", said)
    runs.check(off and float(off.group(1)) < 1e-2, f"embedded_mpi says {said}")


def plugins(work, prefix):
    convoy = prefix / "bin/convoy"
    build = installed.build_example("sequential", work, prefix)
    plugin = ["--set", f"model.plugin={build / 'libsequential.so'}", "--set", "backend=gloo"]
    config = build.parent / "lenet.yaml"
    for strategy in ("pipeline", "fsdp"):
        output = work / f"sequential_{strategy}"
        installed.shell([convoy, "run", config, *plugin, "--set", f"strategy.name={strategy}",
                         "--set", "train.max_steps=100", "--output", output], cwd=work)
        loss = runs.summary(output)["metrics"]["loss"]["last"]
        print(f"sequential, {strategy}: loss {loss:.3f}", flush=True)
        runs.check(loss < 1.2, f"sequential under {strategy}: loss {loss} after 100 steps")
        installed.shell([convoy, "verify", config, *plugin, "--set", f"strategy.name={strategy}", "--steps", "3"],
                        cwd=work)

    build = installed.build_example("plugin", work, prefix)
    output = work / "plugin_run"
    installed.shell([convoy, "run", build.parent / "mine.yaml", "--set", f"model.plugin={build / 'libmine.so'}",
                     "--set", "backend=gloo", "--output", output], cwd=work)
    loss = runs.summary(output)["metrics"]["loss"]["last"]
    runs.check(loss < 0.25, f"plugin: loss {loss}")


def serving(work, prefix):
    build = installed.build_example("serving", work, prefix)
    output = work / "served_run"
    # Two columns far from 0: without the scaling of the training every row would get the same class.
    (work / "served.csv").write_text("big,word,kind\n" + "".join(
        f"{5000 + 10 * (i % 20)},{'ab'[i % 2]},{'high' if i % 20 > 9 else 'low'}\n" for i in range(400)))
    (work / "served.yaml").write_text(
        "name: served\nseed: 1\ndevice: cpu\nmodel: {name: mlp, hidden: [8]}\n"
        "data: {name: table, path: served.csv, target: kind, scale: standard, categorical: [word]}\n"
        "optimizer: {name: adam, lr: 0.02}\ntrain: {epochs: 20, batch: {global: 20}}\nstrategy: {name: single}\n")
    installed.shell([prefix / "bin/convoy", "run", "served.yaml", "--output", output], cwd=work)
    done = subprocess.run([build / "serve", output], input="word,big\na,5010\nb,5180\n", text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(re.fullmatch(r"low [01]\.?\d*\nhigh [01]\.?\d*\n", done.stdout), f"serve says {done.stdout}")


with runs.workspace() as work:
    prefix = installed.install(work)
    training_loop(work, prefix)
    embedded_mpi(work, prefix)
    plugins(work, prefix)
    serving(work, prefix)
    headers(prefix)
print("passed")
