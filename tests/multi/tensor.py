"""tensor_parallel and hybrid by real ranks: one rank's losses over gloo and mpi, verify, refusals, failures."""
# timeout: 300
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

TINY = runs.TOP / "configs" / "tiny"
SETS = ["precision=fp64", "train.epochs=1", "train.log_every=1", "train.checkpoint_every=never"]
TENSOR = ["strategy.name=tensor_parallel"]
MESH = "strategy={name: hybrid, mesh: {data: 2, tensor: 2}}"


def refused(title, words, config, sets, ranks, within=1.5):
    start = time.monotonic()
    done = subprocess.run(runs.command(config, None, sets, ranks), cwd=folder, env=runs.environment(), timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    took = time.monotonic() - start
    runs.check(done.returncode == 78, f"{title}: exit {done.returncode}, expected 78\n{done.stdout}")
    for word in words:
        runs.check(word in done.stdout, f"{title}: no '{word}' in\n{done.stdout}")
    runs.check(took <= within, f"{title}: reported after {took:.2f} s")


def verified(title, code, words, config, sets, ranks):
    line = [str(runs.CONVOY), "verify", str(config), "--steps", "5", "--ranks", str(ranks)]
    for item in sets:
        line += ["--set", item]
    done = subprocess.run(line, cwd=folder, env=runs.environment(), timeout=120, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == code, f"{title}: exit {done.returncode}, expected {code}\n{done.stdout}")
    for word in words:
        runs.check(word in done.stdout, f"{title}: no '{word}' in\n{done.stdout}")


with runs.workspace() as folder:
    gpt = TINY / "gpt.yaml"
    runs.run(gpt, folder / "runs" / "single", SETS)
    for name, sets, ranks in (("tensor-gloo", [*TENSOR, "backend=gloo"], 2),
                              ("tensor-mpi", [*TENSOR, "strategy.sequence_parallel=true", "backend=mpi"], 2),
                              ("hybrid-gloo", [MESH, "backend=gloo"], 4),
                              ("hybrid-mpi", [MESH, "backend=mpi"], None)):
        summary = runs.run(gpt, folder / "runs" / name, [*SETS, *sets, "launch.threads=1"], ranks=ranks)
        single = runs.summary(folder / "runs" / "single")
        for key in ("samples", "steps", "parameters"):
            runs.check(summary[key] == single[key], f"{name}: {key} {summary[key]}, one rank {single[key]}")
        for metric, value in single["metrics"].items():
            other = summary["metrics"][metric]["last"]
            runs.check(abs(other - value["last"]) <= 1e-9 * max(1.0, abs(value["last"])),
                       f"{name}: {metric} {other}, one rank {value['last']}")
    same = subprocess.run([sys.executable, str(runs.TOP / "tests" / "support" / "same_losses"), str(folder / "runs"),
                           "--tolerance", "1e-9"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(same.returncode == 0, same.stdout)
    print(same.stdout)

    verified("verify", 0, ["agree", "tensor 2"], gpt, [*TENSOR, "strategy.sequence_parallel=true"], 2)
    wrong = [*TENSOR, f"model.plugin={runs.BUILD}/tests/libplugin_wrong.so"]
    verified("verify of a wrong plugin", 1, ["differ: first after step 1", "centred."], TINY / "plugin_wrong.yaml",
             wrong, 2)
    verified("verify of a correct plugin", 0, ["agree"], TINY / "plugin_wrong.yaml", [*wrong, "model.over=rows"], 2)

    refused("heads", ["model.heads", "4", "3 ranks"], gpt, TENSOR, 3)
    refused("sequences", ["data.length", "12", "8 ranks", "sequence_parallel: false"], gpt,
            [*TENSOR, "strategy.sequence_parallel=true", "model.heads=8", "model.dim=16", "data.length=12"], 8)
    refused("heads of dim", ["model.dim", "16", "3 heads"], gpt,
            ["strategy.name=single", "model.heads=3", "model.dim=16"], None)
    refused("mesh", ["strategy.mesh", "= 4 ranks, but there are 3"], gpt, [MESH], 3)
    refused("sizes", ["model", "hidden.0.linear has 16 outputs", "3 ranks"], TINY / "mlp.yaml",
            [*TENSOR, "model.hidden=[16, 9]"], 3, within=2.5)
    refused("sizes of a mesh", ["model", "hidden.2.linear has 9 outputs"], TINY / "mlp.yaml",
            ["strategy={name: hybrid, mesh: {data: 2, tensor: 2}}", "model.hidden=[16, 16, 9]"], 4, within=2.5)

    for name, sets in (("tensor", TENSOR), ("hybrid", [MESH])):
        failed = runs.run(TINY / "mlp.yaml", folder / name, [*sets, "backend=gloo", "launch.failure_grace=2s"],
                          ranks=2 if name == "tensor" else 4, inject=["throw:rank=1:block=0@step=2"], expect=70)
        failure = failed["failure"]
        runs.check(failure["rank"] == 1 and "block 0" in failure["message"], f"{name}: {failure}")
print("sharded and whole layers agree")
