"""NeuMF on MovieLens-100K after 20 epochs, two mpi ranks, three seeds: HR@10, NDCG@10 of dense and sparse embeddings"""
# needs data: movielens
import statistics
import sys

import harness

if __name__ == "__main__":
    parser = harness.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    tables = {"dense": [], "rows": ["model.rows=true"]}
    hits, gains, loader = {name: [] for name in tables}, {name: [] for name in tables}, []
    for seed in range(1, options.seeds + 1):
        for name, sets in tables.items():
            run = harness.Run("configs/ncf_ddp.yaml", ["backend=mpi", f"seed={seed}", *sets], ranks=2, timeout=1800)
            metrics, summary = run.summary["metrics"], run.summary
            hits[name].append(metrics["hr@10"]["last"])
            gains[name].append(metrics["ndcg@10"]["last"])
            share = summary["data_cpu_seconds"] / summary["train_seconds"]
            if name == "dense":
                loader.append(share)
            harness.say(f"seed {seed}, {name:5s}: HR@10 {hits[name][-1]:.4f}  NDCG@10 {gains[name][-1]:.4f}  "
                        f"{summary['samples_per_second']:,.0f} instances/s  "
                        f"loader {100 * share:.1f} % of {summary['train_seconds']:.1f} s")
    harness.say(f"\n{'':15s}mean [min … max]; a published-quality dense Adam reaches 0.632 ± 0.007 and 0.363 ± 0.004")
    ok = True
    for metric, values, least, worst in (("HR@10", hits, 0.617, 0.61), ("NDCG@10", gains, 0.350, 0.345)):
        for name, of in values.items():
            harness.say(f"{metric + ', ' + name:15s}{statistics.mean(of):.4f}  [{min(of):.4f} … {max(of):.4f}]")
            ok &= harness.check(f"{metric}, {name}, mean", statistics.mean(of), least, at_most=False)
            ok &= harness.check(f"{metric}, {name}, worst", min(of), worst, at_most=False)
        apart = abs(statistics.mean(values["rows"]) - statistics.mean(values["dense"]))
        ok &= harness.check(f"{metric}, rows from dense, means apart", apart, 0.01)
    ok &= harness.check("loader CPU ÷ training", statistics.median(loader), 0.05)
    sys.exit(0 if ok else 1)
