"""A rank leaves through MPI_Finalize even while another of its threads still uses the group: mpirun ends with 0."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

program = runs.BUILD / "tests" / "mpi_end"
done = subprocess.run(["mpirun", "-n", "2", program], env=runs.environment(), timeout=60, stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT, text=True)
runs.check(done.returncode == 0, f"mpirun says {done.returncode}\n{done.stdout}")
print("two ranks ended in order")
