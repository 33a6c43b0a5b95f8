"""NCF in the shapes of MLPerf 0.5 on ML-20M, training samples a second on two cores: against PyTorch with SparseAdam"""
import statistics
import sys

import harness

CONFIG = "configs/ncf_mlperf.yaml"
SIZES = {"rows": 19861770, "users": 138493, "items": 26744}
SHAPE = ["--gmf", 64, "--mlp", 128, "--hidden", 256, 128, 64]
PARAMETERS, BATCH, WIDTH = 31832577, 2048, 5
# Published training rates, samples a second. Intel, 2018: 56 cores, Adam on the touched rows. One A100: NVIDIA's
# DeepLearningExamples.
PUBLISHED = {"Intel 2018, 56 cores": 0.66e6, "one A100": 34.1e6}
OURS, ONE, SPARSE = "convoy, 2 ranks", "convoy, one rank, 2 threads", "SparseAdam, both cores"
SETTINGS = ["train.evaluate_every=never", "train.checkpoint_every=never", "train.resume=never"]


def convoy(steps, warm, *more, ranks=2):
    def measure():
        run = harness.Run(CONFIG, [*SETTINGS, f"train.max_steps={steps + warm}", f"train.log_every={warm}", *more],
                          ranks=ranks)
        if run.summary["parameters"] != PARAMETERS:
            sys.exit(f"benchmark: {run.summary['parameters']} parameters, not {PARAMETERS}")
        return BATCH * WIDTH / run.step_seconds(skip=warm)
    return measure


def columns():
    return harness.synthetic_interactions(SIZES["rows"] + SIZES["users"], '"seed":1,')


def peer(steps):
    sizes = [text for name, value in SIZES.items() for text in ("--" + name, value)]

    def measure():
        measured = harness.peer("ncf.py", "--columns", columns(), *sizes, *SHAPE, "--batch", BATCH, "--sparse",
                               "--warm", 3, "--steps", steps)
        # convoy has two layers with one bias instead of the first layer, so the numbers of parameters are equal.
        if measured["parameters"] != PARAMETERS:
            sys.exit(f"benchmark: the peer has {measured['parameters']} parameters, not {PARAMETERS}")
        return measured["instances_per_second"]
    return measure


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    contestants = {SPARSE: peer(20), OURS: convoy(40, 10),
                   ONE: convoy(40, 10, "strategy={name: single}", "launch.threads=2", ranks=1)}
    convoy(2, 1)()  # makes the columns
    measured = harness.interleave(options.rounds, contestants)
    harness.table(measured, SPARSE, "samples a second")
    rate = statistics.median(measured[OURS])
    for name, published in PUBLISHED.items():
        harness.say(f"{name}: {published:,.0f} samples/s published; convoy here {rate:,.0f}, "
                    f"{rate / published:.4f} of that")
    harness.say(f"a core: convoy {rate / 2:,.0f} samples/s, Intel {PUBLISHED['Intel 2018, 56 cores'] / 56:,.0f}")
    ok = harness.check(f"{OURS} ÷ {SPARSE}", harness.median_ratio(measured, OURS, SPARSE), 1.5, at_most=False, aim=2.5)
    harness.say(f"  aim: 0.25 M samples/s, 10 × Intel's rate a core: {rate / 1e6:.3f} M")
    sys.exit(0 if ok else 1)
