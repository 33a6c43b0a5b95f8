"""`convoy explain` and the placement of runs, through the real programs."""
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

TOPOLOGIES = runs.TOP / "tests" / "topologies"
config = runs.TOP / "configs" / "tiny" / "mlp.yaml"


def explain(*arguments, expect=0, cwd=runs.TOP, of=config):
    line = [str(runs.CONVOY), "explain", str(of), *map(str, arguments)]
    done = subprocess.run(line, cwd=cwd, env=runs.environment(), timeout=60, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    runs.check(done.returncode == expect, f"{' '.join(line)}: exit {done.returncode}, expected {expect}\n{done.stdout}")
    return done.stdout


def rows(text):
    """Returns the cells of the placement's lines by rank; columns are two blanks apart."""
    lines = text.split("\nrank  host", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


with runs.workspace() as folder:
    before = set(os.listdir(runs.TOP))
    ddp = ["--set", "strategy.name=ddp"]
    gpus = [*ddp, "--set", "device=auto"]
    text = explain("--topology", TOPOLOGIES / "grace.xml", "--ranks", 4, *gpus)
    runs.check("device: auto takes cores" in text and "GPU" not in rows(text)[0][2], f"more ranks than GPUs:\n{text}")
    placed = rows(explain("--topology", TOPOLOGIES / "dgx.xml", "--ranks", 8, *gpus))
    runs.check(len(placed) == 8, f"eight rows: {placed}")
    for rank, (number, host, device, node, cores, *_) in enumerate(placed):
        first = int(cores.split("-")[0])
        runs.check((number, host, node) == (str(rank), "dgx", str(rank // 4)), f"rank {rank}: {placed[rank]}")
        runs.check(device.startswith(f"GPU {rank} GPU-") and first // 16 == rank // 4, f"rank {rank}: {placed[rank]}")
    two = rows(explain("--topology", TOPOLOGIES / "grace.xml", "--ranks", 4, "--hosts", "a,b", *gpus))
    runs.check([row[1] for row in two] == ["a", "a", "b", "b"], f"hosts: {two}")
    text = explain("--ranks", 2, "--compare", "single,ddp,fsdp,pipeline", "--no-times")
    runs.check("refused" not in text.splitlines()[1] and "moments" in text, text)
    rough = "no speed relative to single is known"  # other load on all cores causes this; then there is no advice
    # Compares sparse embeddings with sharded and dense ones. explain counts their costs, and measures steps without
    # --calibrate. The 50 million rows of the synthetic data are never generated.
    start = time.monotonic()
    text = explain("--ranks", 2, "--compare", "single,ddp", "--set", "model.rows=true", "--set", "data.rows=50000000",
                   "--set", "data.users=200000", "--set", "data.items=20000",
                   of=runs.TOP / "configs" / "tiny" / "ncf.yaml")
    took = time.monotonic() - start
    runs.check(took <= 30, f"explain --compare took {took:.1f} s")
    header, sent, step = (next(line for line in text.splitlines() if line.startswith(word))
                          for word in ("largest of all ranks", "sent a step", "predicted step"))
    titles = ["single", "single, dense tables", "ddp", "ddp, sharded rows", "ddp, dense tables"]
    runs.check(re.split("  +", header)[1:] == titles and "0  " in sent, text)
    runs.check(len(re.findall(" [µm]?s( |$)", step)) == 5 and "— " not in step, text)
    runs.check("ddp: sparse embeddings send " in text and "ddp, sharded rows: sparse embeddings send " in text, text)
    advised = [title for title in titles[1:]
               if re.search(f"(take |[;:,] |^){title}(:| on| would)", text.splitlines()[-1])]
    runs.check(advised == ([] if rough in text else titles[1:]), f"advised on {advised}:\n{text}")
    # The text gives the whole reason for each table: even on eight ranks, the touched rows are far fewer bytes than the
    # table.
    for ranks in (2, 4, 8):
        text = " ".join(explain("--ranks", ranks, "--set", "model.rows=auto",
                                of=runs.TOP / "configs" / "ncf_story.yaml").split())
        for table in ("user.weight (211261 × 40)", "item.weight (100000 × 40)"):
            runs.check(f"embedding.{table}: sparse embedding, since it is large; "
                       "a rank's share of a batch looks up about " in text and
                       re.search("gather those that others touch, [0-9.]+ KiB a step", text), f"{ranks} ranks:\n{text}")
    text = explain("--ranks", 2, "--set", "strategy.name=pipeline")
    runs.check("F0.0" in text and "stage 1 on rank 1" in text and "idle:" in text, text)
    runs.check("did you mean ddp?" in explain("--compare", "dpd", expect=64), "an unknown name")
    runs.check("lstopo" in explain("--topology", folder / "none.xml", expect=64), "a missing file")
    runs.check("launch.ranks" in explain("--ranks", 2, "--set", "strategy.name=single", expect=78), "ranks of single")

    # Mostly LibTorch's loading time; use the best of three. If other processes use the cores, count its CPU time,
    # because it never waits.
    took = []
    for _ in range(3):
        start, idle = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        explain(*ddp, "--ranks", 2)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        computed = used.ru_utime + used.ru_stime - idle.ru_utime - idle.ru_stime
        took.append(min(time.monotonic() - start, computed))
    runs.check(min(took) <= 1, f"explain took {min(took):.2f} s")
    runs.check(set(os.listdir(runs.TOP)) - before <= {"runs"}, "explain left files")

    # --calibrate measures steps and the backend, and starts no run. Its file is used again, and only where it applies.
    file = folder / "calibration.json"
    start = time.monotonic()
    text = explain(*ddp, "--ranks", 2, "--compare", "single,ddp,fsdp,pipeline,data_parallel", "--calibrate", cwd=folder)
    took = time.monotonic() - start
    runs.check(took <= 20, f"explain --calibrate took {took:.1f} s")  # 8 s on idle cores: tests/bench/run explain_times
    runs.check("predicted step" in text and ("×" in text or rough in text) and "refused" not in text, text)
    runs.check(os.listdir(folder) == [file.name], f"explain --calibrate left {os.listdir(folder)}")
    calibration = json.loads(file.read_text())
    runs.check([s["ranks"] for s in calibration["steps"]] == [1, 2], f"steps: {calibration['steps']}")
    kinds = {(e["backend"], e["kind"]) for e in calibration["exchanges"]}
    runs.check({("gloo", "all_gather"), ("gloo", "send"), ("local", "all_reduce")} <= kinds, f"exchanges: {kinds}")
    again = ["--calibration", file]
    runs.check("predicted step" in explain(*ddp, "--ranks", 2, *again), "a calibration that was read")
    hosts = [*ddp, "--ranks", 4, "--hosts", "a,b", "--compare", "single,ddp", *again]
    runs.check("--link LATENCY,BANDWIDTH" in explain(*hosts), "hosts without a link")
    runs.check("no time is predicted" not in explain(*hosts, "--link", "20us,1GB/s"), "hosts with a link")
    runs.check("model.hidden" in explain(*again, "--set", "model.hidden=[9]", expect=78), "another model")
    runs.check("20us,12GB/s" in explain(*again, "--link", "fast", expect=64), "an invalid link")
    file.write_text(file.read_text().replace('"version": 1', '"version": 7'))
    runs.check("version is 7" in explain(*again, expect=78), "another version")
    explain(*again, "--calibrate", expect=64)

    # More micro-batches than rows of a timed pass: the reference is timed with whole passes.
    text = explain("--ranks", 2, "--compare", "single,pipeline", "--calibrate", "--set", "strategy.name=pipeline",
                   "--set", "strategy.micro_batches=16", "--set", "train.batch.global=16", cwd=folder)
    runs.check("none were measured" not in text and "no time is predicted" not in text and "refused" not in text, text)

    # Output, summary and the ranks' view agree.
    cores = sorted(os.sched_getaffinity(0))
    for name, sets in {"core": [], "list": ["launch.bind=list", f"launch.cores=['{cores[-1]}', '{cores[0]}']"]}.items():
        short = ["strategy.name=ddp", "train.max_steps=2", "train.epochs=1", *sets]
        done = subprocess.run(runs.command(config, folder / name, short, 2), cwd=runs.TOP, env=runs.environment(),
                              timeout=60, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        runs.check(done.returncode == 0, done.stdout)
        runs.check(done.stdout.count("rank  host  device") == 1, f"one table:\n{done.stdout}")
        summary = runs.summary(folder / name)
        for placed, rank in zip(summary["placement"], summary["ranks"]):
            runs.check(placed["cores"] == rank["cores"] and placed["threads"] == rank["threads"], f"{placed} {rank}")
        if name == "list":
            runs.check(summary["placement"][0]["cores"] == [cores[-1]], f"{summary['placement']}")

    for norm, said in {"local": "each rank's share", "sync": "the rows of all ranks"}.items():
        done = subprocess.run([str(runs.CONVOY), "explain", "configs/resnet_cifar_shape.yaml", "--ranks", "2", "--set",
                               "strategy.name=ddp", "--set", f"strategy.batch_norm={norm}"], cwd=runs.TOP, timeout=60,
                              text=True, env=runs.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        runs.check(done.returncode == 0 and f"batch norm: over {said}" in done.stdout, done.stdout)

    # A GPT of 10 G parameters on 1,024 GPUs: no tensor of it is made.
    hosts = ",".join(f"node{i}" for i in range(128))
    large = ["--set", "model.layers=48", "--set", "model.dim=4096", "--set", "model.heads=32", "--set",
             "data={name: synthetic, kind: tokens, rows: 1000, vocabulary: 50000, length: 2048}",
             "--set", "device=auto", "--set", "launch.ranks=auto", "--set", "launch.cores_per_rank=auto",
             "--topology", TOPOLOGIES / "dgx.xml", "--hosts", hosts]
    script = ("import resource, subprocess, sys; "
              "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT); "
              "used = resource.getrusage(resource.RUSAGE_CHILDREN); sys.stdout.buffer.write(done.stdout); "
              "print(done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)")

    def explained_in_limits(config, *arguments):
        """Runs explain in at most 3 s of CPU time and 1 GB of memory; returns its text."""
        line = [sys.executable, "-c", script, str(runs.CONVOY), "explain", config, *map(str, arguments)]
        done = subprocess.run(line, cwd=runs.TOP, env=runs.environment(), timeout=60, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT).stdout
        text, last = done.rstrip("\n").rsplit("\n", 1)
        code, seconds, megabytes = last.split()
        runs.check(code == "0" and float(seconds) <= 3 and float(megabytes) <= 1024, f"a large model: {last}\n{text}")
        return text

    # A recommender of 5 G parameters: its synthetic users are not generated.
    explained_in_limits("configs/tiny/ncf.yaml", "--set",
                        "data={name: synthetic, kind: interactions, rows: 1000, users: 100000000, items: 10000000}",
                        "--set", "model={name: ncf, gmf_dim: 16, mlp_dim: 32, hidden: [16, 8]}")
    text = explained_in_limits("configs/gpt_ddp.yaml", *large)
    runs.check(len(text.splitlines()) <= 60, f"{len(text.splitlines())} lines:\n{text}")
    runs.check("not measured" not in text and "0-1016 by 8  node0 … node127 (128)" in text, text)
    runs.check("leaves 1008 of 1024 ranks without rows" in text and "--ranks 16" in text, text)

    # A comparison does not measure a model of this size, and prints the reason.
    text = explain("--ranks", 2, "--compare", "single,ddp", *large[:8], of=runs.TOP / "configs" / "gpt_ddp.yaml")
    runs.check("too large for a quick measurement: one block of each kind needs " in text and
               "add --calibrate" in text and "predicted step" not in text, text)

    # On 1,024 ranks, no strategy lists them one by one.
    many = ["--topology", TOPOLOGIES / "dgx.xml", "--hosts", hosts]
    for key in ("device=auto", "launch.ranks=auto", "launch.cores_per_rank=auto", "model.layers=16", "model.heads=8"):
        many += ["--set", key]
    for strategy in ("name=ddp", "name=fsdp", "name=tensor_parallel", "name=pipeline", "name=ensemble",
                     "={name: hybrid, mesh: {data: 64, pipeline: 16}}",
                     "={name: hybrid, mesh: {pipeline: 8, tensor: 8, data: 16}, schedule: interleaved}"):
        sets = ["--set", "strategy" + ("" if strategy[0] == "=" else ".") + strategy]
        if "tensor_parallel" in strategy:
            sets += ["--set", "model.heads=1024", "--set", "model.dim=2048"]
        if "pipeline" in strategy and "hybrid" not in strategy:
            sets += ["--set", "model.layers=1022"]
        if "ensemble" in strategy:
            sets += ["--set", "strategy.members=1024"]
        start = time.monotonic()
        text = explain(*many, *sets, of=runs.TOP / "configs" / "tiny" / "gpt.yaml")
        longest = max(text.splitlines(), key=len)
        runs.check(len(longest) < 160 and len(text.splitlines()) <= 60, f"{strategy}: {longest}\n{text}")
        runs.check("pipeline" not in strategy or "\nidle: " in text, f"{strategy}: no idle time\n{text}")
        print(f"{strategy} on 1,024 ranks: {time.monotonic() - start:.1f} s, {len(longest)} characters")

    # Long schedules: 1,024 stages × 64 micro-batches, and 100,000 micro-batches on two ranks.
    for sets in (["model.layers=1022", "strategy.micro_batches=64", "train.batch.global=64"],
                 ["launch.ranks=2", "strategy.micro_batches=100000", "train.batch.global=100000"]):
        long = [word for key in ["strategy.name=pipeline", *sets] for word in ("--set", key)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = explain(*many, *long, of=runs.TOP / "configs" / "tiny" / "gpt.yaml")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        # A quadratic schedule takes minutes; the limit leaves room for slow processors.
        runs.check(used <= 6, f"{sets}: {used:.1f} s, {len(text.splitlines())} lines")
        print(f"{' '.join(sets)}: {used:.1f} s")

    # While other processes use the cores, nothing is recommended.
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in cores for _ in range(2)]
    try:
        text = explain(*ddp, "--ranks", 2, "--compare", "single,ddp")
        runs.check("other load took" in text and "too uncertain to recommend anything" in text, text)
    finally:
        for one in busy:
            one.kill()
            one.wait()

    # The describing process reports its position on request, here while it reads standard input.
    describing = subprocess.Popen([str(runs.BUILD / "convoy-rank"), "--describe"], env=runs.environment(), text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    status = pathlib.Path(f"/proc/{describing.pid}/status")
    usr1 = 1 << (signal.SIGUSR1 - 1)
    runs.wait_for(lambda: int(re.search(r"SigBlk:\s*(\w+)", status.read_text())[1], 16) & usr1, 20, "its beginning")
    time.sleep(0.2)
    describing.send_signal(signal.SIGUSR1)
    told = [describing.stderr.readline() for _ in range(2)]
    runs.check(told[0].startswith("convoy-stack {") and "convoy-rank+0x" in told[0] and
               told[1] == "convoy-stack null\n", f"{told}")
    runs.check(describing.communicate("no configuration")[1] != "" and describing.returncode not in (0, None),
               "nothing was wrong")

    # A measured zero is known: no layer of this model is sharded.
    text = explain("--ranks", 2, "--set", "strategy.name=tensor_parallel",
                   of=runs.TOP / "configs" / "tiny" / "convnet.yaml")
    runs.check("not measured" not in text and "≥" not in text and "nothing that 2 ranks could shard" in text, text)

    # Two ranks that mpirun binds to one core: reported, and corrected on request.
    if len(cores) >= 2:
        mpirun = ["mpirun", "-n", "2", "--bind-to", "none", "taskset", "-c", str(cores[0])]
        short = ["strategy.name=ddp", "train.max_steps=2", "train.epochs=1", "backend=gloo"]
        for bind, said in {"core": True, "convoy": False}.items():
            done = subprocess.run(runs.command(config, folder / bind / "m", [*short, f"launch.bind={bind}"],
                                               under=mpirun),
                                  cwd=runs.TOP, env=runs.environment(), timeout=60, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            runs.check(done.returncode == 0, done.stdout)
            runs.check(("2 ranks share 1 core" in done.stdout) == said, f"bind {bind}:\n{done.stdout}")
            bound = [rank["cores"] for rank in runs.summary(folder / bind / "m")["ranks"]]
            runs.check((bound[0] == bound[1]) == said, f"bind {bind}: {bound}")
print("explain plans, counts and compares; runs have the explained placement")
