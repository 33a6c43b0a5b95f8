"""Case 13: a grandchild in a session of its own outlives its rank, and is killed all the same."""
import sys

import _faults
from _faults import runs

_faults.requirements()

with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        run = _faults.Run(folder, backend, "grandchild", rank=1).start()
        run.ends(137, within=1 + _faults.GRACE, kind="signal", rank=1, signal_number=9, step=20)
