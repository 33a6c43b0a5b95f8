"""P4: a pipeline writes 100 MB without a newline; nothing blocks, and its logs are capped."""
# timeout: 120
import pathlib
import shutil

import _farm
from _faults import runs

FLOOD = 100_000_000

# The rank program of the first pipeline that starts says much before it trains.
RANK = """#!/bin/sh
if mkdir "{folder}/flooded" 2>/dev/null; then head -c {flood} /dev/zero | tr '\\0' x >&2; fi
exec "{rank}" "$@"
"""

with runs.workspace() as folder:
    beside = folder / "program"
    beside.mkdir()
    shutil.copy(runs.CONVOY, beside / "convoy")
    rank = beside / "convoy-rank"
    rank.write_text(RANK.format(folder=folder, flood=FLOOD, rank=(runs.BUILD / "convoy-rank").resolve()))
    rank.chmod(0o755)
    farm = _farm.Farm(folder, {"loud": "priority: 1", "quiet": "config: {seed: 5}"}, title="flood")
    farm.start(program=beside / "convoy").finished(0)
    sizes = {str(log.relative_to(farm.output)): log.stat().st_size for log in pathlib.Path(farm.output).rglob("*.log")}
    loud = sizes["pipelines/loud/logs/rank0.log"]
    farm.check(loud <= 65 << 20, f"the rank's log has {loud} bytes")
    farm.check(sizes["pipelines/loud/logs/convoy.log"] <= 5 << 20, f"{sizes}")
    farm.check(loud > 1 << 20, "there was no flood")
    for name in ("pipelines/loud/logs/rank0.log", "pipelines/loud/logs/convoy.log"):
        with open(farm.output / name, "rb") as log:
            log.seek(-4096, 2) if sizes[name] > 4096 else None
            farm.check(b"this log is full" in log.read(), f"{name} does not say that it is full")
    farm.check((farm.folder / "console").stat().st_size < 1 << 20, "the farm's own console was flooded")
    farm.equals_alone("quiet", "seed: 5")
    print(f"100 MB without a newline: {loud >> 20} MB kept, nothing blocked")
