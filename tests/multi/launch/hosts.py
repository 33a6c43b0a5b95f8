"""Ranks on several hosts, simulated by network namespaces: by mpirun and by convoy itself; a host that crashes or is
cut off, and a remote shell that dies."""
# labels: multi faults
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import simulated_hosts as sim
import runs

config = runs.TOP / "configs" / "tiny" / "mlp.yaml"
SHORT = ["strategy.name=ddp", "train.epochs=1", "launch.cores_per_rank=1", "launch.bind=none"]
HEARTBEAT, GRACE = 3, 2
# Trains until a test causes a fault. Each step is logged, so every rank reports its position.
LONG = ["strategy.name=ddp", "train.epochs=1000000", "train.evaluate_every=never", "train.checkpoint_every=never",
        "train.log_every=1", "launch.bind=none", "launch.cores_per_rank=1", f"launch.heartbeat={HEARTBEAT}s",
        "launch.collective=30s", f"launch.failure_grace={GRACE}s", "launch.rendezvous=60s"]
RSH = f"launch.remote_shell=[{sim.HOSTS},rsh]"
MPIRUN = ["mpirun", "--host", "nodea1:1,nodea2:1", "-n", "2", "--bind-to", "none", "--mca", "plm_rsh_agent",
          f"{sim.HOSTS} rsh"]


def line(output, sets, hosts=(), under=(), inject=()):
    command = runs.command(config, output, sets, under=under, inject=inject)
    return sim.on("nodea1", *command, *(["--hosts", hosts] if hosts else []))


def whole(title, output, sets, expect=0, **how):
    done = subprocess.run(line(output, sets, **how), cwd=runs.TOP, env=runs.environment(), timeout=90,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == expect, f"{title}: exit {done.returncode}, not {expect}\n{done.stdout[-3000:]}")
    return done.stdout


def trains(title, output, sets, hosts_of_ranks, backend, **how):
    console = whole(title, output, sets, **how)
    summary = runs.summary(output)
    runs.check(summary["status"] == "done" and summary["backend"] == backend, f"{title}: {summary}")
    found = [rank["host"] for rank in summary["ranks"]]
    runs.check(found == hosts_of_ranks, f"{title}: ranks on {found}, not {hosts_of_ranks}")
    runs.check((output / "logs" / "rank1.log").exists(), f"{title}: no log of rank 1")
    print(f"{title}: done", flush=True)
    return console


def environment_of(pid):
    return dict(entry.split("=", 1) for entry in pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0")
                if "=" in entry)


