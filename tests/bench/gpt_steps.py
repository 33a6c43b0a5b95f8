"""Contestants shared by several benchmarks: a step of the GPT of configs/gpt_single.yaml, 16 rows. No benchmark
itself."""
import harness

# Known seconds a step of the peers on two idle cores. If this machine runs one process more slowly, the others'
# expected values grow by the same factor.
KNOWN = {"torch, one rank": 0.477, "torch DDP": 0.246, "torch fully_shard": 0.321, "torch 1F1B": 0.303}
HOW = {"torch, one rank": "alone", "torch.compile, one rank": "compiled", "torch DDP": "ddp",
       "torch fully_shard": "fully_shard", "torch 1F1B": "1f1b"}
ALONE = "torch, one rank"


def arguments(description):
    return harness.step_arguments(description, steps=20, warm=20).parse_args()


def peer(name, options):
    """Returns a function that measures seconds a step of a peer; `name` is one of KNOWN."""
    return lambda: harness.peer("gpt.py", "--how", HOW[name], "--text", harness.TOP / ".data" / "text.txt",
                                "--steps", options.steps, "--warm", options.warm)["step_seconds"]


def convoy(strategy, options, *overrides, ranks=None):
    """Returns a function that measures seconds a step of configs/gpt_STRATEGY.yaml."""
    return lambda: harness.step_of(f"configs/gpt_{strategy}.yaml", options, "train.evaluate_every=never", *overrides,
                                   ranks=ranks)


def side_by_side(options, *overrides):
    """Measures configs/gpt_single.yaml in two independent runs at once, each on a core: the value of the second
    core."""
    def measure():
        def one(core):
            return harness.step_of("configs/gpt_single.yaml", options, "train.evaluate_every=never", *overrides,
                                   under=["taskset", "-c", str(core)])
        return sum(harness.on_two_cores(one)) / 2
    return measure


def two_cores(measured, alone, both):
    """Returns and prints the throughput of both cores relative to one, at most 2, for independent work."""
    worth = min(2.0, 2 * harness.median_ratio(measured, alone, both))
    harness.say(f"two runs that share nothing get {worth:.3f} times a core's work done on this machine's two; "
                "gates of speed-ups are scaled by it; an idle machine has 2")
    return worth / 2


def expected(name):
    """Returns the peer's known value for harness.interleave, scaled by the time of one process in the same round."""
    return lambda measured: KNOWN[name] * max(1, measured[ALONE] / KNOWN[ALONE])


def report(measured, reference):
    harness.table(measured, reference, "seconds a step")
    harness.beside_known(measured, {name: seconds for name, seconds in KNOWN.items() if name in measured})
