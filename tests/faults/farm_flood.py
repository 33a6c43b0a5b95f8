"""A pipeline writes 100 MB without a newline; nothing blocks, and its logs are capped."""
# timeout: 120
import pathlib
import shutil

import _farm
from _faults import runs

FLOOD = 100_000_000

# The rank program of one pipeline prints much text before it trains.
RANK = """#!/bin/sh
if mkdir "{folder}/flooded" 2>/dev/null; then head -c {flood} /dev/zero | tr '\\0' x >&2; fi
exec "{rank}" "$@"
"""

with runs.workspace() as folder:
    copies = folder / "program"
    copies.mkdir()
    shutil.copy(runs.CONVOY, copies / "convoy")
    rank = copies / "convoy-rank"
    rank.write_text(RANK.format(folder=folder, flood=FLOOD, rank=(runs.BUILD / "convoy-rank").resolve()))
    rank.chmod(0o755)
    farm = _farm.Farm(folder, {"a": "", "b": "config: {seed: 5}"}, title="flood")
    farm.start(program=copies / "convoy").finished(0)
    sizes = {str(log.relative_to(farm.output)): log.stat().st_size for log in pathlib.Path(farm.output).rglob("*.log")}
    name, other = sorted(("a", "b"), key=lambda name: -sizes[f"pipelines/{name}/logs/rank0.log"])
    loud = sizes[f"pipelines/{name}/logs/rank0.log"]
    farm.check(loud <= 65 << 20, f"the rank's log has {loud} bytes")
    farm.check(sizes[f"pipelines/{name}/logs/convoy.log"] <= 5 << 20, f"{sizes}")
    farm.check(loud > 1 << 20, "there was no flood")
    for path in (f"pipelines/{name}/logs/rank0.log", f"pipelines/{name}/logs/convoy.log"):
        with open(farm.output / path, "rb") as log:
            log.seek(-4096, 2)
            farm.check(b"this log is full" in log.read(), f"{path} does not say that it is full")
    farm.check((farm.folder / "console").stat().st_size < 1 << 20, "the farm's own console was flooded")
    farm.equals_alone(other, "seed: 1" if other == "a" else "seed: 5")
    print(f"100 MB without a newline: {loud >> 20} MB kept, nothing blocked")