def mine():
    """Returns every process of convoy on these hosts: only these have the folder of the hosts in their environment."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.environ["CONVOY_HOSTS_DIR"].encode() in (entry / "environ").read_bytes() and \
                    (entry / "comm").read_text().startswith("convoy"):
                found.append(int(entry.name))
    return runs.alive(found)


def begin(title, output, sets, **how):
    console = open(f"{output}.console", "w")
    process = subprocess.Popen(line(output, sets, **how), cwd=runs.TOP, env=runs.environment(), stdout=console,
                               stderr=subprocess.STDOUT)
    try:
        runs.training(output, step=20)
    except SystemExit:
        process.kill()
        print(pathlib.Path(f"{output}.console").read_text()[-3000:])
        raise
    return process


def ends(title, process, output, codes, within, names, started):
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.1, within - (time.monotonic() - started)))
    console = pathlib.Path(f"{output}.console").read_text()
    if process.poll() is None:
        process.kill()
        runs.fail(f"{title}: still running after {within} s\n{console[-2000:]}")
    seconds = time.monotonic() - started
    summary = runs.summary(output)
    runs.check(summary["exit_code"] in codes,
               f"{title}: summary says {summary['exit_code']}\n{summary['failure']}\n{console[-2000:]}")
    failure = summary["failure"]
    runs.check(names in (failure["host"] or "") or names in failure["message"],
               f"{title}: does not name {names}: {failure}")
    print(f"{title}: {summary['exit_code']} after {seconds:.1f} s: {failure['message']}", flush=True)


def nothing_left(title, within):
    left = []
    end = time.monotonic() + within
    while time.monotonic() < end:
        left = mine()
        if not left:
            return
        time.sleep(0.1)
    names = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in left]
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    runs.fail(f"{title}: still alive: {names}")


def patience(text):
    """Returns the seconds after which mpirun, with the options in `text`, gives up a host at the earliest."""
    interval, probes = (int(re.search(rf"oob_tcp_keepalive_{name} (\d+)", text)[1]) for name in ("intvl", "probes"))
    return interval * probes


def train_everywhere(folder):
    both = ["nodea1", "nodea2"]
    for backend in ("mpi", "gloo"):
        trains(f"mpirun, {backend}", folder / f"mpirun-{backend}", [*SHORT, f"backend={backend}"], both, backend,
               under=MPIRUN)
        console = trains(f"--hosts, {backend}", folder / f"hosts-{backend}",
                         [*SHORT, "launch.ranks=2", f"backend={backend}", RSH], both, backend, hosts="nodea1,nodea2")
        if backend == "mpi":
            # If mpirun gives up before the heartbeat does, the summary cannot name host and rank.
            launch = runs.summary(folder / "hosts-mpi")["config"]["launch"]
            runs.check(patience(console) > launch["heartbeat"] + launch["failure_grace"],
                       f"mpirun gives up a host after {patience(console)} s")
    trains("--hosts with shares", folder / "shares", [*SHORT, "backend=gloo", RSH], ["nodea1", "nodea2", "nodea2"],
           "gloo", hosts="nodea1:1,nodea2:2")
    console = trains("IPv6", folder / "six",
                     [*SHORT, "backend=gloo", "launch.address=fd77::/64", "launch.ranks=2", RSH], both, "gloo",
                     hosts="nodea1-6,nodea2-6")
    # Storage that the hosts do not share: no checkpoint, or only rank 0 has one.
    private = pathlib.Path(subprocess.run([sim.HOSTS, "private"], capture_output=True, text=True).stdout.strip())
    whole("no shared folder", private / "run", [*SHORT, "launch.ranks=2", "backend=gloo", RSH], hosts="nodea1,nodea2")
    seen = subprocess.run(sim.on("nodea1", "ls", private / "run", private / "run" / "checkpoints"), capture_output=True,
                          text=True).stdout
    runs.check("summary.json" in seen and "latest" in seen, f"no shared folder: {seen}")
    print("no shared folder: done", flush=True)


def with_bridges(folder):
    """Gives each host a container bridge with the same address, on which Open MPI alone would wait for ever."""
    for host in ("nodea1", "nodea2"):
        subprocess.run(sim.on(host, "sh", "-c",
                              "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && "
                              "ip link set docker0 up"), check=True)
    for backend in ("mpi", "gloo"):
        trains(f"bridges, {backend}", folder / f"bridges-{backend}",
               [*SHORT, "launch.ranks=2", f"backend={backend}", RSH], ["nodea1", "nodea2"], backend,
               hosts="nodea1,nodea2")
    for host in ("nodea1", "nodea2"):
        subprocess.run(sim.on(host, "ip", "link", "del", "docker0"), check=True)


def over_ssh(folder):
    """Uses ssh as remote shell, if a server for it is installed."""
    server = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
    if not server or not shutil.which("ssh"):
        print("over ssh: not tried, no sshd here (Debian: apt-get install openssh-server)")
        return
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "user.pub").rename(folder / "authorized")
    (folder / "known").write_text("nodea2 " + (folder / "host.pub").read_text())
    (folder / "sshd").write_text(f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nPidFile none\n"
                                 "UsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n")
    os.makedirs("/run/sshd", exist_ok=True)  # the server locks this folder, as the package's service creates it
    daemon = subprocess.Popen(sim.on("nodea2", server, "-D", "-e", "-f", folder / "sshd"), stderr=subprocess.DEVNULL)
    try:
        def ssh(known):
            return f"launch.remote_shell=[ssh, -oBatchMode=yes, -oUserKnownHostsFile={known}, -i, {folder}/user]"
        runs.wait_for(lambda: subprocess.run(sim.on("nodea1", "bash", "-c", "exec 3<>/dev/tcp/nodea2/22"),
                                             stderr=subprocess.DEVNULL).returncode == 0, 5, "sshd on nodea2")
        sets = [*SHORT, "launch.ranks=3", "backend=gloo"]
        trains("over ssh", folder / "ssh", [*sets, ssh(folder / "known")], ["nodea1", "nodea2", "nodea2"], "gloo",
               hosts="nodea1:1,nodea2:2")
        said = whole("an unknown host key", folder / "unknown", [*sets, ssh("/dev/null")], expect=75,
                     hosts="nodea1:1,nodea2:2")
        runs.check("Host key verification failed" in said, said)
    finally:
        daemon.kill()
        daemon.wait()


def refusals(folder):
    sets = [*SHORT, "launch.ranks=2", "launch.rendezvous=5s"]
    said = whole("no such host", folder / "no",
                 [*sets, "launch.remote_shell=[/bin/sh, -c, 'echo who is that >&2; exit 255', --]"], expect=75,
                 hosts="nodea1,nowhere")
    runs.check("nowhere" in said and "who is that" in said, said)
    runs.check(runs.summary(folder / "no")["failure"]["host"] == "nowhere", runs.summary(folder / "no"))
    other = folder / "other-version"
    other.write_text("#!/bin/sh\necho 'convoy-hello {\"version\": \"0.0.1\", "
                     "\"problem\": \"is version 0.0.1 there\"}'\n")
    other.chmod(0o755)
    said = whole("another version", folder / "version", [*sets, f"launch.remote_shell=[{other}]"], expect=75,
                 hosts="nodea1,nodea2")
    runs.check("0.0.1" in said and "nodea2" in said, said)
    said = whole("one host twice", folder / "twice", [*sets, RSH], expect=64, hosts="nodea2,nodea2-6")
    runs.check("are the same host" in said, said)
    said = whole("too few ranks", folder / "few", [*sets[:-2], "launch.ranks=1", RSH], expect=64, hosts="nodea1,nodea2")
    runs.check("one rank" in said and "--ranks 2" in said, said)
    lonely = folder / "lonely"
    lonely.write_text("#!/bin/sh\nhost=$1; shift\nexec unshare -n -u sh -c \"hostname $host; $*\"\n")
    lonely.chmod(0o755)
    # The mesh gives the number of ranks, not launch.ranks.
    said = whole("a host without a network", folder / "lonely-run",
                 [*SHORT[1:], "backend=gloo", "launch.rendezvous=5s", f"launch.remote_shell=[{lonely}]",
                  "strategy={name: hybrid, mesh: {data: 4}}"], expect=75, hosts="nodea1,elsewhere")
    runs.check("no address that all hosts can reach" in said and "elsewhere no network" in said, said)
    print("refusals: reported", flush=True)


# Seconds in which a run ends after a host is lost: the time limit of a heartbeat, the grace period and a margin.
BOUND = HEARTBEAT + GRACE + 4
BOTH = {"hosts": "nodea1,nodea2"}


def crashed(folder):
    output = folder / "crash"
    process = begin("crash", output, [*LONG, "launch.ranks=2", "backend=gloo", RSH], **BOTH)
    rank = next(pid for pid in mine() if pathlib.Path(f"/proc/{pid}/comm").read_text() == "convoy-rank\n")
    secret = environment_of(rank)["CONVOY_CHANNEL"].split(",")[-1].split()[-1]
    lines = [(p / "cmdline").read_bytes() for p in pathlib.Path("/proc").glob("[0-9]*") if (p / "cmdline").exists()]
    runs.check(len(secret) >= 16 and not any(secret.encode() in text for text in lines),
               "the secret is in a command line")
    started = time.monotonic()
    sim.tell("crash", "nodea2")
    ends("--hosts, nodea2 crashed", process, output, (110, 75), BOUND, "nodea2", started)
    nothing_left("--hosts, nodea2 crashed", 2)
    sim.tell("heal", "nodea2")


def cut_off(folder):
    output = folder / "cut"
    process = begin("cut", output, [*LONG, "launch.ranks=2", "backend=mpi", RSH], **BOTH)
    started = time.monotonic()
    sim.tell("cut", "nodea2")
    ends("--hosts with mpi, nodea2 cut off", process, output, (110, 75), BOUND, "nodea2", started)
    nothing_left("--hosts with mpi, nodea2 cut off", BOUND)
    sim.tell("heal", "nodea2")


def first_crashed(folder):
    """Crashes the host with convoy's supervisor: a remaining process writes the final status into the shared folder."""
    output = folder / "first"
    process = begin("first", output, [*LONG, "launch.ranks=2", "backend=gloo", RSH], **BOTH)
    sim.tell("crash", "nodea1")
    process.wait()
    nothing_left("--hosts, nodea1 crashed", BOUND)
    summary = runs.summary(output)
    runs.check(summary["exit_code"] in (75, 110) and "10.77.0.1" in summary["failure"]["message"],
               f"nodea1 crashed: {summary}")
    print(f"--hosts, nodea1 crashed: {summary['exit_code']}: {summary['failure']['message']}", flush=True)
    sim.tell("heal", "nodea1")


