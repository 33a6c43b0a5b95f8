"""Peak memory a rank of a GPT of 100 M parameters by fsdp and pipeline against cost(); with activation checkpointing"""
import json
import pathlib
import subprocess
import sys

import harness

# 14 blocks of 7.1 M parameters; few rows, so that parameters, gradients and moments dominate.
LARGE = ["model.layers=14", "model.dim=768", "model.heads=12", "train.batch.global=2", "train.log_every=1",
         "train.evaluate_every=never"]
# The same program with a tiny model: memory of LibTorch, the backend and the loader.
NONE = ["model.layers=2", "model.dim=8", "model.heads=1"]
RECOMPUTED = ["train.batch.global=32", "train.evaluate_every=never"]
MIB = 1 << 20


def costs(summary):
    """Returns the result of cost() for a run's ranks."""
    done = subprocess.run([str(harness.TOP / "build/tests/costs"), str(summary["world_size"])],
                          input=json.dumps(summary["config"]), capture_output=True, text=True, cwd=harness.TOP)
    if done.returncode != 0:
        sys.exit(f"benchmark: costs ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)["ranks"]


def peaks_of_large(name, overrides, steps):
    """Returns for each rank: bytes above those of the program without a model, and bytes by cost()."""
    steps = [f"train.max_steps={steps}"]
    empty = harness.Run(f"configs/gpt_{name}.yaml", LARGE + NONE + overrides + steps, ranks=2)
    run = harness.Run(f"configs/gpt_{name}.yaml", LARGE + overrides + steps, ranks=2, timeout=1800)
    predicted = costs(run.summary)
    harness.say(f"{name}: {run.summary['parameters'] / 1e6:.1f} M parameters")
    found = []
    for rank, (peak, base, cost) in enumerate(zip(run.summary["ranks"], empty.summary["ranks"], predicted)):
        parts = ", ".join(f"{part} {cost[part] / MIB:.0f}"
                          for part in ("parameters", "gradients", "moments", "activations"))
        tensors, resident = peak["peak_tensor_bytes"], peak["peak_resident_bytes"] - base["peak_resident_bytes"]
        harness.say(f"  rank {rank}: tensors at most {tensors / MIB:.0f} MiB, "
                    f"cost() {cost['bytes'] / MIB:.0f} ({parts}); "
                    f"resident {resident / MIB:.0f} more than without a model "
                    f"({resident / cost['bytes']:.2f} of cost())")
        found.append((tensors, cost["bytes"]))
    return found


def memory_checks(rounds, steps):
    ok = True
    for name, overrides in (("fsdp", []), ("pipeline", ["strategy.micro_batches=2"])):
        measured = [peaks_of_large(name, overrides, steps) for _ in range(rounds)]
        for rank in range(2):
            ratios = [found[rank][0] / found[rank][1] for found in measured]
            harness.say(f"  {name}, rank {rank}, peak ÷ cost(): {harness.spread(ratios)}")
            ok &= harness.check(f"{name}, rank {rank}, off by", abs(harness.statistics.median(ratios) - 1), 0.10,
                                  aim=0.05)
    return ok


def recomputation(rounds, steps, warm):
    peaks = {"none": [], "blocks": []}
    predicted = {}

    def contestant(recompute):
        def measure():
            run = harness.Run("configs/gpt_single.yaml",
                              RECOMPUTED + [f"strategy.recompute={recompute}", f"train.max_steps={warm + steps}",
                                            f"train.log_every={warm}"])
            peaks[recompute].append(run.summary["ranks"][0]["peak_tensor_bytes"])
            predicted[recompute] = costs(run.summary)[0]
            return run.step_seconds(skip=warm)
        return measure
    measured = harness.interleave(rounds, {"none": contestant("none"), "blocks": contestant("blocks")})
    harness.table(measured, "none", "recompute: seconds a step")
    ok = harness.check("a step with recompute: blocks against one without",
                         harness.median_ratio(measured, "blocks", "none"), 1.35, aim=1.3)
    saved = [a - b for a, b in zip(peaks["none"], peaks["blocks"])]
    formula = predicted["none"]["bytes"] - predicted["blocks"]["bytes"]
    harness.say(f"activations by cost(): {predicted['none']['activations'] / MIB:.0f} MiB, recomputed "
                f"{predicted['blocks']['activations'] / MIB:.0f}; "
                f"the peak fell by {harness.statistics.median(saved) / MIB:.0f} MiB, and by cost() {formula / MIB:.0f}")
    return ok & harness.check("what recomputation saves ÷ what leaves the activations of one block",
                                harness.statistics.median(s / formula for s in saved), 0.90, at_most=False)


# Workload: (configuration, overrides, ranks), for a comparison with an earlier build.
SHORT = ["train.max_steps=60", "train.epochs=~", "train.evaluate_every=never", "train.checkpoint_every=never",
         "train.resume=never"]
WORKLOADS = {
    "NCF, one core": ("configs/ncf_story.yaml", ["strategy={name: single}"], 1),
    "NCF, two mpi ranks": ("configs/ncf_story.yaml", ["backend=mpi"], 2),
    "ten stacked MLPs": ("configs/bagging_fashion.yaml", ["device=cpu"], None),
    "MLP of 25 M, ddp gloo": ("configs/mlp_25m.yaml", ["backend=gloo"], 2),
    "GPT, single": ("configs/gpt_single.yaml", [], 1),
    "GPT, ddp gloo": ("configs/gpt_ddp.yaml", ["backend=gloo"], 2),
    "GPT, fsdp gloo": ("configs/gpt_fsdp.yaml", ["backend=gloo"], 2),
    "GPT, pipeline gloo": ("configs/gpt_pipeline.yaml", ["backend=gloo"], 2),
    "ResNet, ddp gloo": ("configs/resnet_cifar_shape.yaml", ["backend=gloo", "train.max_steps=10"], 2),
}


def against(baseline, rounds):
    """Compares the peak resident memory of the largest rank with another build; returns whether all gates are met."""
    def peak(convoy, config, overrides, ranks):
        run = harness.Run(config, SHORT + overrides, ranks=ranks, convoy=convoy)
        return max(rank["peak_resident_bytes"] for rank in run.summary["ranks"]) / MIB
    ok = True
    for name, workload in WORKLOADS.items():
        measured = harness.interleave(rounds, {
            "this build": lambda workload=workload: peak(harness.CONVOY, *workload),
            "earlier build": lambda workload=workload: peak(pathlib.Path(baseline) / "convoy", *workload)})
        harness.table(measured, "earlier build", f"{name}: MiB")
        ok &= harness.check(f"{name}: peak memory ÷ that of the earlier build",
                              harness.median_ratio(measured, "this build", "earlier build"), 1.05)
    return ok


if __name__ == "__main__":
    parser = harness.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=10,
                        help="timed with and without recomputation (default %(default)s)")
    parser.add_argument("--warm", type=int, default=3, help="steps before those (default %(default)s)")
    parser.add_argument("--large_steps", type=int, default=3, help="of the large model (default %(default)s)")
    parser.add_argument("--baseline", metavar="BUILD", help="only compares with the build folder of an earlier commit")
    options = parser.parse_args()
    if options.baseline:
        sys.exit(0 if against(options.baseline, options.rounds) else 1)
    subprocess.run(["ninja", "-C", str(harness.TOP / "build"), "convoy_costs"], check=True, stdout=subprocess.DEVNULL)
    ok = memory_checks(options.rounds, options.large_steps)
    ok &= recomputation(options.rounds, options.steps, options.warm)
    sys.exit(0 if ok else 1)
