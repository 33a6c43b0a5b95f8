"""NeuMF on MovieLens-100K after 20 epochs, two mpi ranks, three seeds: HR@10, NDCG@10 and the loader's share"""
import statistics
import sys

import harness

if __name__ == "__main__":
    parser = harness.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    hits, gains, loader = [], [], []
    for seed in range(1, options.seeds + 1):
        run = harness.Run("configs/ncf_ddp.yaml", ["backend=mpi", f"seed={seed}"], ranks=2, timeout=1800)
        metrics, summary = run.summary["metrics"], run.summary
        hits.append(metrics["hr@10"]["last"])
        gains.append(metrics["ndcg@10"]["last"])
        loader.append(summary["data_cpu_seconds"] / summary["train_seconds"])
        harness.say(f"seed {seed}: HR@10 {hits[-1]:.4f}  NDCG@10 {gains[-1]:.4f}  {summary['samples_per_second']:,.0f} instances/s  "
                    f"loader {100 * loader[-1]:.1f} % of {summary['train_seconds']:.1f} s")
    harness.say(f"\n{'':10s}mean [min … max]; a published-quality dense Adam reaches 0.632 ± 0.007 and 0.363 ± 0.004")
    for name, values in (("HR@10", hits), ("NDCG@10", gains)):
        harness.say(f"{name:10s}{statistics.mean(values):.4f}  [{min(values):.4f} … {max(values):.4f}]")
    ok = harness.verdict("HR@10, mean", statistics.mean(hits), 0.617, at_most=False)
    ok &= harness.verdict("NDCG@10, mean", statistics.mean(gains), 0.350, at_most=False)
    ok &= harness.verdict("HR@10, worst", min(hits), 0.61, at_most=False)
    ok &= harness.verdict("NDCG@10, worst", min(gains), 0.345, at_most=False)
    ok &= harness.verdict("loader CPU ÷ training", statistics.median(loader), 0.05)
    sys.exit(0 if ok else 1)
