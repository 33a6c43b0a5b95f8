"""`convoy verify`: correct layouts agree, a wrong plugin is found by its tensor, and no leftovers remain."""
# timeout: 300
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

TINY = runs.TOP / "configs" / "tiny"
DDP = ["strategy.name=ddp"]
WRONG = [*DDP, f"model.plugin={runs.BUILD}/tests/libplugin_wrong.so"]


def line(config, sets=(), ranks=2, **options):
    words = [str(runs.CONVOY), "verify", str(config)]
    for item in sets:
        words += ["--set", item]
    for name, value in {"ranks": ranks, "steps": 3, **options}.items():
        words += [f"--{name}", str(value)] if value else []
    return words


def nothing_left(folder, title):
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    runs.check(left == ["tmp"], f"{title}: leftovers: {left}")


def verified(folder, title, code, words, config, sets=(), within=60, environment=(), **options):
    start = time.monotonic()
    done = subprocess.run(line(config, sets, **options), cwd=folder, timeout=120, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT,
                          env=runs.environment(TMPDIR=str(folder / "tmp"), **dict(environment)))
    took = time.monotonic() - start
    runs.check(done.returncode == code, f"{title}: exit {done.returncode}, expected {code}\n{done.stdout}")
    for word in words:
        runs.check(word in done.stdout, f"{title}: no '{word}' in\n{done.stdout}")
    runs.check(took < within, f"{title}: took {took:.1f} s")
    nothing_left(folder, title)
    print(f"{title}: {took:.1f} s")
    return done.stdout


