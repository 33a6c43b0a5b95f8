"""Bytes that a rank sends, stores and saves by cost(), compared with its counters, its process's memory and its
files."""
# timeout: 600
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

MIB = 1 << 20
# 13 M parameters, so that tensors are most of a process's memory; moments exist from the second step on.
LARGE = ["model.layers=4", "model.dim=512", "model.heads=8", "train.batch.global=8", "train.max_steps=2",
         "train.evaluate_every=never"]
# A large vocabulary: embedding, its gradient and the logits are most of the memory.
WORDS = ["data={name: synthetic, kind: tokens, rows: 64, evaluate_rows: 8, vocabulary: 8000, length: 64}",
         "model.dim=256", "model.layers=3"]
# Short sequences: processors without products in 16 bits take up to ten times as long.
BF16 = ["precision=bf16", "train.batch.global=16", "data.length=32"]
# Norms without bias, a gate, and two queries to a key.
LLAMA = ["model={name: llama, layers: 4, dim: 512, heads: 8, kv_heads: 4, dropout: 0.1}"]
FSDP_AND_TENSOR = "strategy.mesh={data: {degree: 2, how: fsdp}, pipeline: 1, tensor: 2}"
# Sums over mpi, which are in place: copies of a backend do not belong to the strategy.
CELLS = [
    ("single", []), ("single", ["strategy.recompute=blocks"]),
    ("data_parallel", []), ("ddp", ["strategy.recompute=blocks"]), ("ddp", ["train.batch.global=16"]),
    ("model_parallel", []),
    ("tensor_parallel", []), ("tensor_parallel", ["strategy.recompute=blocks"]),
    ("pipeline", ["strategy.schedule=gpipe"]), ("pipeline", ["strategy.schedule=1f1b", "strategy.recompute=blocks"]),
    ("pipeline", ["strategy.schedule=interleaved"]),
    ("pipeline", ["strategy.schedule=interleaved", "strategy.virtual=3", "strategy.micro_batches=4",
                  "train.batch.global=16"]),
    ("pipeline", ["strategy.schedule=gpipe", "strategy.micro_batches=5", "train.batch.global=16"]),
    ("pipeline", ["strategy.schedule=gpipe", "strategy.micro_batches=5", "train.batch.global=16",
                  "strategy.recompute=[blocks.0, blocks.3]"]),
    *[(name, BF16) for name in ("single", "ddp", "tensor_parallel")],
    ("fsdp", ["backend=mpi", *BF16, "strategy.units=tensors"]),
    ("fsdp", ["strategy.shard=optimizer", "backend=mpi"]), ("fsdp", ["strategy.shard=gradients", "backend=mpi"]),
    ("fsdp", ["backend=mpi", "strategy.recompute=blocks"]),
    ("fsdp", ["backend=mpi", "strategy.reshard_after_forward=false"]),
    ("fsdp", ["backend=mpi", "strategy.overlap=false"]),
    *[(name, WORDS) for name in ("single", "ddp", "model_parallel", "tensor_parallel", "pipeline", "hybrid")],
    ("fsdp", [*WORDS, "backend=mpi"]), ("fsdp", [*WORDS, "backend=mpi", "strategy.units=tensors", "model.tied=false"]),
    ("fsdp", [*WORDS, "backend=mpi", "precision=bf16", "strategy.recompute=blocks"]),
    ("tensor_parallel", ["strategy.sequence_parallel=true", "strategy.recompute=[blocks.1, blocks.2]"]),
    ("ddp", ["strategy.sync.compress=bf16"]),
    ("ddp", ["strategy.sync={compress: fp16, groups: [{match: bias, what: parameters}]}"]),
    ("ddp", ["strategy.sync={what: parameters, every: 2}"]),
    ("ddp", ["strategy.sync={what: diloco, moments: averaged}"]), ("hybrid", ["strategy.sync={what: parameters}"]),
    *[(name, LLAMA) for name in ("single", "ddp", "model_parallel", "tensor_parallel", "pipeline", "hybrid")],
    ("single", [*LLAMA, *BF16]),
    ("tensor_parallel", [*LLAMA, "strategy.sequence_parallel=true"]),
    ("fsdp", [*LLAMA, "backend=mpi", "strategy.recompute=blocks"]),
    ("hybrid", []), ("hybrid", [FSDP_AND_TENSOR, "backend=mpi", "model.dim=768"]),
    ("hybrid", [FSDP_AND_TENSOR, "backend=mpi", "model.dim=768", *BF16]),
]
# Bytes that synchronised batch norm and its running statistics add: a residual network, which has few gradients.
RESNET = ["train.batch.global=16", "train.max_steps=2", "train.evaluate_every=never", "launch.cores_per_rank=auto"]
NORMS = [
    "{name: data_parallel, batch_norm: sync, buffers: mean}",
    "{name: ddp, batch_norm: sync, micro_batches: 2, recompute: blocks}",
    "{name: fsdp, shard: gradients, batch_norm: sync}",
    "{name: hybrid, mesh: {data: 2, pipeline: 2}, micro_batches: 2, batch_norm: sync}",
]
# A recommender with sparse embeddings: the ids of a batch are random, so cost() estimates them.
ROWS = ["data={name: synthetic, kind: interactions, rows: 40000, users: 20000, items: 10000, context: 3, "
        "candidates: 50}",
        "model={name: ncf, gmf_dim: 4, mlp_dim: 8, hidden: [16, 8], rows: true}", "train.batch.global=256",
        "train.max_steps=48", "train.evaluate_every=never", "train.checkpoint_every=never"]
