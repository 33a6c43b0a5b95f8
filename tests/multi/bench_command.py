"""`convoy bench`: a table on every backend and launcher, refusals of wrong use, and no leftovers."""
# timeout: 180
import json
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"]


def line(operation, *more, sets=(), under=()):
    words = [*under, str(runs.CONVOY), "bench", operation, *map(str, more)]
    for item in sets:
        words += ["--set", item]
    return words


def bench(folder, operation, *more, expect=0, **options):
    done = subprocess.run(line(operation, *more, **options), cwd=folder, env=runs.environment(OMP_NUM_THREADS="1"),
                          timeout=90, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    runs.check(done.returncode == expect,
               f"{operation} {more} {options}: exit {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}")
    return done


def figures(text):
    """Returns rows of the table: size, count, dtype, time, algorithm and bus bandwidth, wrong."""
    return [words for words in map(str.split, text.splitlines()) if len(words) == 7 and words[0].isdigit()]


def check_table(done, sizes, factor, title):
    rows = figures(done.stdout)
    runs.check([int(row[0]) for row in rows] == sizes, f"{title}: sizes {sizes}:\n{done.stdout}")
    for size, count, dtype, time, algorithm, bus, wrong in rows:
        runs.check(int(wrong) == 0 and float(time) > 0, f"{title}: {size} {wrong} {time}")
        if int(size) >= 65536:  # below that, the columns' three digits are too few
            runs.check(abs(float(algorithm) - int(size) / float(time) / 1e3) < 0.02 * float(algorithm) + 0.002, title)
            runs.check(abs(float(bus) - factor * float(algorithm)) < 0.02 * float(bus) + 0.002,
                       f"{title}: {algorithm} {bus}")
    runs.check("every element was right" in done.stdout, done.stdout)


def nothing_left(folder, kept=()):
    left = sorted(path.name for path in folder.iterdir() if path.name not in kept)
    runs.check(not left, f"leftovers: {left}")


with runs.workspace() as work:
    factors = {"all_reduce": 2 * 2 / 3, "all_gather": 2 / 3, "reduce_scatter": 2 / 3, "broadcast": 1, "send": 1}
    for operation in OPERATIONS:
        done = bench(work, operation, "--ranks", 3, "--sizes", "12,98304", sets=["backend=local"])
        check_table(done, [12, 98304], factors[operation], operation)
        runs.check("3 ranks, local" in done.stdout, done.stdout)
    nothing_left(work)

    # The documented form, over two backends, and the rows for programs.
    for backend in ("gloo", "mpi"):
        file = work / f"{backend}.json"
        done = bench(work, "all_reduce", "--ranks", 2, "--sizes", "1K-4K,100000", "--json", file,
                     sets=[f"backend={backend}"])
        check_table(done, [1024, 2048, 4096, 100000], 1, backend)
        printed = json.loads(file.read_text())
        runs.check(printed["backend"] == backend and printed["ranks"] == 2 and len(printed["placement"]) == 2,
                   f"{printed}")
        for row, shown in zip(printed["rows"], figures(done.stdout)):
            runs.check(row["bytes"] == int(shown[0]) and abs(1e6 * row["seconds"] - float(shown[3])) < 0.01,
                       f"{row} {shown}")
            runs.check(row["seconds_least"] <= row["seconds"] <= row["seconds_most"], f"{row}")
        runs.check("rank  host  device" in done.stderr, f"placement as of any run:\n{done.stderr}")
        file.unlink()
    nothing_left(work)

    # Started by other launchers, and with the section `launch` of a configuration.
    done = bench(work, "send", "--sizes", "1M", under=["mpirun", "-n", "2", "--bind-to", "none"])
    check_table(done, [1 << 20], 1, "mpirun")
    runs.check("2 ranks, mpi" in done.stdout, done.stdout)
    config = work / "here.yaml"
    text = (runs.TOP / "configs" / "tiny" / "mlp.yaml").read_text()
    config.write_text(text + "backend: local\n")
    done = bench(work, "broadcast", config, "--ranks", 2, "--sizes", "4K", "--dtype", "bf16", "--output", work / "kept")
    check_table(done, [4096], 1, "with a configuration")
    runs.check(figures(done.stdout)[0][1:3] == ["2048", "bf16"], done.stdout)
    kept = runs.summary(work / "kept")
    runs.check(kept["status"] == "done" and kept["bench"][0]["operation"] == "broadcast", f"{kept}")
    nothing_left(work, ("here.yaml", "kept"))

    # Refused before anything starts.
    for words, code, said in [(("all_reduec",), 64, "all_reduce"), (("send", "--sizes", "4X"), 64, "1K-64M"),
                              (("send", "--sizes", "8K-4K"), 64, "1K-64M"),
                              (("send", "--json", work / "no" / "file"), 73, "--json"),
                              (("send", "--set", "backend=smoke"), 78, "backend")]:
        done = bench(work, *words, expect=code)
        runs.check(said in done.stdout + done.stderr, f"{words}: {done.stdout}{done.stderr}")
    nothing_left(work, ("here.yaml", "kept"))

    # A dead rank ends the job with a message; a run with a request to stop leaves nothing.
    for sign, code in ((signal.SIGTERM, 143), (None, 137)):
        process = subprocess.Popen(line("all_reduce", "--ranks", 2, "--sizes", ",".join(["64K"] * 2000),
                                        sets=["backend=gloo"]),
                                   cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=runs.environment(OMP_NUM_THREADS="1"))
        for printed in process.stdout:
            if printed.split()[:1] == ["65536"]:
                break
        ranks = runs.rank_pids(process, 2)
        process.send_signal(sign) if sign else runs.os.kill(ranks[1], signal.SIGKILL)
        rest = process.communicate(timeout=30)[0]
        runs.check(process.returncode == code, f"exit {process.returncode}, expected {code}:\n{rest}")
        runs.check(not runs.alive(ranks), "ranks still run")
        if sign:
            nothing_left(work, ("here.yaml", "kept"))
        else:
            runs.check("rank 1" in rest and "summary.json" in rest, rest)
print("the table is correct on every backend and launcher")
