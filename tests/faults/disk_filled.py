"""Another process fills the disk while ranks train, on a file system of 24 MiB. The failure is reported completely, no
temporary files remain, and with space again the run resumes. Skipped if no file system can be mounted."""
import os
import sys

import _faults
from _faults import runs

# Use a mount namespace, so that the file system ends with it; copy results out of it.
SCRIPT = """
disk=$1 seen=$2; shift 2
mount -t tmpfs -o size=24m convoy-test "$disk" || exit 200
"$@" & run=$!
tries=0
until [ -f "$disk/run/checkpoints/latest" ] || [ $((tries += 1)) -gt 600 ]; do sleep 0.1; done
cat /dev/zero >"$disk/filler" 2>/dev/null
wait $run; echo $? >"$seen/full"
cp "$disk/run/summary.json" "$seen/summary.json"
ls -A "$disk/run" >"$seen/names"
rm "$disk/filler"
timeout 60 "$@" --set train.max_steps=60 >"$seen/again" 2>&1; echo $? >"$seen/after"
"""
NAMESPACE = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])

with runs.workspace() as folder:
    tried = runs.subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", str(folder)], capture_output=True, text=True)
    if tried.returncode:
        print(f"skipped: {tried.stderr.strip()}")
        sys.exit(77)
    run = _faults.Run(folder, "gloo", title="a full disk", checkpoint="50 steps", sets=["train.log_every=1"])
    disk, seen = folder / "disk", folder / "seen"
    disk.mkdir()
    seen.mkdir()
    run.output = disk / "run"
    run.start(under=[*NAMESPACE, "sh", "-c", SCRIPT, "sh", str(disk), str(seen)])
    run.check(run.process.wait(timeout=150) == 0, "the script did not end")
    run.output = seen
    run.check((seen / "full").read_text().split() == ["74"], f"exit {(seen / 'full').read_text()}, expected 74")
    summary = runs.summary(seen)
    run.check(summary["status"] == "failed" and summary["exit_code"] == 74, "no summary of a failure")
    run.check(summary["failure"]["cause"] == "io" and "No space left" in summary["failure"]["message"], "another cause")
    hidden = [name for name in (seen / "names").read_text().split() if name.startswith(".") and name != ".lock"]
    run.check(not hidden, f"left in the folder: {hidden}")
    again = (seen / "again").read_text()
    run.check((seen / "after").read_text().split() == ["0"], f"with room again: {again[-800:]}")
    print(f"{run.title}: {summary['failure']['message'][:150]}")