EXCHANGED = [
    ("{name: ddp}", 0.03, "true"), ("{name: data_parallel}", 0.03, "true"),
    ("{name: ddp, sync: {every: 2}}", 0.05, "true"), ("{name: ddp, sync: {compress: bf16}}", 0.03, "true"),
    ("{name: ddp, sync: {groups: [{match: user, what: parameters, every: 4}]}}", 0.05, "true"),
    ("{name: ddp, sync: {what: parameters, every: 4}}", 0.05, "true"),
    ("{name: ddp, sync: {what: parameters, every: 16}}", 0.05, "true"),
    ("{name: ddp}", 0.05, "sharded"), ("{name: ddp, sync: {compress: fp16}}", 0.05, "sharded"),
]
TOLERANCE = 0.05
# Bytes sent: cost() leaves out sums of a few bytes (loss, weight, norm); shards are rounded up to 64 bytes.
SENT_TOLERANCE = 0.005


def costs(summary):
    # Half-precision weights: measure two rows as --describe does, because copies of weights are no activations of rows.
    few = ["2"] if summary["config"]["precision"] in ("bf16", "fp16") else []
    done = subprocess.run([str(runs.BUILD / "tests" / "costs"), str(summary["world_size"]), *few], cwd=runs.TOP,
                          text=True, input=json.dumps(summary["config"]), capture_output=True)
    runs.check(done.returncode == 0, f"costs of {summary['config']['strategy']}:\n{done.stderr}")
    return json.loads(done.stdout)["ranks"]


def processes(summary, predicted):
    """Returns for each process: the peak of its tensors, and the cost of its ranks together."""
    together = {}
    for rank, cost in zip(summary["ranks"], predicted):
        peak, formula = together.get(rank["pid"], (0, 0))
        together[rank["pid"]] = (max(peak, rank["peak_tensor_bytes"]), formula + cost["bytes"])
    return together.values()


def saved_bytes(output, rank):
    """Returns the bytes of the tensors that a rank wrote into the newest checkpoint."""
    file = runs.newest_checkpoint(output) / f"rank-{rank}.safetensors"
    if not file.exists():
        return 0
    with file.open("rb") as stream:
        return file.stat().st_size - 8 - int.from_bytes(stream.read(8), "little")


def off(title, what, measured, formula, tolerance, below=None):
    ratio = measured / formula if formula else 1.0 + measured
    print(f"{title}: {what} {measured / MIB:.1f} MiB, cost() {formula / MIB:.1f}: {ratio:.3f}", flush=True)
    return [f"{title}: {what}"] if not -(below or tolerance) <= ratio - 1 <= tolerance else []


with runs.workspace() as work:
    wrong = []
    (work / "text.txt").write_bytes(bytes(32 + (7 * place + place // 96) % 95 for place in range(1 << 18)))
    for number, (name, overrides) in enumerate(CELLS):
        title = " ".join([name, *({WORDS[0]: "words", LLAMA[0]: "llama"}.get(one, one) for one in overrides)])
        summary = runs.run(f"configs/gpt_{name}.yaml", work / str(number),
                           [f"data.path={work}/text.txt", *LARGE, *overrides])
        predicted = costs(summary)
        for peak, formula in processes(summary, predicted):
            # Ranks of one process need not reach their peak at the same time, and the pool lends one unit's memory to
            # another.
            below = {"data_parallel": 0.1, "fsdp": 0.08}.get(name)
            wrong += off(title, "held", peak, formula, TOLERANCE, below)
        for rank, cost in zip(summary["ranks"], predicted):
            wrong += off(title, "sent", rank["bytes_sent_per_step"], cost["sent"], SENT_TOLERANCE)
            # A tensor axis has one copy of the layers that are not sharded, and cost() counts it for every rank.
            wrong += off(title, "saved", saved_bytes(work / str(number), rank["rank"]), cost["owned"], SENT_TOLERANCE,
                         0.02)
    for number, strategy in enumerate(NORMS):
        ranks = 4 if "pipeline" in strategy else 2
        summary = runs.run("configs/resnet_cifar_shape.yaml", work / f"norms{number}",
                           [*RESNET, f"strategy={strategy}", f"launch.ranks={ranks}"])
        for rank, cost in zip(summary["ranks"], costs(summary)):
            wrong += off(f"resnet {strategy}", "sent", rank["bytes_sent_per_step"], cost["sent"], SENT_TOLERANCE)
    for number, (strategy, within, rows) in enumerate(EXCHANGED):
        summary = runs.run("configs/tiny/ncf.yaml", work / f"rows{number}",
                           [*ROWS, f"model.rows={rows}", f"strategy={strategy}"])
        for rank, cost in zip(summary["ranks"], costs(summary)):
            wrong += off(f"rows {rows} {strategy}", "sent", rank["bytes_sent_per_step"], cost["sent"], within)
    runs.check(not wrong, f"off: {', '.join(wrong)}")
print("bytes sent and stored agree with cost()")
