"""A trained run is used: evaluate with equal metrics on any ranks and of any layout, the best checkpoint, early
stopping, freezing, serving from C++, lists and comparisons, and refusals with their exit codes."""
# timeout: 600
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import checkpoints
import runs

TINY = runs.TOP / "configs" / "tiny"
BEST = ["train.keep_best={metric: loss}"]


def convoy(*words, expect=0, **extra):
    done = subprocess.run([str(runs.CONVOY), *map(str, words)], cwd=runs.TOP, env=runs.environment(), timeout=120,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **extra)
    runs.check(done.returncode == expect, f"convoy {' '.join(map(str, words))}\nexit {done.returncode}, expected "
                                          f"{expect}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def evaluated(run, *words):
    return json.loads(convoy("evaluate", run, "--json", *words))


def close(title, given, expected, tolerance=1e-6):
    runs.check(sorted(given) == sorted(expected), f"{title}: metrics {sorted(given)}, expected {sorted(expected)}")
    for name, value in expected.items():
        runs.check(abs(given[name] - value) <= tolerance * max(1, abs(value)),
                   f"{title}: {name} is {given[name]}, expected {value}")


def last(summary):
    return {name: values["last"] for name, values in summary["metrics"].items()}


def equal_figures(work):
    """evaluate gives the metrics of the training, on 1, 2 and 4 ranks, for every layout."""
    for config, strategies in (
            (TINY / "mlp.yaml", ("single", "ddp", "fsdp", "{name: fsdp, shard: parameters}",
                                 "{name: pipeline, micro_batches: 2}", "tensor_parallel")),
            (TINY / "ncf.yaml", ("ddp", "fsdp")),
            (TINY / "convnet.yaml", ("ddp",))):
        for number, strategy in enumerate(strategies):
            run = work / f"{config.stem}-{number}"
            ranks = 1 if strategy == "single" else 2
            trained = runs.run(config, run,
                               [f"strategy={strategy if strategy[0] == '{' else '{name: ' + strategy + '}'}"],
                               ranks=ranks)
            by_default = evaluated(run)
            runs.check(by_default["ranks"] == ranks, f"{strategy}: {by_default}")
            close(f"{config.stem}, {strategy}", by_default["metrics"], last(trained))
            for other in (1, 2, 4):
                close(f"{config.stem}, {strategy} on {other}", evaluated(run, "--ranks", other)["metrics"],
                      last(trained))
    linked = work / "linked"
    linked.mkdir()
    (linked / "runs").symlink_to(work)
    for under in ([], ["mpirun", "-n", "2"] if shutil.which("mpirun") else []):
        done = subprocess.run([*under, str(runs.CONVOY), "evaluate", "runs/mlp-1"], cwd=linked, env=runs.environment(),
                              timeout=120, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        left = sorted(path.name for path in linked.iterdir())
        runs.check(done.returncode == 0 and left == ["runs"], f"{under}: {left}\n{done.stdout}")
    under = subprocess.run(["mpirun", "-n", "2", str(runs.CONVOY), "evaluate", str(work / "mlp-1"), "--json"], cwd=work,
                           env=runs.environment(), timeout=120, text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE) \
        if shutil.which("mpirun") else None
    if under:
        runs.check(under.returncode == 0, f"mpirun: exit {under.returncode}\n{under.stderr}")
        close("under mpirun", json.loads(under.stdout)["metrics"], last(runs.summary(work / "mlp-1")))
        alone = subprocess.run(["mpirun", "-n", "2", str(runs.CONVOY), "generate", str(work / "mlp-1"),
                                "--prompt", "x"], cwd=work, env=runs.environment(), timeout=60, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        runs.check(alone.returncode == 64 and "works on one rank" in alone.stdout, f"two ranks: {alone.stdout}")
    print("evaluate: the figures of training on 1, 2 and 4 ranks, of every layout, and under mpirun", flush=True)


def ensembles(work):
    run = work / "ensemble"
    trained = runs.run(TINY / "ensemble.yaml", run)
    whole = evaluated(run)
    close("ensemble", whole["metrics"], last(trained))
    runs.check(len(whole["members"]["loss"]) == 4, f"members: {whole['members']}")
    for member in (0, 3):
        close(f"member {member}", evaluated(f"{run}@member{member}")["metrics"],
              {name: values[member] for name, values in whole["members"].items()})
    # More ranks than members: one rank per member starts, and a note reports that.
    more = subprocess.run([str(runs.CONVOY), "evaluate", str(run), "--ranks", "9", "--json"], cwd=work, text=True,
                          env=runs.environment(), timeout=120, capture_output=True)
    runs.check(more.returncode == 0 and "on 4 ranks instead of 9" in more.stderr, f"9 ranks: {more}")
    close("9 ranks", json.loads(more.stdout)["metrics"], last(trained))
    print("evaluate: an ensemble, and its members alone", flush=True)


def rows_csv(path, first, count):
    lines = ["a,b,klass"]
    for row in range(first, first + count):
        a, b = (row * 37 % 100) / 50 - 1, (row * 61 % 100) / 50 - 1
        lines.append(f"{a},{b},{'pos' if a + b > 0 else 'neg'}")
    path.write_text("\n".join(lines) + "\n")


def table(work):
    """A table: rows held out, all rows of another file, and the same model in C++."""
    rows_csv(work / "rows.csv", 0, 400)
    rows_csv(work / "new.csv", 1000, 90)
    (work / "table.yaml").write_text(
        "name: table\nseed: 1\ndevice: cpu\nmodel: {name: mlp, hidden: [8]}\n"
        "data: {name: table, path: rows.csv, target: klass, task: classification, evaluate: {fraction: 0.2}}\n"
        "optimizer: {name: adam, lr: 0.05}\nstrategy: ddp\nlaunch: {ranks: 2}\n"
        "train: {epochs: 8, batch: {global: 40}, keep_best: {metric: accuracy}}\n")
    run = work / "runs" / "table"
    trained = runs.run(work / "table.yaml", run, cwd=work)

    def here(*words):
        done = subprocess.run([str(runs.CONVOY), "evaluate", str(run), "--json", *words], cwd=work,
                              env=runs.environment(), timeout=120, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        runs.check(done.returncode == 0, f"evaluate {words}: exit {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)
    own = here()
    runs.check(own["rows"] == 80 and own["split"] == "held-out", f"held out: {own}")
    close("table", own["metrics"], last(trained))
    runs.check(here("--split", "all")["rows"] == 400 and here("--split", "training")["rows"] == 320, "splits")
    new = here("--set", "data.path=new.csv", "--ranks", "1")
    runs.check(new["rows"] == 90 and new["split"] == "all", f"another file: {new}")
    runs.check(new["metrics"]["accuracy"] > 0.9, f"another file: {new['metrics']}")

    # The accuracy of the classes that a C++ program prints, computed here row by row.
    serve = runs.BUILD / "tests" / "serve"
    lines = (work / "new.csv").read_text().splitlines()[1:]
    served = subprocess.run([str(serve), str(run)],
                            input="\n".join(["a,b"] + [line.rsplit(",", 1)[0] for line in lines]) + "\n", cwd=work,
                            timeout=60, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    runs.check(served.returncode == 0, f"serve: {served.stderr}")
    classes = [line.split()[0] for line in served.stdout.splitlines()]
    right = sum(line.rsplit(",", 1)[1] == found for line, found in zip(lines, classes))
    runs.check(len(classes) == 90 and abs(right / 90 - new["metrics"]["accuracy"]) < 1e-9,
               f"serve: {right} of {len(classes)}, evaluate: {new['metrics']}")
    # Serving needs neither the training data nor the original path of the run.
    moved = work / "moved"
    shutil.copytree(run, moved)
    (work / "rows.csv").rename(work / "gone.csv")
    again = subprocess.run([str(serve), str(moved)], input="b,a\n0.5,0.5\n", timeout=60, text=True,
                           stdout=subprocess.PIPE)
    runs.check(again.stdout.startswith("pos "), f"serve without data: {again}")
    runs.refused("data that is gone", 78, ["data.path", "rows.csv: no such file"],
                 [str(runs.CONVOY), "evaluate", str(run)], within=20)
    (work / "gone.csv").rename(work / "rows.csv")
    print("a table: held-out rows, all rows of another file, and the same classes from C++", flush=True)


def best_and_early(work):
    base = ["train.epochs=12", "train.keep_last=1", "optimizer.lr=0.05"]
    for strategy in ("{name: single}", "{name: ddp}", "{name: fsdp}", "{name: pipeline, micro_batches: 2}",
                     "{name: ensemble, members: 2}"):
        name = strategy.strip("{}").split(",")[0].split()[-1]
        run = work / f"best-{name}"
        stop = ["train.early_stop={metric: loss, patience: 2}"]
        summary = runs.run(TINY / "mlp.yaml", run, [*base, *BEST, *stop, f"strategy={strategy}"],
                           ranks=1 if name == "single" else 2)
        figures, best = summary["metrics"]["loss"], summary["best_checkpoint"]
        runs.check(best["step"] == figures["best_step"] and best["value"] == figures["best"],
                   f"{name}: {best}, {figures}")
        runs.check(summary["steps"] == best["step"] + 2 * 13,
                   f"{name}: best at {best['step']}, ended at {summary['steps']}")
        runs.check((run / "checkpoints" / "best").read_text().strip() == f"step-{best['step']}",
                   f"{name}: the file best")
        kept = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
        runs.check(len(kept) == 2, f"{name}: keeps {kept}")
        close(f"{name}@best", {"loss": evaluated(f"{run}@best")["metrics"]["loss"]}, {"loss": best["value"]})
        close(f"{name}@step", {"loss": evaluated(f"{run}@step-{summary['steps']}")["metrics"]["loss"]},
              {"loss": figures["last"]})
    print("keep_best and early_stop under five strategies", flush=True)

    # Members that stop early have their best weights.
    run = work / "members"
    summary = runs.run(TINY / "ensemble.yaml", run,
                       ["train.epochs=14", "strategy.lr=~", "optimizer.lr=0.05", "strategy.early_stop={patience: 2}"])
    losses = [record["members"]["loss"] for record in runs.records(run, "evaluate")]
    for member in range(4):
        values = [record[member] for record in losses]
        lowest = min(range(len(values)), key=values.__getitem__)
        ended = lowest + 2 < len(values) - 1
        if ended:
            runs.check(abs(values[-1] - min(values)) < 1e-6, f"member {member} ended with {values}")
    runs.check(summary["steps"] < 14 * 13, f"no member stopped early: {losses}")
    runs.refused("both kinds of early stopping", 78, ["train.early_stop", "keep one of them"],
                 runs.command(TINY / "ensemble.yaml", work / "no",
                              ["strategy.early_stop={patience: 2}", "train.early_stop={metric: loss}"]), within=20)
    for sets, words in ((["train.early_stop={metric: acuracy}"], ["train.early_stop.metric", "did you mean accuracy?"]),
                        (["train.keep_best={direction: minimize}"], ["train.keep_best.direction", "without a metric"]),
                        (["train.keep_best={metric: loss}", "train.evaluate_every=never"],
                         ["train.evaluate_every", "is never"]),
                        (["train.keep_best={metric: loss}", "data.evaluate_rows=0"], ["no rows to evaluate on"])):
        runs.refused(str(sets), 78, words, runs.command(TINY / "mlp.yaml", work / "no", sets), within=20)
    print("members keep their best weights; mistakes are refused", flush=True)


def stopped(work):
    """A run that is stopped and resumed keeps counting."""
    sets = [*BEST, "train.early_stop={metric: loss, patience: 3}", "train.epochs=40", "optimizer.lr=0.02"]
    whole = runs.run(TINY / "mlp.yaml", work / "undisturbed", sets)
    run = work / "stopped"
    first = runs.run(TINY / "mlp.yaml", run, sets, inject=["kill:rank=0@step=60"], expect=137)
    runs.check(first["status"] == "failed", f"{first['status']}")
    again = runs.run(TINY / "mlp.yaml", run, sets)
    runs.check(again["best_checkpoint"] == whole["best_checkpoint"] and again["steps"] == whole["steps"],
               f"{again['best_checkpoint']} after {again['steps']}, undisturbed {whole['best_checkpoint']}, "
               f"{whole['steps']}")
    print("keep_best and early_stop continue after a kill", flush=True)


def fine_tuning(work):
    start = work / "mlp-0"
    frozen = "^hidden_0"
    names = {}

    def weights(run):
        to = work / f"{run.name}-weights"
        convoy("export", run, "--to", to, "--force")
        return (to / "model.safetensors").read_bytes()

    def tensors(run):
        return {name: part for name, (_, part) in checkpoints.parts(weights(run)).items()}
    before = tensors(start)
    pattern = next(iter(before)).rsplit(".", 1)[0]
    for strategy in ("{name: single}", "{name: ddp}", "{name: fsdp}", "{name: fsdp, shard: parameters}",
                     "{name: pipeline, micro_batches: 2}", "{name: tensor_parallel}"):
        run = work / ("frozen-" + "".join(c for c in strategy if c.isalpha()))
        summary = runs.run(TINY / "mlp.yaml", run, [f"strategy={strategy}", f"model.init_from={start}",
                                                    f"model.freeze='{canonical(start)}'", "train.epochs=1"],
                           ranks=1 if "single" in strategy else 2)
        after = tensors(run)
        names[strategy] = last(summary)
        changed = {name for name in before if before[name] != after[name]}
        kept = set(before) - changed
        runs.check(kept and changed, f"{strategy}: kept {kept}, changed {changed}")
        runs.check(all(name.startswith(pattern) for name in kept), f"{strategy}: kept {kept}, wanted {pattern}")
        close(f"frozen, {strategy}", names[strategy], names["{name: single}"], 1e-4)
    for freeze, words in (("nothing", ["matches no parameter"]), (".", ["matches every parameter"]),
                          ("(", ["model.freeze"])):
        runs.refused(f"freeze {freeze}", 78, words,
                     runs.command(TINY / "mlp.yaml", work / "no", [f"model.freeze='{freeze}'"]), within=20)
    # Another rate and more epochs, from the state of a finished run; another head from its weights.
    longer = runs.run(TINY / "mlp.yaml", work / "longer",
                      [f"train.resume={start}@step-26", "train.epochs=3", "optimizer.lr=1e-4"])
    runs.check(longer["steps"] == 39 and longer["steps_here"] == 13, f"continued: {longer['steps']}")
    head = runs.run(TINY / "mlp.yaml", work / "head",
                    ["data.classes=3",
                     f"model.init_from={{path: {start}, strict: false, rename: {{'^output.*': ''}}}}"])
    runs.check(head["status"] == "done", f"{head['failure']}")
    print("fine-tuning: frozen layers under six layouts, another rate, another head", flush=True)


def canonical(run):
    manifest = json.loads((runs.newest_checkpoint(run) / "manifest.json").read_text())
    first = next(entry["name"] for entry in manifest["entries"] if entry["kind"] == "parameter")
    return "^" + first.rsplit(".", 1)[0].replace(".", "\\.")


def lists(work):
    text = convoy("runs", work)
    for word in ("mlp-0", "ensemble", "done", "accuracy"):
        runs.check(word in text, f"runs: no '{word}' in\n{text}")
    listed = json.loads(convoy("runs", work, "--json"))
    runs.check(all(entry["status"] in ("done", "failed", "stopped") for entry in listed), f"{listed}")
    for seed in (1, 2, 3):
        for rate in ("1e-3", "3e-2"):
            runs.run(TINY / "mlp.yaml", work / "seeds" / f"{rate}-{seed}",
                     [f"seed={seed}", "data.seed=1", f"optimizer.lr={rate}"])
    compared = json.loads(convoy("compare", work / "seeds" / "1e-3-1", work / "seeds" / "3e-2-1", "--json"))
    runs.check(compared["keys"] == {"optimizer.lr": [0.001, 0.03]}, f"keys: {compared['keys']}")
    loss = compared["metrics"]["loss"][1]
    runs.check(loss["seeds"] == 3 and loss["exceeds_spread"] is True and loss["difference"] < 0, f"compare: {loss}")
    runs.check("exceeds the spread" in convoy("compare", work / "seeds" / "1e-3-1", work / "seeds" / "3e-2-1"),
               "text of compare")
    # The spread over seeds does not follow from a repeated run.
    pair = work / "repeated"
    for name, rate in (("a", "1e-3"), ("a-2", "1e-3"), ("b", "3e-2"), ("b-2", "3e-2")):
        runs.run(TINY / "mlp.yaml", pair / name, ["data.seed=1", f"optimizer.lr={rate}"])
    repeated = json.loads(convoy("compare", pair / "a", pair / "b", "--json"))["metrics"]["loss"][1]
    runs.check(repeated["seeds"] == 1 and repeated["exceeds_spread"] is None, f"compare of repeated runs: {repeated}")
    runs.check("equal settings and seeds" in convoy("compare", pair / "a", pair / "a-2"), "text for equal runs")
    runs.refused("one run twice", 64, ["two different runs"],
                 [str(runs.CONVOY), "compare", str(pair / "a"), str(pair / "a")])
    # A killed run has the metrics that it recorded.
    killed = work / "killed"
    runs.run(TINY / "mlp.yaml", killed, ["train.epochs=50", "train.evaluate_every=1 epoch"],
             inject=["kill:rank=0@step=60"], expect=137)
    (killed / "summary.json").write_text(json.dumps({**runs.summary(killed), "metrics": {}, "status": "running"}))
    entry = next(entry for entry in json.loads(convoy("runs", work, "--json")) if entry["folder"] == str(killed))
    runs.check(entry["status"] == "ended" and entry["best"] is not None, f"a killed run: {entry}")
    compared = json.loads(convoy("compare", killed, work / "mlp-0", "--json"))
    runs.check(compared["status"] == ["ended", "done"], f"compare with a killed run: {compared['status']}")
    print("runs and compare", flush=True)


def refusals(work):
    run = work / "mlp-1"
    evaluate = [str(runs.CONVOY), "evaluate"]
    runs.refused("no run", 64, ["does not exist"], [*evaluate, str(work / "none")])
    runs.refused("no such step", 78, ["no checkpoint of step 7", "@step-26"], [*evaluate, f"{run}@step-7"])
    runs.refused("no best", 78, ["train.keep_best"], [*evaluate, f"{run}@best"])
    runs.refused("a member of no ensemble", 78, ["has no members"], [*evaluate, f"{run}@member0"])
    runs.refused("a member that is not there", 78, ["has 4 members"], [*evaluate, f"{work / 'ensemble'}@member9"])
    runs.refused("a key of training", 64, ["has no effect: convoy evaluate does not train"],
                 [*evaluate, str(run), "--set", "train.epochs=3"])
    runs.refused("an unknown key", 78, ["did you mean path?"],
                 [*evaluate, str(work / "runs" / "table"), "--set", "data.pth=x"])
    runs.refused("another model", 78, ["model.hidden"], [*evaluate, str(run), "--set", "model.hidden=[5]"], within=20)
    # A damaged newest checkpoint is never replaced by an older one unasked: one rule for every command.
    for damage in ("manifest.json", "rank-0.safetensors"):
        broken = work / f"broken-{damage}"
        shutil.copytree(run, broken)
        newest = runs.newest_checkpoint(broken)
        with open(newest / damage, "r+b") as file:
            file.seek(200)
            file.write(b"\x00\x01")
        older = sorted(int(path.name[5:]) for path in newest.parent.glob("step-*"))[-2]
        words = [damage, f"name an older one: {broken}@", f"{broken}@step-{older}"]
        for line in (["evaluate", broken], ["export", broken, "--to", work / "x"],
                     ["predict", broken, "--data", work / "new.csv", "--to", work / "x.csv"]):
            said = runs.refused(f"{line[0]}, damaged {damage}", 65, words, [str(runs.CONVOY), *map(str, line)],
                                within=20)
            runs.check(len(said.strip().splitlines()) == 1, f"more than one line:\n{said}")
        served = subprocess.run([str(runs.BUILD / "tests" / "serve"), str(broken)], input="a,b\n", text=True,
                                timeout=60, capture_output=True)
        runs.check(served.returncode == 1 and all(word in served.stderr for word in words), f"serve: {served.stderr}")
        subprocess.run([str(runs.CONVOY), "export", f"{broken}@step-{older}", "--to", str(work / f"older-{damage}")],
                       check=True, timeout=60, stdout=subprocess.DEVNULL)
    newer = work / "newer"
    shutil.copytree(run, newer)
    summary = json.loads((newer / "summary.json").read_text())
    (newer / "summary.json").write_text(json.dumps({**summary, "version": "9.9"}))
    done = subprocess.run([*evaluate, str(newer)], env=runs.environment(), timeout=60, text=True, capture_output=True)
    runs.check(done.returncode == 0 and "convoy 9.9 trained this run" in done.stderr, f"another version: {done}")
    # A farm, an unfinished run, a plugin that moved.
    (work / "farm.yaml").write_text(
        f"name: farm\nstrategy: {{name: independent, pipelines: [{{name: a, config: {TINY}/mlp.yaml}}]}}\n")
    runs.run(work / "farm.yaml", work / "farm")
    runs.refused("a farm", 64, ["is the folder of a farm", "farm/pipelines/a"], [*evaluate, str(work / "farm")])
    close("a run of a farm", evaluated(work / "farm" / "pipelines" / "a")["metrics"],
          last(runs.summary(work / "farm" / "pipelines" / "a")))
    young = work / "young"
    shutil.copytree(run, young)
    shutil.rmtree(young / "checkpoints")
    (young / "summary.json").write_text(json.dumps({**summary, "status": "running"}))
    runs.refused("no checkpoint yet", 78, ["its status is ended; train it again"], [*evaluate, str(young)])
    plugin = runs.BUILD / "tests" / "libplugin_wrong.so"
    if plugin.exists():
        here = work / "plugin.so"
        shutil.copy(plugin, here)
        here.chmod(0o755)
        runs.run(TINY / "plugin_wrong.yaml", work / "with-plugin", [f"model.plugin={here}", "strategy={name: single}"],
                 ranks=1)
        moved = here.rename(work / "moved.so")
        runs.refused("a plugin that moved", 78, ["model.plugin", "--set model.plugin="],
                     [*evaluate, str(work / "with-plugin")])
        close("a plugin in its new place", evaluated(work / "with-plugin", "--set", f"model.plugin={moved}")["metrics"],
              last(runs.summary(work / "with-plugin")))
    # A signal: no result, and nothing is left.
    before = set(os.listdir("/tmp"))
    process = subprocess.Popen([*evaluate, str(run), "--set", "data.evaluate_rows=4000000", "--set", "data.rows=10000"],
                               env=runs.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs.rank_pids(process, 2)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    code = runs.end(process, 20)
    left = [name for name in set(os.listdir("/tmp")) - before if name.startswith("convoy-evaluate-")]
    runs.check(code == 143 and not left, f"SIGINT: exit {code}, left {left}\n{process.stderr.read()}")
    print("refusals, and a signal", flush=True)


with runs.workspace() as folder:
    for part in (equal_figures, ensembles, table, best_and_early, stopped, fine_tuning, lists, refusals):
        part(folder)
