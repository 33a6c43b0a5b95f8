"""`convoy report`: what the page holds, hostile names, size and time, exit codes, unfinished runs, and the server."""
# timeout: 600
import contextlib
import http.client
import json
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import report_runs
import runs

TINY = runs.TOP / "configs" / "tiny"


def report(*words, **extra):
    return [str(runs.CONVOY), "report", *map(str, words)]


def written(work, *folders):
    page = work / "page.html"
    done = subprocess.run(report(*folders, "-o", page, "--force"), cwd=work, timeout=60, text=True, capture_output=True)
    runs.check(done.returncode == 0, f"report: exit {done.returncode}\n{done.stderr}")
    text = page.read_text()
    return text, json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', text, re.S).group(1))


def real_runs(work):
    """A run of two ranks, an ensemble and a farm, on one page."""
    runs.run(TINY / "mlp.yaml", work / "two", ["strategy=ddp"], ranks=2)
    runs.run(TINY / "ensemble.yaml", work / "members")
    runs.run(report_runs.farm(work), work / "farm")
    text, data = written(work, work / "two", work / "members", work / "farm")
    names = [run["name"] for run in data["runs"]]
    runs.check(names[:2] == ["two", "members"] and len(names) == 6, f"runs of the page: {names}")
    runs.check(len(data["sentences"]) == 3 and all(one.endswith(".") for one in data["sentences"]), data["sentences"])
    two, members = data["runs"][:2]
    for curve in ("loss", "learning_rate", "gradient_norm", "samples_per_second"):
        runs.check(len(two["training"][curve]["y"]) > 3, f"curve {curve}: {two['training'].get(curve)}")
    runs.check(len(two["evaluation"]["accuracy"]["y"]) == 2, f"evaluations: {two['evaluation']}")
    runs.check(sum(two["evaluation"]["accuracy"]["d"]) == 26, f"steps: {two['evaluation']['accuracy']}")
    runs.check(len(members["members"]["loss"]) == 4, f"members: {list(members['members'])}")
    runs.check([one["rank"] for one in two["placement"]] == [0, 1] and two["topology"][0]["nodes"], two["placement"])
    farm = data["farms"][0]
    runs.check([row["place"] for row in farm["rows"]] == [1, 2, 3, 4], f"leaderboard: {farm['rows']}")
    runs.check({row["run"] for row in farm["rows"]} == {2, 3, 4, 5}, f"runs of the leaderboard: {farm['rows']}")
    runs.check(set(farm["rows"][0]["grid"]) == {"optimizer.lr", "seed"}, f"grid: {farm['rows'][0]}")
    runs.check(len(farm["schedule"]) == 4 and all(bar["end"] == "done" for bar in farm["schedule"]), farm["schedule"])
    keys = [one["key"] for one in data["differences"]["keys"]]
    runs.check("optimizer.lr" in keys and "name" not in keys, f"differing keys: {keys}")
    runs.check(len(text) < 2e6, f"the page has {len(text)} characters")
    elsewhere = re.findall(r'(?:src|href)="(?!#|data:)[^"]*"|@import|url\(',
                           re.sub(r"<script.*?</script>", "", text, flags=re.S))
    runs.check(not elsewhere, f"the page asks for other files: {elsewhere}")
    print(f"real runs: {len(names)} runs, {len(text) // 1024} KiB; {data['sentences'][1]}", flush=True)


def hostile(work):
    """Texts that are HTML, and values that are not finite."""
    folder = report_runs.hostile(work / "hostile")
    text, data = written(work, folder)
    runs.check("<img" not in text and "<script>alert" not in text, "a text of a run is HTML")
    runs.check(text.count("</script>") == 2, f"{text.count('</script>')} ends of scripts")
    run = data["runs"][0]
    runs.check(run["training"]["loss"]["bad"] == 3 and None in run["training"]["loss"]["y"],
               f"not finite: {run['training']}")
    runs.check(run["damaged_lines"] == 2, f"damaged lines: {run.get('damaged_lines')}")
    print("hostile: names, metrics and messages stay texts; nan and inf are gaps", flush=True)


def large(work):
    """20 runs with 10,000 points each: the page is small, and takes little time to write."""
    folders = report_runs.many(work / "many", 20, 10000)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    text, data = written(work, *folders)
    took, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    runs.check(cpu <= 3, f"writing took {cpu:.2f} s of CPU time ({took:.2f} s)")
    runs.check(len(text) < 2e6, f"the page has {len(text)} characters")
    curve = data["runs"][7]["training"]["loss"]
    runs.check(curve["n"] == 10000 and 200 <= len(curve["y"]) <= 1000, f"{curve['n']} points became {len(curve['y'])}")
    print(f"large: 20 runs with 10,000 points in {cpu:.2f} s of CPU time ({took:.2f} s), {len(text) / 1e6:.2f} MB",
          flush=True)
    return folders


