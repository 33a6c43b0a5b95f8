"""Another process fills the disk while ranks train, on a file system of 24 MiB. The failure is reported completely, no
temporary files remain, and with space again the run resumes: by the same command, or by launch.max_restarts. Also
with launch.min_ranks, if a rank is lost at that time. Skipped if no file system can be mounted."""
import os
import sys

import _faults
from _faults import runs

# Use a mount namespace, so that the file system ends with it; copy results out of it. `while_full`: commands of the
# shell.
SCRIPT = """
disk=$1 seen=$2 while_full=$3; shift 3
mount -t tmpfs -o size=24m convoy-test "$disk" || exit 200
"$@" & run=$!
tries=0
until [ -f "$disk/run/checkpoints/latest" ] || [ $((tries += 1)) -gt 600 ]; do sleep 0.1; done
cat /dev/zero >"$disk/filler" 2>/dev/null
eval "$while_full"
wait $run; echo $? >"$seen/full"
cp "$disk/run/summary.json" "$seen/summary.json"
ls -A "$disk/run" >"$seen/names"
rm -f "$disk/filler"
timeout 60 "$@" --set train.max_steps=60 >"$seen/again" 2>&1; echo $? >"$seen/after"
"""
NAMESPACE = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
RANKS = "$(cat /proc/$run/task/$run/children)"


def filled(folder, title, while_full, exit_code, **options):
    """Returns the finished run, whose files are in `seen`, and its summary while the disk was full."""
    run = _faults.Run(folder, "gloo", title=title, checkpoint="50 steps", **options)
    disk, seen = run.folder / "disk", run.folder / "seen"
    disk.mkdir()
    seen.mkdir()
    run.output = disk / "run"
    run.start(under=[*NAMESPACE, "sh", "-c", SCRIPT, "sh", str(disk), str(seen), while_full])
    run.check(run.process.wait(timeout=150) == 0, "the script did not end")
    run.output = seen
    ended = (seen / "full").read_text().strip()
    run.check(ended == str(exit_code), f"exit {ended}, expected {exit_code}")
    hidden = [name for name in (seen / "names").read_text().split() if name.startswith(".") and name != ".lock"]
    run.check(not hidden, f"left in the folder: {hidden}")
    return run, runs.summary(seen)


def reported(folder):
    run, summary = filled(folder, "a full disk", "", 74, sets=["train.log_every=1"])
    run.check(summary["status"] == "failed" and summary["exit_code"] == 74, "no summary of a failure")
    run.check(summary["failure"]["cause"] == "io" and "No space left" in summary["failure"]["message"], "another cause")
    again = (run.output / "again").read_text()
    run.check((run.output / "after").read_text().split() == ["0"], f"with room again: {again[-800:]}")
    print(f"{run.title}: {summary['failure']['message'][:150]}")


def restarted(folder):
    """Space returns while the run waits for its restart."""
    run, summary = filled(folder, "a full disk, max_restarts", 'sleep 2; rm "$disk/filler"', 0, steps=4000,
                          sets=["launch.max_restarts=3", "launch.backoff=4s"])
    causes = [attempt["failure"]["cause"] for attempt in summary["attempts"]]
    run.check(summary["status"] == "done" and causes and set(causes) == {"io"}, f"attempts that ended by {causes}")
    print(f"{run.title}: {len(causes)} restarts")


def lost_rank(folder):
    """The others need room for the files of their positions: the attempt ends, and the next one begins with space."""
    kill = f'kill -9 "$(echo {RANKS} | cut -d" " -f2)"; sleep 2; rm "$disk/filler"'
    run, summary = filled(folder, "a full disk, min_ranks", kill, 0, steps=4000, ranks=3,
                          sets=["launch.min_ranks=1", "launch.max_restarts=3", "launch.backoff=4s",
                                "train.log_every=1000000", "train.on_save_error=continue", "log.tensorboard=false"])
    causes = [attempt["failure"]["cause"] for attempt in summary["attempts"]]
    run.check(summary["status"] == "done" and causes and set(causes) == {"io"}, f"attempts that ended by {causes}")
    print(f"{run.title}: {summary['attempts'][0]['failure']['message'][-150:]}")


with runs.workspace() as folder:
    tried = runs.subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", str(folder)], capture_output=True,
                                text=True)
    if tried.returncode:
        print(f"skipped: {tried.stderr.strip()}")
        sys.exit(77)
    for case in (reported, restarted, lost_rank):
        case(folder)
