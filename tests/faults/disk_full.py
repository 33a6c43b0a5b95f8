"""The disk is full when a checkpoint is written, flushed or closed. All ranks report it, the older checkpoint
remains, and no temporary files remain."""
import sys

import _faults
from _faults import runs

with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        # Shards: each rank writes a part. Only the last rank finds no space.
        for part in ("write", "fsync", "close") if backend == "gloo" else ("write",):
            run = _faults.Run(folder, backend, f"enospc:{part}:rank=last@save=2", strategy="{name: fsdp}",
                              checkpoint="10 steps", title=backend)
            run.start().ends(74, within=_faults.COLLECTIVE, kind="io", says=["rank 1", "No space left"])
            saved = sorted(path.name for path in (run.output / "checkpoints").iterdir())
            run.check(saved == ["latest", "step-10"], f"in checkpoints: {saved}")