def shell_killed(folder):
    output = folder / "shell"
    process = begin("shell", output, [*LONG, "launch.ranks=2", "backend=gloo", RSH], **BOTH)
    shells = runs.named(runs.descendants(process.pid), "hosts")
    started = time.monotonic()
    os.kill(shells[0], signal.SIGKILL)
    ends("the remote shell killed", process, output, (75, 137), GRACE + 4, "nodea2", started)
    nothing_left("the remote shell killed", 3)


def convoy_killed(folder):
    output = folder / "head"
    process = begin("head", output, [*LONG, "launch.ranks=2", "backend=gloo", RSH], **BOTH)
    process.send_signal(signal.SIGKILL)
    process.wait()
    nothing_left("convoy itself killed", 3)
    print("convoy itself killed: nothing left", flush=True)


def stopped(folder):
    output = folder / "stop"
    process = begin("stop", output, [*LONG, "launch.ranks=2", "backend=gloo", RSH], **BOTH)
    process.send_signal(signal.SIGTERM)
    runs.check(runs.end(process, 20) == 143, "SIGTERM: exit")
    runs.check(runs.newest_checkpoint(output).exists(), "SIGTERM: no checkpoint")
    nothing_left("SIGTERM", 3)
    print("SIGTERM: all hosts stopped, with a checkpoint", flush=True)


