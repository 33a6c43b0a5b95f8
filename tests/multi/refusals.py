"""Runs that cannot start: one message within one and a half seconds, a separate exit code, and no leftovers."""
import os
import pathlib
import signal
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

config = runs.TOP / "configs" / "tiny" / "mlp.yaml"


with runs.workspace() as folder:
    cores = len(os.sched_getaffinity(0))
    bad = folder / "bad.yaml"
    bad.write_text(config.read_text().replace("optimizer:", "optimzer:"))
    new = folder / "new"
    ddp = ["strategy.name=ddp"]
    text = runs.refused("unknown key", 78, ["bad.yaml:8:1", "optimzer", "optimizer"], runs.command(bad, new))
    runs.check("required" not in text and "mistakes" not in text, f"unknown key: a misspelt key is one mistake\n{text}")
    runs.refused("no such file", 78, ["nothing.yaml"], runs.command(folder / "nothing.yaml", new))
    runs.refused("command line", 64, ["--rank"], [str(runs.CONVOY), "run", str(config), "--rank", "2"])
    runs.refused("no command", 64, [], [str(runs.CONVOY)])
    runs.refused("unknown command", 64, ["'practise'", "run", "explain", "list"],
                 [str(runs.CONVOY), "practise", "x.yaml"])
    runs.refused("mistyped command", 64, ["did you mean list?"], [str(runs.CONVOY), "lst"])
    runs.refused("help", 0, ["optimizer ", "convoy list config"], [str(runs.CONVOY), "run", "--help"])
    runs.refused("no ranks", 64, ["--ranks"], [str(runs.CONVOY), "run", str(config), "--ranks", "0"])
    runs.refused("too many cores", 78, ["launch.cores_per_rank", f"may use {cores}"],
                 runs.command(config, new, [*ddp, f"launch.cores_per_rank={cores}"], 2))
    runs.refused("ranks of single", 78, ["launch.ranks", "--ranks 1"], runs.command(config, new, (), 2))
    runs.refused("threads without end", 78, ["launch.threads"], runs.command(config, new, ["launch.threads=100000"]))
    runs.refused("an invalid address", 78, ["--set launch.address=nonsense: launch.address:"],
                 runs.command(config, new, ["launch.address=nonsense"]))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        runs.refused("a port that is taken", 75, [f"port {port}", "launch.port: auto"],
                     runs.command(config, folder / "port", [f"launch.port={port}"]))
        summary = runs.summary(folder / "port")
        runs.check(summary["status"] == "failed" and summary["exit_code"] == 75 and
                   summary["failure"]["cause"] == "rendezvous", f"{summary}")
    # A plugin's mistakes are reported at the key that names it, by convoy or by convoy-rank, which loads it.
    library = folder / "none.so"
    named = [f"model={{plugin: {library}}}"]
    expected = f"--set {named[0]}: model.plugin: plugin {library}: "
    runs.refused("no such plugin", 78, [expected, "No such file"], runs.command(config, new, named))
    library.write_text("no library")
    runs.refused("a plugin that is not a library", 78, [expected, "cannot be loaded"], runs.command(config, new, named),
                 within=3)
    # A model of convoy with a library: its options are checked after the library is loaded.
    for more in ([], ["loss=5"], ["data=7"]):
        runs.refused("a plugin that is no library, for gpt", 78,
                     ["--set model.plugin=/etc/passwd: model.plugin: plugin /etc/passwd: ", "cannot be loaded"],
                     runs.command(runs.TOP / "configs" / "tiny" / "gpt.yaml", new, [*more, "model.plugin=/etc/passwd"]),
                     within=3)
    runs.refused("a loss called 5", 78, ["--set loss=5: loss: unknown loss '5'"], runs.command(config, new, ["loss=5"]))
    plugins = folder / "plugins.yaml"
    plugins.write_text(config.read_text() + f"plugins: [{library}]\n")
    place = f"plugins.yaml:{len(plugins.read_text().splitlines())}:11: plugins.0: "
    runs.refused("a library in a list", 78, [place, "cannot be loaded"], runs.command(plugins, new), within=3)
    library.chmod(0o666)
    runs.refused("a plugin that others may write", 77, [expected, "chmod go-w"], runs.command(config, new, named))
    for name, advice in (("none.inter", "give the path of your own file"), ("ml-100k.inter", "./quickstart")):
        runs.refused("no such data", 78, ["data.path: ", f"{name}: no such file", advice],
                     runs.command(runs.TOP / "configs" / "ncf_ddp.yaml", new, [f"data.path={folder}/{name}"]))
    # Components that do not match, files with too little data, keys without effect: reported at the key, before the
    # start.
    story = folder / "story.txt"
    story.write_text("twelve bytes")
    (folder / "words").write_text("t\nw\n")
    (folder / "images" / "red").mkdir(parents=True)
    tokens = runs.TOP / "configs" / "tiny" / "gpt.yaml"
    text = f"data={{name: text, path: {story}, length: %s}}"
    for title, words, file, sets in (
        ("a vocabulary that is not there", ["data.vocabulary: "], tokens, [text % "4, vocabulary: none.json"]),
        ("a text that is too short", ["data.length: is 12"], tokens, [text % 12]),
        ("a text that the vocabulary cannot spell",
         ["data.vocabulary: ", "story.txt: byte 2 (value 101) begins no token"], tokens,
         [text % f"4, vocabulary: {folder}/words"]),
        ("a token for the unknown that is none", ["data.unknown: is '?'"], tokens,
         [text % f"4, vocabulary: {folder}/words, unknown: '?'"]),
        ("a further pipeline for a farm", ["urgent.yaml:9:", "config: ", "convoy add RUN "],
         runs.TOP / "configs" / "urgent.yaml", []),
        ("no images", ["data.path: ", "holds no images"], runs.TOP / "configs" / "resnet_cifar_shape.yaml",
         [f"data={{name: images, path: {folder}/images}}"]),
        ("rows for another model", ["gpt.yaml:6:", "model.name: is gpt, which takes rows of tokens"], tokens,
         ["data={name: synthetic}"]),
        ("features that are no images", ["data.features: "], runs.TOP / "configs" / "resnet_cifar_shape.yaml",
         ["data.features=[32]"]),
        ("a shift out of the image", ["data.transforms.0.pixels: "], runs.TOP / "configs" / "tiny" / "convnet.yaml",
         ["data.transforms=[{name: shift, pixels: 8}]"]),
        ("a key of an axis that is not there", ["strategy.shard: "], config,
         ["strategy={name: hybrid, mesh: {data: 2}, shard: optimizer}"]),
        ("a loss scale without fp16", ["strategy.loss_scale.initial: "], config,
         [*ddp, "strategy.loss_scale.initial=8"]),
    ):
        runs.refused(title, 78, words, runs.command(file, new, sets))
    # Facts about sparse embeddings that only the model's blocks determine: their weight decay, and layers tied to them.
    ranking = runs.TOP / "configs" / "tiny" / "ncf.yaml"
    for title, words, file, sets in (
        ("weight decay of a table's group", ["optimizer.groups.0.weight_decay: is 0.1", "embedding.user.weight"],
         ranking, ["model.rows=true", "optimizer.groups=[{match: embedding.user, weight_decay: 0.1}]"]),
        ("weight decay of a table in no group", ["optimizer.weight_decay: is 0.1", "embedding.item.weight"], ranking,
         ["model.rows=true", "optimizer.weight_decay=0.1",
          "optimizer.groups=[{match: embedding.user, weight_decay: 0}]"]),
        ("a table that is tied", ["model.rows: is sharded", "is tied to embedding.tokens.weight"], tokens,
         ["model.rows=sharded"]),
    ):
        runs.refused(title, 78, words, runs.command(file, new, [*ddp, *sets], 2), within=4)
    columns = "data={name: interactions, path: none.csv, columns: {context: [hour, day, hour]}}"
    runs.refused("a column of context twice", 78, ["data.columns.context.2: is hour for a second time"],
                 runs.command(ranking, new, [columns]))
    runs.refused("incomplete variables", 78, ["WORLD_SIZE", "RANK"], runs.command(config, new), WORLD_SIZE="2")
    runs.refused("half of mpirun's variables", 78,
                 ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "unset OMPI_COMM_WORLD_RANK"],
                 runs.command(config, new), OMPI_COMM_WORLD_RANK="0")
    runs.refused("cores without a list", 78, ["launch.cores: needs launch.bind: list"],
                 runs.command(config, new, ["launch.cores=[0]"]))
    runs.refused("a list without cores", 78, ["launch.bind: is list"], runs.command(config, new, ["launch.bind=list"]))
    runs.refused("cores that are not here", 78, ["launch.cores.0: names core 4000"],
                 runs.command(config, new, ["launch.bind=list", "launch.cores=[4000]"]))
    runs.refused("folder is a file", 73, ["bad.yaml"], runs.command(config, bad))
    runs.refused("unwritable folder", 73, ["/proc/nowhere"], runs.command(config, "/proc/nowhere"))
    if not os.path.exists("/dev/nvidiactl"):
        runs.refused("no GPU", 69, ["device"], runs.command(config, new, ["device=cuda"]))
        runs.refused("nccl without a GPU", 69, ["nccl"], runs.command(config, new, [*ddp, "backend=nccl"], 2))
    mpirun = ["mpirun", "-n", "2"]
    # mpirun itself is slow: the test only checks that the error is printed once.
    text = runs.refused("unknown key under mpirun", 78, ["optimzer"], runs.command(bad, new, under=mpirun), within=10)
    runs.check(text.count("bad.yaml:8:1") == 1, f"said once under mpirun:\n{text}")
    runs.refused("contradiction", 78, ["--ranks", "OMPI_COMM_WORLD_SIZE=2"], runs.command(config, new, ddp, 3, mpirun),
                 within=10)
    runs.refused("local under mpirun", 78, ["local", "mpirun"],
                 runs.command(config, new, [*ddp, "backend=local"], under=mpirun), within=10)
    runs.refused("mpirun as root", 75, ["OMPI_ALLOW_RUN_AS_ROOT=1"] if os.geteuid() == 0 else [],
                 runs.command(config, folder / "root", [*ddp, "backend=mpi"], 2), within=5,
                 OMPI_ALLOW_RUN_AS_ROOT="0") if os.geteuid() == 0 else None
    many = ["launch.cores_per_rank=auto", "backend=mpi", *ddp]
    runs.refused("too few slots", 75, ["OMPI_MCA_rmaps_base_oversubscribe=1", "backend=gloo"],
                 runs.command(config, folder / "slots", many, cores + 1), within=5,
                 OMPI_MCA_rmaps_base_oversubscribe="0")
    runs.check(not new.exists(), "a folder was made although nothing started")

    # Files that others placed or may place in a run folder, and special files.
    victim = folder / "victim"
    victim.write_text("untouched\n")
    for title, name, word, plant in (
        ("a link as metrics", "metrics.jsonl", "is a symbolic link", lambda path: path.symlink_to(victim)),
        ("a FIFO as metrics", "metrics.jsonl", "is a FIFO", os.mkfifo),
        ("a FIFO as summary", "summary.json", "is a FIFO", os.mkfifo),
        ("a folder as summary", "summary.json", "is a folder", os.mkdir),
        ("a FIFO as a rank's log", "logs/rank0.log", "is a FIFO", os.mkfifo),
        ("a link as the lock", ".lock", "is a symbolic link", lambda path: path.symlink_to(victim)),
    ):
        planted = folder / title.replace(" ", "-").replace("'", "")
        (planted / "logs").mkdir(parents=True)
        plant(planted / name)
        runs.refused(title, 73, [name, word, "--output"], runs.command(config, planted))
        if name == "summary.json":
            runs.refused(f"{title}: top", 74, [name, word], [str(runs.CONVOY), "top", "--once", str(planted)])
    runs.check(victim.read_text() == "untouched\n", "a placed link was followed")
    shared = folder / "shared"
    shared.mkdir()
    for part in (shared, shared / "logs"):
        part.mkdir(exist_ok=True)
        part.chmod(0o777)
        runs.refused("a run folder that others may write", 77, ["every user may write it", f"chmod go-w {part}"],
                     runs.command(config, shared))
        part.chmod(0o755)
    nested = shared / "run"
    shared.chmod(0o777)
    folder.chmod(0o755)  # no other user could reach it before
    # The folder is refused only if other users can reach it. On some machines they cannot even enter /.
    if all(parent.stat().st_mode & 0o011 for parent in shared.parents):
        runs.refused("a run folder that others may replace", 77,
                     [f"every user may write {shared} ", f"chmod o-w {shared}"], runs.command(config, nested))
        runs.check(not nested.exists(), "a refused run leaves its folder")
    shared.chmod(0o1777)
    nested.mkdir()
    (nested / "logs").symlink_to(folder)
    runs.refused("a link as folder of logs", 77, ["logs: is a symbolic link"], runs.command(config, nested))
    shared.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(shared, 1, 0)
        runs.refused("another user's run folder", 77, ["belongs to user 1"], runs.command(config, shared))
    os.mkfifo(folder / "data.csv")
    runs.refused("a FIFO as data", 78, ["data.path: ", "is not a regular file"],
                 runs.command(ranking, new, [f"data={{name: interactions, path: {folder}/data.csv}}"]))
    runs.refused("a path that is not UTF-8", 64, ["argument 2", "is not valid UTF-8"],
                 [str(runs.CONVOY), "run", os.fsdecode(b"/tmp/\xff.yaml")])
    strange = pathlib.Path(os.fsdecode(os.fsencode(folder) + b"/\xff"))
    strange.mkdir()
    runs.refused("a working directory that is not UTF-8", 73, ["is not valid UTF-8", "--output"],
                 ["sh", "-c", 'cd "$0" && exec "$@"', str(strange), *runs.command(config, "out")])
    runs.refused("an invalid pattern", 78, ["optimizer.groups.0.match: ", "no regular expression", "look-around"],
                 runs.command(config, new, ["optimizer.groups=[{match: '(?=x)', lr: 1.0}]"]))

    # Two runs, one folder.
    endless = ["train.epochs=100000", "train.evaluate_every=never", "train.checkpoint_every=never", "launch.grace=2s"]
    first = runs.start(config, folder / "used", endless)
    runs.training(folder / "used")
    runs.refused("locked folder", 73, ["another run"], runs.command(config, folder / "used", endless), within=1)
    # The second request to stop does not wait for the ranks: one of them cannot stop. An echo of the first request does
    # not count.
    os.kill(runs.rank_pids(first, 1)[0], signal.SIGSTOP)
    os.kill(first.pid, signal.SIGTERM)
    os.kill(first.pid, signal.SIGINT)
    time.sleep(0.6)
    runs.check(first.poll() is None, "an echo of the stop request counted as a second request")
    start = time.monotonic()
    os.kill(first.pid, signal.SIGTERM)
    code = runs.end(first, 5)
    runs.check(code == 143 and time.monotonic() - start < 1, f"asked twice to stop: exit {code}")
    summary = runs.summary(folder / "used")
    runs.check(summary["status"] == "stopped" and summary["failure"]["cause"] == "stopped", f"{summary['failure']}")
    print("refusals are printed once and in time")
