"""convoy top: a farm and an ordinary run on a terminal and as text, its keys, its end, and the restored terminal."""
# timeout: 150
import contextlib
import fcntl
import os
import pathlib
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

FARM = """\
name: watched
device: cpu
model: {name: mlp, hidden: [16]}
data: {name: synthetic, rows: 4096, evaluate_rows: 64}
optimizer: {name: adam, lr: 0.01}
train: {epochs: 100000, max_steps: 1000000, batch: {global: 64}, evaluate_every: never, checkpoint_every: never, \
log_every: 50}
strategy:
  name: independent
  cores: 1
  max_parallel: 2
  pipelines:
    - {name: quick, config: {train: {max_steps: 20, evaluate_every: 20 steps}}}
    - {name: endless}
    - {name: breaks, priority: -1, config: {data: {name: table, path: DAMAGED}}}
    - {name: last, priority: -2, config: {train: {max_steps: 20}}}
"""
ENTER, LEAVE, CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"  # xterm's alternate screen, and its cursor


def top(folder, *more):
    return [str(runs.CONVOY), "top", str(folder), *more]


def once(folder):
    done = subprocess.run(top(folder, "--once"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=30)
    runs.check(done.returncode == 0, f"--once: exit {done.returncode}: {done.stderr}")
    return done.stdout


def row(text, name):
    found = [line.split() for line in text.splitlines() if line.startswith(name + " ")]
    runs.check(len(found) == 1, f"no row of {name}:\n{text}")
    return found[0]


class Terminal:
    """A pseudo-terminal of 100 columns that runs `convoy top`."""

    def __init__(self, folder, rows=24):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.seen = b""
        self.process = subprocess.Popen(top(folder, "--every", "0.3"), stdin=slave, stdout=slave, stderr=slave,
                                        env={**os.environ, "TERM": "xterm"}, start_new_session=True)

    def read(self, seconds=0.1):
        while select.select([self.master], [], [], seconds)[0]:
            data = os.read(self.master, 65536)
            if not data:
                break
            self.seen += data

    def expect(self, *words, seconds=30):
        """Waits until the screen shows all of them; ctrl-L redraws it, because otherwise only changes are drawn."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.3)
            if all(word.encode() in self.seen for word in words):
                return
            self.key(b"\x0c")
        runs.fail(f"waited in vain for {words} on the screen: {self.seen[-3000:]}")

    def key(self, key):
        self.seen = b""
        os.write(self.master, key)

    def ends(self, code, seconds=20):
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        ended = runs.end(self.process, 1)
        self.read(0.2)
        runs.check(ended == code, f"exit {ended}, expected {code}: {self.seen[-2000:]}")
        runs.check(LEAVE in self.seen and CURSOR in self.seen, f"the screen was not restored: {self.seen[-500:]}")
        runs.check(termios.tcgetattr(self.slave) == self.before, "the terminal has other settings than before")
        text = self.seen.split(LEAVE)[-1].decode()
        os.close(self.master)
        os.close(self.slave)
        return text


with runs.workspace() as folder, contextlib.ExitStack() as at_end:
    for wrong, word in ((folder / "nowhere", "no such folder"), (folder, "is no run folder")):
        refused = subprocess.run(top(wrong), stderr=subprocess.PIPE, text=True, timeout=30)
        runs.check(refused.returncode == 64 and word in refused.stderr,
                   f"{wrong}: {refused.returncode} {refused.stderr}")

    # The mistake is after the part of a file that is checked before ranks start.
    (folder / "damaged.csv").write_text("a,target\n" + 100000 * "1,x\n" + "no number,y\n")
    (folder / "farm.yaml").write_text(FARM.replace("DAMAGED", str(folder / "damaged.csv")))
    output = folder / "farm"
    farm = runs.start(folder / "farm.yaml", output)
    at_end.callback(lambda: farm.poll() is None and farm.kill())
    runs.wait_for((output / "summary.json").exists, 30, "the farm")
    screen = Terminal(output)
    at_end.callback(lambda: screen.process.poll() is None and screen.process.kill())
    runs.wait_for(lambda: once(output).count(" done ") == 2 and "failed:" in once(output), 90, "two done, one failed")
    runs.wait_for(lambda: runs.training(output / "pipelines" / "endless", 60, 100) or True, 61, "steps")
    time.sleep(1.5)  # two samples
    text = once(output)
    endless = row(text, "endless")
    runs.check(endless[1] == "training" and int(endless[2].split("/")[0]) > 20 and endless[2].endswith("/1000000"),
               f"{endless}")
    runs.check(endless[3].endswith("/s") and float(endless[4]) >= 0 and ":" in endless[5],
               f"rate, loss, eta: {endless}")
    runs.check(int(endless[6].rstrip("%")) > 0 and endless[7].endswith(("M", "G")), f"CPU and memory: {endless}")
    runs.check(row(text, "breaks")[1:3] == ["failed:", "corrupt_data"], f"{row(text, 'breaks')}")
    runs.check(row(text, "quick")[1:3] == ["done", "20/20"], f"{row(text, 'quick')}")

    runs.check(ENTER in (screen.read() or screen.seen), "no screen of its own")
    screen.expect("endless", "failed: corrupt_data", "q quit")
    screen.key(b"l")
    screen.expect("pipelines/endless/logs/")
    screen.key(b"\x1bOB\x1bOB")  # down
    screen.expect("pipelines/quick/logs/", "l close the log")
    screen.key(b"l")
    screen.expect("l its log")
    fcntl.ioctl(screen.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 6, 60, 0, 0))
    os.kill(screen.process.pid, signal.SIGWINCH)
    time.sleep(0.5)
    runs.check(screen.process.poll() is None, "a small screen ended it")
    screen.key(b"q")
    screen.ends(0)
    ended_by_signal = Terminal(output)
    ended_by_signal.expect("endless")
    ended_by_signal.process.terminate()
    ended_by_signal.ends(143)

    # The farm ends while it is watched, on a terminal and as text.
    watching = Terminal(output)
    watching.expect("endless")
    plain = subprocess.Popen(top(output, "--every", "0.3"), stdout=subprocess.PIPE, text=True)
    farm.send_signal(signal.SIGTERM)
    runs.end(farm, 60)
    said, _ = plain.communicate(timeout=30)
    for text in (watching.ends(0), said, once(output)):
        last = "watched: " + text.split("watched: ")[-1]
        runs.check("stopped by SIGTERM" in last and row(last.split("\n\n")[0], "quick") and "tries" in last,
                   f"the final state is not printed:\n{text}")

    # An ordinary run has one row, measured by top itself.
    single = folder / "single"
    (folder / "single.yaml").write_text(FARM.split("strategy:")[0] + "strategy: single\n")
    run = runs.start(folder / "single.yaml", single)
    at_end.callback(lambda: run.poll() is None and run.kill())
    runs.training(single, 60, 100)
    time.sleep(1.5)
    own = row(once(single), "watched")
    runs.check(own[1] == "training" and int(own[2].split("/")[0]) > 0 and own[7].endswith(("M", "G")), f"{own}")
    run.send_signal(signal.SIGKILL)
    run.wait()
    time.sleep(2)
    runs.check("was killed" in once(single), f"no process supervises it: {once(single)}")
    print("top: table, keys, log, end, signals and the terminal as it was")
