"""CPU time of supervision (heartbeats, state files, collective checks) as a fraction of the rank's"""
# needs data: movielens
import sys

import harness

# Short steps, in which supervision has the largest share, and short heartbeats, as only a quick test would use. Enough
# epochs for some seconds: the first connection alone takes 5 ms.
CASES = {
    "gloo": ["backend=gloo"],
    "mpi": ["backend=mpi"],
    "gloo, heartbeat 5 s": ["backend=gloo", "launch.heartbeat=5s"],
    "mpi, heartbeat 5 s": ["backend=mpi", "launch.heartbeat=5s"],
}


def share(overrides):
    def measure():
        run = harness.Run("configs/ncf_ddp.yaml", [*overrides, "train.epochs=40", "train.evaluate_every=never",
                                                   "train.checkpoint_every=never", "launch.cores_per_rank=1"], ranks=2)
        for rank in run.summary["ranks"]:
            harness.say(f"  rank {rank['rank']}: {1000 * rank['supervision_cpu_seconds']:.1f} ms of "
                        f"{rank['cpu_seconds']:.2f} s in {run.summary['steps']} steps")
        return max(rank["supervision_cpu_seconds"] / rank["cpu_seconds"] for rank in run.summary["ranks"])
    return measure


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    measured = harness.interleave(options.rounds, {name: share(overrides) for name, overrides in CASES.items()})
    ok = True
    for name, values in measured.items():
        ok &= harness.check(f"share of the rank's processor time, {name}, percent",
                              100 * harness.statistics.median(values), 1.0)
    sys.exit(0 if ok else 1)
