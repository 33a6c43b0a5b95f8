"""Tokens a second of `convoy generate`, GPT of 3.3 M parameters on one core, against a loop with a cache in PyTorch"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import harness

CONFIG, PROMPT, SAMPLES, TOKENS = "configs/gpt_single.yaml", "I", 16, 127  # the model has 128 positions
PEER = "torch with a cache"


def shell(core, *words):
    command = ["taskset", "-c", core, *map(str, words)]
    done = subprocess.run(command, cwd=harness.TOP, env={**os.environ, **harness.runs.MPI}, timeout=600,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"benchmark: {' '.join(command)}\nended with {done.returncode}:\n"
                 f"{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def core():
    return str(sorted(os.sched_getaffinity(0))[0])


def trained(folder):
    """Trains a GPT for a few steps; any text will do, because the peer has the same weights. Returns the run folder."""
    folder = pathlib.Path(folder)
    (folder / "text.txt").write_bytes((harness.TOP / "LICENSE").read_bytes() * 4)
    shell(core(), harness.CONVOY, "run", CONFIG, "--set", f"data.path={folder}/text.txt", "--set", "train.max_steps=20",
          "--set", "train.checkpoint_every=20 steps", "--set", "train.evaluate_every=never",
          "--output", folder / "gpt")
    return folder / "gpt"


def generated(run, *words):
    return json.loads(shell(core(), harness.CONVOY, "generate", run, "--prompt", PROMPT, "--max-tokens", TOKENS,
                            "--json", *words))


def main():
    options = harness.arguments(__doc__, rounds=5).parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="convoy-bench-"))
    run = trained(folder)
    shell(core(), harness.CONVOY, "export", run, "--to", folder / "weights")

    def convoy():
        answer = generated(run, "--samples", SAMPLES)
        return answer["drawn"] / answer["seconds"]

    last = {}

    def peer():
        command = [sys.executable, harness.TOP / "tests/bench/peers/generate.py",
                   "--weights", folder / "weights/model.safetensors", "--prompt", ord(PROMPT), "--tokens", TOKENS,
                   "--samples", SAMPLES]
        last.update(json.loads(shell(core(), *command).splitlines()[-1]))
        return last["rate"]

    measured = harness.interleave(options.rounds, {PEER: peer, "convoy generate": convoy})
    harness.table(measured, PEER, "tokens a second")
    ours = generated(run, "--temperature", 0)["tokens"][0]
    same = sum(a == b for a, b in zip(ours, last["greedy"])) / TOKENS
    shutil.rmtree(folder)
    ok = harness.check("likeliest tokens equal to the peer's", same, 1.0, at_most=False)
    ok &= harness.check("rate of convoy ÷ rate of the peer", harness.median_ratio(measured, "convoy generate", PEER),
                          1.5, at_most=False, aim=3)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
