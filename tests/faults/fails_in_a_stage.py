"""Case 3 where a model is cut along its depth: any stage or device throws, all ranks end and the one that threw is named;
and case 1: a stage's rank is killed in the middle of a step."""
import os
import sys

import _faults
from _faults import runs

_faults.requirements()

MICRO = 4
WORDS = "the model's own words"

with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for block in (0, 1):
            run = _faults.Run(folder, backend, "throw", rank=block, block=block, at=20 * MICRO + 2,
                              strategy=f"{{name: pipeline, micro_batches: {MICRO}}}",
                              title=f"{backend}: stage {block} throws").start()
            name = ("hidden", "output")[block]
            run.ends(70, within=1 + _faults.GRACE, kind="training", rank=block, step=20,
                     says=[WORDS, f"block {block} ({name}), forward, step 20"])
            run = _faults.Run(folder, backend, "kill", rank=block, block=block, at=20 * MICRO + 2,
                              strategy=f"{{name: pipeline, micro_batches: {MICRO}}}",
                              title=f"{backend}: stage {block} is killed").start()
            run.ends(137, within=1 + _faults.GRACE, kind="signal", rank=block, signal_number=9)
    cores = sorted(os.sched_getaffinity(0))
    for block in (0, 1) if len(cores) > 1 else ():
        devices = f"['cores:{cores[0]}', 'cores:{cores[1]}']"
        run = _faults.Run(folder, "auto", "throw", rank=0, block=block, at=20 * MICRO + 2, ranks=1,
                          strategy=f"{{name: model_parallel, devices: {devices}, micro_batches: {MICRO}}}",
                          title=f"device {block} throws")
        run.config.write_text(run.config.read_text().replace("  cores_per_rank: 1\n", ""))
        run.start().ends(70, within=1 + _faults.GRACE, kind="training", rank=0, step=20, says=[WORDS, f"block {block} "])
