"""Data and models that no memory holds end with their own code and advice, before a rank has begun and after."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

config = runs.TOP / "configs" / "tiny" / "mlp.yaml"

with runs.workspace() as folder:
    # Sizes within the bounds of their options, and tensors of 4 TB.
    for name, sizes in (("data", ["data.features=[1000000]", "data.classes=1000000"]), ("model", ["model.hidden=[16777216,60000]"])):
        told = runs.run(config, folder / name, sizes, expect=71)
        failure = told["failure"]
        runs.check(failure["cause"] == "out_of_memory" and "try" in failure["message"], f"{name}: {failure}")
        log = (folder / name / "logs" / "rank0.log").read_text()
        runs.check("frame #" not in log + failure["message"], f"{name}: a backtrace in\n{log}")
        print(f"{name}: {failure['message']}")
