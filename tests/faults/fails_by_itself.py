"""Cases 3 and 4: a model throws, or its process ends with 0 before the training does."""
import sys

import _faults
from _faults import runs

_faults.requirements()

with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for rank in (0, 1):
            run = _faults.Run(folder, backend, "throw", rank=rank).start()
            run.ends(70, within=1 + _faults.GRACE, kind="training", rank=rank, step=20, says=["the model's own words"])
        for rank in (0, 1):
            run = _faults.Run(folder, backend, "exit", rank=rank).start()
            run.ends(70, within=1 + _faults.GRACE, kind="training", rank=rank, step=20, says=["before the training was done"])
