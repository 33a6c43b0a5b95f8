"""Costs of synchronisation frequency: loss and HR@10 against samples and time, every = 1, 4, 16, 64 of each kind"""
# needs data: movielens
import argparse
import json
import pathlib
import sys

import harness

EVERY = (1, 4, 16, 64)
KINDS = ("gradients", "parameters", "diloco")
SUBJECTS = {
    # name: (configuration, metric, its label, overrides)
    "ncf": ("configs/ncf_ddp.yaml", "hr@10", "HR@10", ["train.checkpoint_every=never"]),
    "gpt": ("configs/gpt_ddp.yaml", "loss", "loss", ["train.checkpoint_every=never", "model.layers=2", "model.dim=128",
                                                     "data.length=64"]),
}


def policies():
    """Returns (kind, every, overrides); gradients of every update are the reference for the others."""
    yield "gradients", 1, []
    for kind in KINDS:
        for every in EVERY:
            if (kind, every) != ("gradients", 1):
                yield kind, every, [f"strategy.sync.what={kind}", f"strategy.sync.every={every}"]
    for numbers in ("fp16", "bf16"):
        yield f"gradients, {numbers}", 1, [f"strategy.sync.compress={numbers}"]


def curve(run, name):
    """Returns [(fraction of the samples, seconds of training, value)] for the run's evaluations."""
    steps = run.summary["steps"]
    return [(record["step"] / steps, record["seconds"], record["metrics"][name])
            for record in run.records if record["kind"] == "evaluate" and name in record["metrics"]]


def measured(config, metric, sets, seeds):
    rows = []
    for kind, every, overrides in policies():
        runs = [harness.Run(config, [*sets, *overrides, f"seed={seed}"], timeout=3600) for seed in range(1, seeds + 1)]
        curves = [curve(run, metric) for run in runs]
        rows.append({"kind": kind, "every": every, "curves": curves,
                     "value": sum(points[-1][2] for points in curves) / seeds,
                     "half": sum(points[(len(points) - 1) // 2][2] for points in curves) / seeds,
                     "rate": sum(run.summary["samples_per_second"] for run in runs) / seeds,
                     "seconds": sum(run.summary["train_seconds"] for run in runs) / seeds,
                     "bytes": runs[0].summary["bytes_sent_per_step"]})
        harness.say(f"{kind:16s} every {every:2d}: {metric} {rows[-1]['value']:.4f}, {rows[-1]['seconds']:.1f} s, "
                    f"{rows[-1]['bytes'] / 1024:.1f} KiB a step")
    return rows


def table(title, label, rows):
    lines = [f"**{title}**", "",
             f"| agreed on | every | {label} half-way | {label} at the end | training, s | samples/s | "
             "sent a step, KiB |",
             "|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['kind']} | {row['every']} | {row['half']:.4f} | {row['value']:.4f} | "
                     f"{row['seconds']:.1f} | {row['rate']:,.0f} | {row['bytes'] / 1024:.1f} |")
    return "\n".join(lines) + "\n"


def plot(title, label, rows, path):
    """Writes two SVG panels: the value against samples, and against seconds of training."""
    width, height, left, top, gap = 420, 260, 50, 30, 70
    colours = {"gradients": "#3366aa", "parameters": "#cc6622", "diloco": "#228855"}
    chosen = [row for row in rows if row["kind"] in colours]
    points = [(row, [(x, s, v) for x, s, v in row["curves"][0]]) for row in chosen]
    values = [v for _, line in points for _, _, v in line]
    low, high = min(values), max(values)
    body = [f'<text x="{left}" y="18" font-size="13">{title}</text>']
    for panel, (axis, pick) in enumerate((("share of the samples", 0), ("seconds of training", 1))):
        x0, most = left + panel * (width + gap), max(point[pick] for _, line in points for point in line)
        body.append(f'<rect x="{x0}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>')
        body.append(f'<text x="{x0 + width / 2 - 50}" y="{top + height + 32}" font-size="11">'
                    f'{axis} (to {most:.3g})</text>')
        body.append(f'<text x="{x0 - 45}" y="{top + 10}" font-size="10">{high:.3f}</text>')
        body.append(f'<text x="{x0 - 45}" y="{top + height}" font-size="10">{low:.3f}</text>')
        for row, line in points:
            shown = " ".join(f"{x0 + width * point[pick] / most:.1f},"
                             f"{top + height * (1 - (point[2] - low) / ((high - low) or 1)):.1f}" for point in line)
            body.append(f'<polyline points="{shown}" fill="none" stroke="{colours[row["kind"]]}" '
                        f'stroke-width="{1 + 0.7 * EVERY.index(row["every"])}" stroke-opacity="0.75"/>')
    for place, (kind, colour) in enumerate(colours.items()):
        body.append(f'<text x="{left + 150 * place}" y="{top + height + 55}" font-size="11" fill="{colour}">{kind} '
                    '(thicker: every 4, 16, 64)</text>' if place == 0 else
                    f'<text x="{left + 90 + 150 * place}" y="{top + height + 55}" font-size="11" '
                    f'fill="{colour}">{kind}</text>')
    size = f'width="{2 * width + gap + left + 20}" height="{top + height + 70}"'
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n' + "\n".join(body) +
                    "\n</svg>\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4, help="of MovieLens (default %(default)s)")
    parser.add_argument("--steps", type=int, default=192, help="of the GPT (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="means over so many (default %(default)s)")
    parser.add_argument("--only", choices=SUBJECTS, help="one of them")
    parser.add_argument("--backend", default="mpi")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every run")
    parser.add_argument("--write", metavar="FOLDER", help="sync_NAME.md, .svg and .json go there")
    options = parser.parse_args()
    lengths = {"ncf": [f"train.epochs={options.epochs}"],
               "gpt": [f"train.max_steps={options.steps}", f"train.evaluate_every={max(1, options.steps // 8)} steps",
                       "optimizer.schedule={name: cosine, warmup: 20 steps, final: 0.1}"]}
    for name, (config, metric, label, sets) in SUBJECTS.items():
        if options.only not in (None, name):
            continue
        own = [*sets, *lengths[name], f"backend={options.backend}", *options.set]
        rows = measured(config, metric, own, options.seeds)
        title = f"{pathlib.Path(config).stem}, two {options.backend} ranks"
        harness.say("\n" + table(title, label, rows))
        if options.write:
            folder = pathlib.Path(options.write)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"sync_{name}.md").write_text(table(title, label, rows))
            (folder / f"sync_{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
            plot(title, label, rows, folder / f"sync_{name}.svg")
    sys.exit(0)
