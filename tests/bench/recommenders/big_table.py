"""Sparse embedding of 20 million rows of 32 with row_adam: peak memory, and step compared with one of a million rows"""
import statistics

import harness

CONFIG = "configs/bench/big_table.yaml"
ROWS, FEW, WIDTH = 20_000_000, 1_000_000, 32
STATE = 3 * ROWS * WIDTH * 4  # weights and two moments
WARM = 200


def measured(rows):
    run = harness.Run(CONFIG, [f"data.items={rows}"], ranks=1, timeout=1200)
    return run.step_seconds(WARM), max(rank["peak_resident_bytes"] for rank in run.summary["ranks"])


def main():
    options = harness.arguments(__doc__).parse_args()
    peaks = []

    def large():
        seconds, peak = measured(ROWS)
        peaks.append(peak)
        return seconds * 1e6

    measurements = harness.interleave(options.rounds, {"20 M rows": large, "1 M rows": lambda: measured(FEW)[0] * 1e6})
    for name, microseconds in measurements.items():
        harness.say(f"  {name:10s} {harness.spread(microseconds)} µs a step")
    ratios = [a / b for a, b in zip(measurements["20 M rows"], measurements["1 M rows"])]
    harness.say(f"  peak {statistics.median(peaks) / 1e9:.2f} GB; weights and moments {STATE / 1e9:.2f} GB")
    ok = harness.check("peak ÷ weights and moments", statistics.median(peaks) / STATE, 1.2, aim=1.1)
    ok &= harness.check("step, 20 M rows ÷ 1 M", statistics.median(ratios), 1.5, aim=1.2)
    raise SystemExit(0 if ok else 1)


if __name__ == "__main__":
    main()
