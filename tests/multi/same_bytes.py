"""Two ranks over gloo, over mpi (started by convoy and by mpirun) and as threads give the same checkpoint, byte for
byte, because each transport adds the same two numbers. Python's safetensors opens the files."""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

SETS = ["launch.cores_per_rank=1", "train.epochs=1"]
OPENS = """
import sys, safetensors, numpy
for path in sys.argv[1:]:
    with safetensors.safe_open(path, framework="numpy") as file:
        for key in file.keys():
            value = file.get_tensor(key)
            assert numpy.isfinite(value).all(), key
            print(key, value.shape)
"""

with runs.workspace() as folder:
    config = runs.TOP / "configs" / "tiny" / "ncf.yaml"
    runs.run(config, folder / "gloo", [*SETS, "backend=gloo"], ranks=2)
    expected = runs.weights(folder / "gloo")
    runs.run(config, folder / "mpi", [*SETS, "backend=mpi"], ranks=2)
    runs.check(runs.weights(folder / "mpi") == expected, "mpi started by convoy differs from gloo")
    runs.run(config, folder / "mpirun", [*SETS, "backend=mpi"], under=["mpirun", "-n", "2"])
    runs.check(runs.weights(folder / "mpirun") == expected, "mpi under mpirun differs from gloo")
    runs.run(config, folder / "local", [*SETS, "backend=local"], ranks=2)
    runs.check(runs.weights(folder / "local") == expected, "local differs from gloo")

    files = [str(f) for f in runs.newest_checkpoint(folder / "gloo").glob("*.safetensors")]
    pythons = [str(runs.TOP / ".deps" / "venv" / "bin" / "python3"), sys.executable]
    for python in pythons:
        if subprocess.run([python, "-c", "import safetensors, numpy"], stderr=subprocess.DEVNULL).returncode == 0:
            listed = subprocess.run([python, "-c", OPENS, *files], stdout=subprocess.PIPE, text=True)
            runs.check(listed.returncode == 0 and "parameter/" in listed.stdout, f"safetensors cannot read {files}")
            break
    else:
        runs.fail(f"no Python here has safetensors and numpy ({', '.join(pythons)}); ./check installs them, or type: "
                  f"{pythons[0]} -m pip install safetensors numpy")
    print("equal over gloo, mpi, mpirun and local:", expected)
