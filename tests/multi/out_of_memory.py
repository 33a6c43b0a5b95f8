"""Data and models larger than any memory end with a separate exit code and advice, before and after a rank has
started."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

config = runs.TOP / "configs" / "tiny" / "mlp.yaml"

with runs.workspace() as folder:
    # Sizes within the bounds of their options, and tensors of 4 TB. Sizes of data are refused before ranks start.
    sizes = ["data.features=[1000000]", "data.classes=1000000"]
    runs.refused("data", 78, ["data.features: makes tables of", "this host has"],
                 runs.command(config, folder / "data", sizes))
    runs.check(not (folder / "data").exists(), "data: left a folder")
    # At the first such tensor, before the host's memory is full.
    told = runs.run(config, folder / "model", ["model.hidden=[16777216,60000]"], expect=71, timeout=60)
    failure = told["failure"]
    runs.check(failure["cause"] == "out_of_memory" and "try" in failure["message"], f"model: {failure}")
    runs.check("a tensor of" in failure["message"], f"model: killed instead of refused: {failure}")
    log = (folder / "model" / "logs" / "rank0.log").read_text()
    runs.check("frame #" not in log + failure["message"], f"model: a backtrace in\n{log}")
    print(f"model: {failure['message']}")
