"""Contestants that several benchmarks share: a step of the GPT of configs/gpt_single.yaml, 16 rows; no benchmark itself."""
import concurrent.futures
import os

import harness

# Seconds a step of the peers as they are known for two idle cores. Where this machine runs one process alone more slowly,
# the others are expected slower by as much.
KNOWN = {"torch, one rank": 0.477, "torch DDP": 0.246, "torch fully_shard": 0.321, "torch 1F1B": 0.303}
HOW = {"torch, one rank": "alone", "torch DDP": "ddp", "torch fully_shard": "fully_shard", "torch 1F1B": "1f1b"}
ALONE = "torch, one rank"


def arguments(description):
    parser = harness.arguments(description)
    parser.add_argument("--steps", type=int, default=20, help="timed in each run (default %(default)s)")
    parser.add_argument("--warm", type=int, default=5, help="steps before those (default %(default)s)")
    return parser.parse_args()


def peer(name, options):
    """A step of the peer of that name in KNOWN."""
    return lambda: harness.peer("gpt.py", "--how", HOW[name], "--text", harness.TOP / ".data" / "text.txt",
                                "--steps", options.steps, "--warm", options.warm)["step_seconds"]


def convoy(strategy, options, *overrides, ranks=None):
    """A step of configs/gpt_STRATEGY.yaml; figures are reduced and written at the ends of what is timed alone."""
    def measure():
        run = harness.Run(f"configs/gpt_{strategy}.yaml",
                          [f"train.max_steps={options.warm + options.steps}", f"train.log_every={options.warm}",
                           "train.evaluate_every=never", *overrides], ranks=ranks)
        return run.step_seconds(skip=options.warm)
    return measure


def side_by_side(options, *overrides):
    """A step of configs/gpt_single.yaml by two runs at once that share nothing, each on a core: what this machine's second
    core is worth."""
    def measure():
        cores = sorted(os.sched_getaffinity(0))[:2]

        def one(core):
            run = harness.Run("configs/gpt_single.yaml",
                              [f"train.max_steps={options.warm + options.steps}", f"train.log_every={options.warm}",
                               "train.evaluate_every=never", *overrides], under=["taskset", "-c", str(core)])
            return run.step_seconds(skip=options.warm)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return sum(pool.map(one, cores)) / 2
    return measure


def two_cores(figures, alone, both):
    """How many times a core's work both cores do, at most 2, where nothing is shared: told, and returned."""
    worth = min(2.0, 2 * harness.median_ratio(figures, alone, both))
    harness.say(f"two runs that share nothing get {worth:.3f} times a core's work done on this machine's two; "
                "speed-ups are held against gates by that, two being an idle machine")
    return worth / 2


def expected(name):
    """For harness.interleave: the peer's known figure, scaled by what one process took in the same round."""
    return lambda figures: KNOWN[name] * max(1, figures[ALONE] / KNOWN[ALONE])


def report(figures, reference):
    harness.table(figures, reference, "seconds a step")
    harness.beside_known(figures, {name: seconds for name, seconds in KNOWN.items() if name in figures})
