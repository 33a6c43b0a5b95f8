"""The program of the ranks, or mpirun, is missing or cannot be executed; reported at once."""
import os
import shutil
import sys
import time

import _faults
from _faults import runs

with runs.workspace() as folder:
    for backend in sys.argv[1:] or ("gloo", "mpi"):
        for code in (127, 126):
            run = _faults.Run(folder, backend,
                              title=f"{backend}: convoy-rank {'missing' if code == 127 else 'not executable'}")
            programs = run.folder / "bin"
            programs.mkdir()
            shutil.copy(runs.CONVOY, programs)
            if code == 126:
                (programs / "convoy-rank").write_text("no program")
            run.failed_at = time.time()
            run.start(program=programs / "convoy").ends(code, within=1)
            text = (run.folder / "console").read_text()
            run.check("convoy-rank" in text and "rendezvous" not in text, "the message does not name the program")
            print(f"{run.title}: {text.strip().splitlines()[-1]}")
    run = _faults.Run(folder, "mpi", title="mpi: mpirun missing")
    run.failed_at = time.time()
    run.start(PATH=str(folder)).ends(127, within=1)
    text = (run.folder / "console").read_text()
    run.check("mpirun" in text and "backend=gloo" in text, "the message does not say what to do")
    print(f"{run.title}: {text.strip().splitlines()[-1]}")
