"""Cases 1 and 3 where ranks gather their parameters from each other: a rank that throws or is killed between two collectives
is named, and nobody waits for its share."""
import sys

import _faults
from _faults import runs

_faults.requirements()

with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for rank, shard in ((0, "parameters"), (1, "parameters"), (1, "gradients")):
            for fault, code, kind in (("throw", 70, "training"), ("kill", 137, "signal")):
                run = _faults.Run(folder, backend, fault, rank=rank, title=f"{backend}: {shard}: {fault} on rank {rank}")
                text = run.config.read_text()
                run.check("{name: ddp}" in text, "the configuration has another strategy")
                run.config.write_text(text.replace("{name: ddp}", f"{{name: fsdp, shard: {shard}}}"))
                more = {"signal_number": 9} if fault == "kill" else {"says": ["the model's own words"]}
                run.start().ends(code, within=1 + _faults.GRACE, kind=kind, rank=rank, **({"step": 20} | more))
