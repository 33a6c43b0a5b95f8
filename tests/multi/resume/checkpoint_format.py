"""docs/checkpoints.md: its Python code reads checkpoints of every layout into whole tensors."""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "gpt.yaml"
SETS = ["train.max_steps=6", "train.checkpoint_every=6 steps", "train.evaluate_every=never", "launch.threads=1"]
# The page's code joins the files of these runs; convoy joins them too, by a run of `single` that resumes.
LAYOUTS = (("fsdp", 2, ["strategy.name=fsdp", "strategy.shard=parameters"]),
           ("tensor_parallel", 2, ["strategy.name=tensor_parallel"]),
           ("pipeline", 2, ["strategy.name=pipeline"]))
EXAMPLE = "runs/NAME/checkpoints/step-200"


def python_with_packages():
    pythons = [str(runs.TOP / ".deps" / "venv" / "bin" / "python3"), sys.executable]
    for python in pythons:
        if subprocess.run([python, "-c", "import safetensors, numpy"], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    runs.fail(f"no Python here has safetensors and numpy; ./check installs them, or type: {pythons[0]} -m pip install "
              "safetensors numpy")


def page_code(word):
    blocks = re.findall(r"^```python\n(.*?)^```$", (runs.TOP / "docs" / "checkpoints.md").read_text(), re.M | re.S)
    found = [block for block in blocks if word in block]
    runs.check(len(found) == 1, f"docs/checkpoints.md has {len(found)} Python blocks with '{word}'")
    runs.check(EXAMPLE in found[0], f"docs/checkpoints.md: no '{EXAMPLE}' in the block with '{word}'")
    return found[0]


with runs.workspace() as work:
    python = python_with_packages()
    whole, plain, names = page_code("manifest.json"), page_code("weights ="), page_code("users =")
    for title, ranks, sets in LAYOUTS:
        pieces, joined = work / title, work / f"{title}-joined"
        runs.run(CONFIG, pieces, [*SETS, *sets], ranks=ranks)
        # No step is left to train: `single` evaluates, and writes the same state as whole tensors.
        runs.run(CONFIG, joined, [*SETS, f"train.resume={pieces}"])
        code = whole.replace(EXAMPLE, str(runs.newest_checkpoint(pieces)))
        code += plain.replace(EXAMPLE, str(runs.newest_checkpoint(joined)))
        code += """
entries = json.load(open(folder + "manifest.json"))["entries"]
split = sum("flat" in e or e["length"] != e["shape"] for e in entries)
for key, value in state.items():
    assert np.array_equal(whole[key], value), f"{key} differs from what convoy joins"
for name, value in weights.items():
    assert np.abs(whole["parameter/" + name]).sum() > 0 or "bias" in name, f"{name} is zero"
print(len(files), "files,", len(weights), "parameters,", len(state), "tensors equal,", split, "pieces are parts")
"""
        done = subprocess.run([python, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        runs.check(done.returncode == 0, f"{title}: docs/checkpoints.md's lines fail:\n{done.stdout}")
        print(f"{title}: {done.stdout.strip()}")
        parts = int(re.search(r"(\d+) pieces", done.stdout).group(1))
        runs.check(title == "pipeline" or parts > 0, f"{title}: no piece is a part of a tensor:\n{done.stdout}")
        runs.check(done.stdout.startswith("2 files"), f"{title}: not two files:\n{done.stdout}")

    # Three users, in file order.
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    lines += [f"{user}\ti{10 * k + len(user)}\t4\t{1000 + k}" for user in ("zoe", "al", "maria") for k in range(6)]
    (work / "small.inter").write_text("\n".join(lines) + "\n")
    recommender = work / "recommender"
    runs.run(runs.TOP / "configs" / "ncf_ddp.yaml", recommender, [f"data.path={work}/small.inter", "train.max_steps=2",
                                                                  "train.epochs=~", "data.candidates=5"])
    code = names.replace(EXAMPLE, str(runs.newest_checkpoint(recommender))) + "\nprint(*users)"
    done = subprocess.run([python, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.stdout.strip() == "zoe al maria", f"docs/checkpoints.md's lines find other users:\n{done.stdout}")
    print("users:", done.stdout.strip())
