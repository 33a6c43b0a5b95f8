"""Each strategy of several ranks against one rank, in fp64, with real processes over gloo and over mpi."""
# timeout: 600
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

GPT = runs.TOP / "configs" / "tiny" / "gpt.yaml"
# A batch that no number of ranks divides, clipped, under AdamW.
TRAINING = ["train.batch.global=23", "optimizer.clip_norm=0.5", "model.attention_dropout=0.1"]
STRATEGIES = [
    ("{name: ddp, sync: {every: 2}}", 3),
    ("{name: tensor_parallel, sequence_parallel: true}", 2),
    ("{name: pipeline, schedule: interleaved, micro_batches: 4}", 2),
    ("{name: fsdp, shard: parameters, recompute: blocks}", 3),
    ("{name: hybrid, mesh: {data: {degree: 2, how: fsdp}, tensor: 2}}", 4),
    ("{name: hybrid, mesh: {data: 2, pipeline: 2}, micro_batches: 2}", 4),
]

with runs.workspace() as folder:
    (folder / "tmp").mkdir()
    for strategy, ranks in STRATEGIES:
        for backend in ("gloo", "mpi"):
            start = time.monotonic()
            line = [str(runs.CONVOY), "verify", str(GPT), "--steps", "10", "--ranks", str(ranks),
                    "--tolerance", "1e-12"]
            for item in [*TRAINING, f"strategy={strategy}", f"backend={backend}", "launch.threads=1"]:
                line += ["--set", item]
            done = subprocess.run(line, cwd=folder, env=runs.environment(TMPDIR=str(folder / "tmp")), timeout=180,
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            runs.check(done.returncode == 0, f"{strategy} over {backend}: exit {done.returncode}\n{done.stdout}")
            for word in ("agree", "precision fp64", backend, f"on {ranks} ranks"):
                runs.check(word in done.stdout, f"{strategy} over {backend}: no '{word}' in\n{done.stdout}")
            print(f"{strategy}, {ranks} ranks over {backend}: {time.monotonic() - start:.1f} s", flush=True)
print("ten steps of each agree with one rank's to 1e-12")