def restarted(folder):
    """A rank is killed on the other host: all of them restart from the checkpoint."""
    more = ["launch.ranks=2", "train.checkpoint_every=5 steps", "launch.max_restarts=1", "launch.backoff=0.2s", RSH]
    for backend in ("gloo", "mpi"):
        outputs = {}
        for inject in ((), ("kill:rank=1@step=8",)):
            outputs[inject] = folder / f"restarted-{backend}-{len(inject)}"
            trains(f"{backend}: {inject or 'undisturbed'}", outputs[inject], [*SHORT, *more, f"backend={backend}"],
                   ["nodea1", "nodea2"], backend, hosts="nodea1,nodea2", inject=inject)
        summary = runs.summary(outputs[inject])
        (first,) = summary["attempts"]
        runs.check(summary["attempt"] == 1 and first["exit_code"] == 137 and first["checkpoint"] == 5 and
                   (first["failure"]["rank"], first["failure"]["host"]) == (1, "nodea2"),
                   f"the first attempt's end: {first}")
        runs.check(len({str(runs.weights(output)) for output in outputs.values()}) == 1,
                   "weights differ from an undisturbed run")
        nothing_left("restarted", 3)


def mpirun_host_crashed(folder):
    output = folder / "mpirun"
    # A little more than the heartbeat's limit, as in the docs.
    under = [*MPIRUN, "--mca", "oob_tcp_keepalive_time", "2", "--mca", "oob_tcp_keepalive_intvl", "1", "--mca",
             "oob_tcp_keepalive_probes", "2"]
    process = begin("mpirun", output, [*LONG, "backend=mpi"], under=under)
    started = time.monotonic()
    sim.tell("crash", "nodea2")
    ends("mpirun, nodea2 crashed", process, output, (110, 75), BOUND + 10, "nodea2", started)
    nothing_left("mpirun, nodea2 crashed", 3)
    sim.tell("heal", "nodea2")


PARTS = (train_everywhere, with_bridges, over_ssh, refusals, crashed, cut_off, first_crashed, shell_killed,
         convoy_killed, stopped, restarted, mpirun_host_crashed)


if __name__ == "__main__":
    only = sys.argv[1:]
    with sim.hosts(2), runs.workspace() as folder:
        for part in PARTS:
            if not only or part.__name__ in only:
                part(folder)