def unfinished(work, good):
    """A run whose convoy was killed, and one without any record."""
    folder = work / "killed"
    shutil.copytree(good, folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary.update(status="running", metrics={}, steps=None)
    (folder / "summary.json").write_text(json.dumps(summary))
    _, data = written(work, folder)
    runs.check(data["runs"][0]["status"] == "ended" and "the same command resumes it" in data["sentences"][2],
               data["sentences"])
    runs.check(data["runs"][0]["metrics"]["accuracy"]["best"] > 0, "metrics of an unfinished run")
    (folder / "metrics.jsonl").unlink()
    _, data = written(work, folder)
    runs.check(data["sentences"][1] == "It has recorded no metric yet.", data["sentences"])
    print("unfinished: a killed run, and one without records", flush=True)


def refusals(work, good):
    page = work / "mine.html"
    for title, code, words, line in (
            ("no folder", 64, ["runs/none", "no such folder", "convoy runs"], report(work / "runs/none", "-o", page)),
            ("a file", 64, ["is no folder"], report(good / "summary.json", "-o", page)),
            ("a folder of runs", 64, ["has runs, but is none itself", "convoy report", "two"],
             report(work, "-o", page)),
            ("no run there", 64, ["holds no run"], report(good / "logs", "-o", page)),
            ("another ending", 64, [".html"], report(good, "-o", work / "mine.txt")),
            ("no such folder for the page", 73, ["mkdir -p"], report(good, "-o", work / "none" / "mine.html")),
            ("a port without a server", 64, ["--serve"], report(good, "--port", "80"))):
        runs.refused(title, code, words, line)
        runs.check(not page.exists(), f"{title}: wrote {page}")
    page.write_text("mine")
    runs.refused("an existing file", 73, ["exists already", "--force"], report(good, "-o", page))
    runs.check(page.read_text() == "mine", "an existing file was changed")
    limited = ["bash", "-c", 'ulimit -f 16; exec "$@"', "bash", *report(good, "-o", page, "--force")]
    runs.refused("no room", 74, ["ulimit -f"], limited)
    runs.check(page.read_text() == "mine", "a failed report replaced the file")
    runs.check([one.name for one in work.iterdir() if "tmp-" in one.name] == [], "a temporary file is left")
    damaged = work / "damaged"
    shutil.copytree(good, damaged)
    (damaged / "summary.json").write_text('{"status": "do')
    runs.refused("a damaged summary", 65, ["damaged", "summary.json"], report(damaged, "-o", page, "--force"))
    runs.check(page.read_text() == "mine", "a damaged summary replaced the file")
    print("refusals: exit codes and messages; an existing file is kept", flush=True)


@contextlib.contextmanager
def server_of(work, folder):
    """A server for the run on a free port: the process and its port."""
    process = subprocess.Popen(report(folder, "--serve", "--port", "0"), cwd=work, text=True, stdout=subprocess.PIPE)
    try:
        yield process, int(re.search(r"http://127.0.0.1:(\d+)/", process.stdout.readline()).group(1))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def request(port, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def served(work, folder):
    """The server answers its own names only, on the loopback interface, and follows a run that is training."""
    with server_of(work, folder) as (server, port):
        runs.check(runs.listeners([server.pid]) == [f"0100007F:{port:04X}"],
                   f"listens on {runs.listeners([server.pid])}")
        status, text, headers = request(port, "/")
        runs.check(status == 200 and "connect-src 'self'" in text, f"/: {status}")
        runs.check(headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store", f"{headers}")
        status, text, _ = request(port, "/data.json?x=1")
        runs.check(status == 200 and len(json.loads(text)["sentences"]) == 3, f"/data.json: {status}")
        runs.check(request(port, "/", f"localhost:{port}")[0] == 200, "localhost")
        for title, expected, answer in (("rebinding", 403, request(port, "/", f"evil.example:{port}")),
                                        ("another port", 403, request(port, "/", "127.0.0.1:1")),
                                        ("another path", 404, request(port, "/../etc/passwd")),
                                        ("another method", 405, request(port, "/", method="POST"))):
            runs.check(answer[0] == expected, f"{title}: {answer[0]}, expected {expected}")
        with socket.create_connection(("127.0.0.1", port)) as idle, \
                socket.create_connection(("127.0.0.1", port)) as wrong:
            wrong.sendall(b"nonsense\r\n\r\n")
            runs.check(wrong.recv(99).startswith(b"HTTP/1.1 400"), "a malformed request")
            runs.check(request(port, "/")[0] == 200, "beside an idle connection")
            idle.close()
        runs.refused("a used port", 75, [str(port), "--port"], report(folder, "--serve", "--port", port))
        server.send_signal(signal.SIGINT)
        runs.check(server.wait(10) == 0, f"Ctrl-C: exit {server.returncode}")
    print("served: on the loopback interface, for its own names; Ctrl-C ends it with 0", flush=True)


def follows(work):
    """The served data follows a run that trains."""
    output = work / "live"
    training = runs.start(TINY / "mlp.yaml", output, ["train.epochs=100000", "train.checkpoint_every=never"])
    try:
        metrics = output / "metrics.jsonl"
        runs.wait_for(lambda: metrics.exists() and metrics.stat().st_size > 2000, 60, "the run trains")
        with server_of(work, output) as (server, port):
            def points():
                run = json.loads(request(port, "/data.json")[1])["runs"][0]
                runs.check(run["status"] == "running", f"status {run['status']}")
                return run["training"]["loss"]["n"]

            first = points()
            runs.wait_for(lambda: points() > first, 20, "the data follows the run")
            server.send_signal(signal.SIGTERM)
            runs.check(server.wait(10) == 0, f"TERM: exit {server.returncode}")
    finally:
        training.terminate()
        training.wait(30)
    print("follows: the data of a run that trains", flush=True)


def main():
    with runs.workspace() as work:
        real_runs(work)
        hostile(work)
        large(work)
        unfinished(work, work / "two")
        refusals(work, work / "two")
        served(work, work / "two")
        follows(work)


main()