with runs.workspace() as work:
    (work / "tmp").mkdir()
    mlp, wrong = TINY / "mlp.yaml", TINY / "plugin_wrong.yaml"
    unequal = "no step had uneven shares"
    verified(work, "a single step", 0, ["agree", unequal, "--steps 2 or more", "at least 4 rows"], mlp, DDP, steps=1)
    text = verified(work, "a single step with uneven shares", 0, ["agree"], mlp, [*DDP, "train.batch.global=37"],
                    steps=1)
    runs.check(unequal not in text, f"19 and 18 rows are uneven shares:\n{text}")
    text = verified(work, "an epoch that ends with one row for two ranks", 0, ["agree"], mlp,
                    [*DDP, "data.rows=41", "train.batch.global=40"])
    runs.check(unequal not in text, f"one row for two ranks is an uneven share:\n{text}")
    text = verified(work, "ddp over gloo", 0, ["agree", "optimizer.eps raised from 1e-08 to 1e-05", "precision fp64",
                                               "ddp on 2 ranks (data 2), gloo", "never"], mlp, DDP)
    for name in ("hidden.0.linear.weight", "output.linear.bias"):
        (row,) = [one for one in text.splitlines() if one.startswith(name + " ")]
        runs.check(len(row.split()) >= 7, f"columns for parameter, gradient and two moments: {row}")
    runs.check(unequal not in text, f"the last batch is smaller:\n{text}")
    runs.check(len(text.splitlines()) < 20, f"no lines of the two runs are printed:\n{text}")
    text = verified(work, "both runs read one file", 0, ["agree"], TINY / "gpt.yaml",
                    [*DDP, f"data={{name: text, path: {runs.TOP}/LICENSE, length: 16}}"], steps=1)
    runs.check(text.count("is mapped read-only") == 1, f"what both runs log is printed once:\n{text}")
    verified(work, "ddp over mpi, accumulating", 0, ["agree", "mpi"], TINY / "ncf.yaml",
             ["backend=mpi", "strategy.sync.every=2", "train.batch={per_rank: 20}"], steps=5)
    verified(work, "threads, fp32, ragged and clipped", 0, ["agree", "precision fp32"], mlp,
             [*DDP, "backend=local", "optimizer.clip_norm=0.1", "train.batch.global=37"], ranks=3, precision="fp32")
    # Rows that a step does not touch stay stale, as in training: their catch-up is compared at the end.
    rows = [*DDP, "model.rows=true", "train.batch={per_rank: 4}"]
    verified(work, "rows, step by step", 0, ["agree"], TINY / "ncf.yaml", rows, steps=8)
    text = verified(work, "rows, by the formula", 1, ["differ: first after step ", "of embedding."], TINY / "ncf.yaml",
                    [*rows, "optimizer.catch_up=closed"], steps=8)
    # Rounding differs, so the result depends on the tolerance.
    verified(work, "no tolerance for rounding", 1, ["differ: first after step"], mlp, DDP, tolerance="1e-300")

    text = verified(work, "members of an ensemble", 0,
                    ["agree", "one run for each of 3 members", "output.linear.bias@member2"], TINY / "ensemble.yaml",
                    ["strategy.members=3", "strategy.lr=[0.001, 0.002, 0.004]", "strategy.samples={folds: 3}"])
    runs.check("optimizer.eps raised" in text, text)
    verified(work, "members that end early in training", 0, ["agree", "one run for each of 2 members"],
             TINY / "ensemble.yaml", ["strategy.members=2", "strategy.early_stop={patience: 1, metric: loss}"], steps=2)

    verified(work, "a plugin that is right here", 0, ["agree"], wrong, WRONG)
    text = verified(work, "a plugin that is wrong", 1, ["differ: first after step 1: the gradient of centred."], wrong,
                    [*WRONG, "model.over=rows"])
    (row,) = [one for one in text.splitlines() if one.startswith("centred.up.weight ")]
    runs.check(row.endswith("step 1"), row)

    # A mean with weight 1 is right for equal shares: only an uneven batch, or its parts alone, show the mistake.
    mean = [f"model.plugin={runs.BUILD}/tests/libplugin_wrong.so", "model.over=nothing", "loss=mean_cross_entropy"]
    words = ["the loss is no sum over rows: ", " with weight 1", "never a mean"]
    verified(work, "a mean over ranks' rows", 1, ["differ: first after step 3", *words], wrong, [*DDP, *mean])
    verified(work, "a mean over micro-batches", 1, ["differ: the loss is no sum", *words], wrong,
             ["strategy={name: pipeline, micro_batches: 2}", *mean])
    # Ranks that do not divide the rows show no difference either, and the loss is wrong for them too.
    for name, ranks in (("single", None), ("tensor_parallel", 2), ("ensemble, members: 2", 1)):
        verified(work, f"a mean under {name}", 1, ["differ: the loss is no sum", *words], wrong,
                 [f"strategy={{name: {name}}}", *(["launch.ranks=auto"] if ranks is None else []), *mean], ranks=ranks)

    # The file's synchronised batch norm stays under another strategy, so the runs agree.
    images = runs.TOP / "configs" / "resnet_cifar_shape.yaml"
    small = ["train.batch.global=16", "data.rows=64", "data.evaluate_rows=16", "launch.cores_per_rank=auto"]
    for strategy in ("ddp", "fsdp"):
        named = [*small, f"strategy.name={strategy}"]
        verified(work, f"{strategy} of a residual network", 0, ["agree"], images, named, steps=2)
        ran = runs.run(images, work / strategy, [*named, "train.max_steps=2", "train.evaluate_every=never"])
        runs.check(ran["config"]["strategy"]["batch_norm"] == "sync", f"{strategy}: {ran['config']['strategy']}")
        shutil.rmtree(work / strategy)
    verified(work, "batch norm of a rank's share", 1, ["differ", "strategy.batch_norm=sync compares"], images,
             [*small, "strategy.batch_norm=local"], steps=1)
    for tolerance in ("nan", "0", "-1", "inf"):
        text = verified(work, f"a tolerance of {tolerance}", 64, [f"is {tolerance}, must be a number above 0"], mlp,
                        DDP, within=1.5, tolerance=tolerance)
        runs.check(len(text) < 400, text)
    verified(work, "a farm", 78, ["farm.yaml:", "strategy: describes several runs", "file of its own", "pipeline.yaml"],
             runs.TOP / "configs" / "farm.yaml", within=1.5, ranks=None)
    verified(work, "rows that stay behind", 78, ["optimizer.lazy"], runs.TOP / "configs" / "tiny" / "ncf.yaml",
             [*DDP, "model.rows=true", "optimizer.lazy=true"], within=1.5)
    verified(work, "not meant to agree", 78, ["strategy.sync.what"], mlp, [*DDP, "strategy.sync.what=parameters"],
             within=1.5)
    verified(work, "ranks of single", 78, ["launch.ranks"], mlp, within=1.5)
    verified(work, "inside a launcher", 64, ["type `convoy verify` without it"], mlp, DDP, within=1.5, ranks=None,
             environment={"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
                          "MASTER_PORT": "29500"})
    verified(work, "a run that fails", 70, ["the configured run", "the exception that", "exit 70"], mlp, DDP,
             inject="throw:rank=1@step=2")

    process = subprocess.Popen(line(mlp, [*DDP, "launch.grace=2s"], steps=100000), cwd=work, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, env=runs.environment(TMPDIR=str(work / "tmp")))
    runs.wait_for(lambda: list((work / "tmp").glob("*/*/states/step-2")), 30, "a snapshot")
    process.send_signal(signal.SIGTERM)
    code = runs.end(process, 30)
    runs.check(code == 143, f"exit {code} after SIGTERM")
    said = process.stderr.read()
    runs.check("asked to stop during the reference" in said and "did not end" not in said, said)
    nothing_left(work, "asked to stop")
print("correct and wrong layouts are distinguished, and nothing is left")
