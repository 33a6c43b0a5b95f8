"""Ten small MLPs bagged on Fashion-MNIST, member-samples a second of an epoch: against vmap, a loop, TorchEnsemble"""
import statistics
import subprocess
import sys

import harness

CONFIG = "configs/bagging_fashion.yaml"
MEMBERS = 10
PACKAGES = harness.TOP / ".deps" / "torchensemble"
PINNED = ["torchensemble==0.2.0", "joblib==1.6.0"]
# Known member-samples a second of the peers on two idle cores.
KNOWN = {"torch.func vmap": 238_000, "serial loop": 139_000, "TorchEnsemble, 2 jobs": 49_000}
GATES = {"torch.func vmap": (3.5, 4.5), "serial loop": (3, 6), "TorchEnsemble, 2 jobs": (12, 16)}
OURS = "convoy"
ALONE = "serial loop"


def expected_peers(this):
    """Scales the peers' known values by the speed of the loop over members on this machine."""
    scale = min(1, this[ALONE] / KNOWN[ALONE])
    return {name: known * scale for name, known in KNOWN.items() if name != ALONE}


def install_peer():
    """Installs without dependencies that the peer does not use (torchvision, scikit-learn)."""
    if (PACKAGES / "torchensemble").is_dir():
        return
    harness.say(f"fetching {' and '.join(PINNED)} (0.4 MB) into {PACKAGES.relative_to(harness.TOP)}")
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                           "--no-deps", "--target", str(PACKAGES), *PINNED], text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"benchmark: cannot install the peer:\n{done.stderr[-2000:]}")


def convoy(*overrides):
    """Returns member-samples a second of a training epoch: loading, forward, backward and update."""
    def measure():
        run = harness.Run(CONFIG, ["train.epochs=1", "train.evaluate_every=never", "train.checkpoint_every=never",
                                   "device=cpu", *overrides])
        return run.summary["samples_per_second"]
    return measure


def peer(how, epochs=1):
    return lambda: harness.peer("ensemble.py", "--how", how, "--members", MEMBERS,
                                "--epochs", epochs)["samples_per_second"]


def peak(*overrides):
    """Returns the peak of tensor bytes, summed over ranks."""
    run = harness.Run(CONFIG, ["train.max_steps=20", "train.evaluate_every=never", "train.checkpoint_every=never",
                               "device=cpu", "strategy.how=stacked", *overrides], ranks=1)
    return sum(rank["peak_tensor_bytes"] for rank in run.summary["ranks"])


def memory():
    """Compares the memory of ten members with ten times that of one, without the data set, which all members share."""
    shared = peak("strategy.members=1", "model.hidden=[1]", "train.batch.global=1")
    one, ten = peak("strategy.members=1") - shared, peak(f"strategy.members={MEMBERS}") - shared
    harness.say(f"tensors at most, beside {shared / 2**20:.1f} MiB of data: one member {one / 2**20:.2f} MiB, "
                f"{MEMBERS} stacked {ten / 2**20:.2f} MiB")
    return harness.check(f"memory of {MEMBERS} stacked members ÷ {MEMBERS} × one's", ten / MEMBERS / one, 1.2)


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    install_peer()
    contestants = {
        "torch.func vmap": peer("vmap"),
        OURS: convoy(),
        "serial loop": peer("serial"),
        "convoy, stacked": convoy("strategy.how=stacked"),
        "TorchEnsemble, 2 jobs": peer("torchensemble", epochs=2),  # its workers start in the first epoch
        "convoy, processes": convoy("strategy.how=processes"),
    }
    measured = harness.interleave(options.rounds, contestants, expected=expected_peers, slower_is="less")
    harness.table(measured, "torch.func vmap", "member-samples a second")
    for name, known in KNOWN.items():
        harness.say(f"{name}: {statistics.median(measured[name]):,.0f} a second here, "
                    f"{known:,} known of two idle cores")
    ok = True
    for name, (gate, aim) in GATES.items():
        ok &= harness.check(f"{OURS} ÷ {name}", harness.median_ratio(measured, OURS, name), gate, at_most=False,
                              aim=aim)
    ok &= memory()
    sys.exit(0 if ok else 1)
