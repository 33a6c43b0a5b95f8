"""Time saved by each hand-written kernel: the same work without it, in a changed copy of the tree, ÷ with it"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import harness
import ranking
import extending_page

NEVER = ["train.epochs=~", "train.evaluate_every=never", "train.checkpoint_every=never", "train.resume=never"]
# Steps: (configuration, overrides, steps before the measurement, measured steps, ranks).
NCF = ("configs/ncf_story.yaml", ["strategy={name: single}"], 300, 1500, 1)
BAGGING = ("configs/bagging_fashion.yaml", ["device=cpu", "data.prefetch=0"], 100, 600, 1)
MLP = ("configs/mlp_25m.yaml", ["strategy={name: single}"], 3, 12, 1)
CLASSES = ("configs/fashion_mlp.yaml", ["strategy={name: single}", "device=cpu"], 300, 3000, 1)
TABLE = ("configs/bagging_fashion.yaml",
         [*BAGGING[1], "data={name: synthetic, kind: classification, rows: 65536, features: [20], classes: 3}"],
         300, 3000, 1)
RANKING = "all pairs, as tests/bench/run ranking"


def with_option(workload, *overrides):
    return (workload[0], [*workload[1], *overrides], *workload[2:])


IS_SKINNY = "bool is_skinny(const at::Tensor& input, const at::Tensor& weight) {\n"
SKINNY = [("core/tensors/skinny_product.cpp", IS_SKINNY, IS_SKINNY + "  return false;\n")]
ROWS = [("core/optim/rows/row_base.h", "return table.values.is_cpu() && !tensors_;",
         "return false && table.values.is_cpu() && !tensors_;")]
DENSE = [("core/optim/dense.cpp", "  if (slot.values.is_cpu()) {\n    update_by_loop",
          "  if (false && slot.values.is_cpu()) {\n    update_by_loop"),
         ("core/optim/dense.cpp", "  } else if (slot.values.is_cuda() && slot.options.members == 1",
          "  } else if (slot.options.members == 1")]
SQUARES = [("core/optim/loops.cpp", "  if (!values.is_cpu() || !native) {",
            "  if (true || !values.is_cpu() || !native) {"),
           ("core/optim/loops.cpp", "  HostSquareSum result;\n  if (values.scalar_type() == at::kFloat) {",
            "  HostSquareSum result;\n  if (false && values.scalar_type() == at::kFloat) {"),
           ("core/optim/loops.cpp", "  } else if (values.scalar_type() == at::kDouble) {\n    sum_member",
            "  } else if (false && values.scalar_type() == at::kDouble) {\n    sum_member")]
# Kernel: (workload, [(file, code with the kernel, code with LibTorch's operators)]).
KERNELS = {
    "products of skinny layers": (NCF, SKINNY),
    "the same, ten MLPs": (BAGGING, SKINNY),
    "rows of Adam": (NCF, ROWS),
    "rows of SGD": (with_option(NCF, "optimizer={name: sgd, lr: 0.1}"), ROWS),
    "rows of Adagrad": (with_option(NCF, "optimizer={name: adagrad, lr: 0.01}"), ROWS),
    "pairs of user and items": (NCF, [("models/pairs.cpp", "  return user.is_cpu() && (dtype",
                                       "  return false && user.is_cpu() && (dtype")]),
    "cross-entropy, ten MLPs of a table": (TABLE, [("core/losses/losses.cpp", "  if (plain) {",
                                                    "  if (plain && false) {")]),
    "dense Adam, ten MLPs": (BAGGING, DENSE),
    "dense SGD, ten MLPs": (with_option(BAGGING, "optimizer={name: sgd, lr: 0.01, momentum: 0.9}"), DENSE),
    "zeros for denormals": ((*BAGGING[:2], 1000, 400, 1),
                            [("core/optim/loops.h", "before_ | results_to_zero | inputs_to_zero", "before_")]),
    "square sums of gradients": (MLP, SQUARES),
    "draws of dropout": (with_option(CLASSES, "model.dropout=0.1"),
                         [("strategies/common/layers/default_layers.cpp", "  if (!state.exact) {", "  if (true) {")]),
    "scores of all pairs": (RANKING, [("models/ncf.cpp", "return NcfScorer::of(blocks, sizes_);",
                                       "return blocks.empty() ? NcfScorer::of(blocks, sizes_) : nullptr;")]),
}
GATE = 1.10


def step(convoy, workload):
    config, overrides, warm, steps, ranks = workload
    cores = sorted(os.sched_getaffinity(0))[:ranks]
    under = ["taskset", "-c", ",".join(map(str, cores))]
    more = [*NEVER, f"train.max_steps={warm + steps}", f"train.log_every={warm}", *overrides]
    return lambda: harness.Run(config, more, ranks=ranks, under=under, convoy=convoy).step_seconds(skip=warm)


def lists(convoy, folder):
    """Returns the measurement: seconds of the top ten items of all users, without start and loading."""
    run = folder / "run"
    if not run.exists():
        ranking.trained(folder, "run")

    def seconds():
        words = ["recommend", run, "--k", ranking.K, "--to", folder / "top.csv", "--force", "--json"]
        return json.loads(ranking.command(*words, convoy=convoy)[1])["seconds"]
    return seconds


def measurement(convoy, workload, folder):
    return lists(convoy, folder) if workload is RANKING else step(convoy, workload)


def build(tree):
    done = subprocess.run(["cmake", "--build", "build", "--target", "convoy", "convoy-rank"], cwd=tree, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"benchmark: the changed tree does not build:\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    parser = harness.arguments(__doc__)
    parser.add_argument("--only", nargs="*", metavar="WORD", help="kernels whose name has one of these words")
    options = parser.parse_args()
    kernels = {name: kernel for name, kernel in KERNELS.items()
               if not options.only or any(word in name for word in options.only)}
    ok = True
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as folder:
        tree = pathlib.Path(folder) / "tree"
        extending_page.copy_tree(tree)
        settings = extending_page.cmake_settings()
        subprocess.run(["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *settings], cwd=tree, check=True,
                       stdout=subprocess.DEVNULL)
        for number, (name, (workload, changes)) in enumerate(kernels.items(), 1):
            harness.say(f"{name} ({number} of {len(kernels)}): builds without it")
            before = {file: (tree / file).read_text() for file, _, _ in changes}
            for file, lines, without in changes:
                text = (tree / file).read_text()
                if lines not in text:
                    sys.exit(f"benchmark: {file} does not have these lines:\n{lines}")
                (tree / file).write_text(text.replace(lines, without))
            build(tree)
            for file, text in before.items():
                (tree / file).write_text(text)
            figures = harness.interleave(options.rounds, {
                "with": measurement(harness.CONVOY, workload, pathlib.Path(folder)),
                "without": measurement(tree / "build" / "convoy", workload, pathlib.Path(folder))})
            harness.table(figures, "with", "seconds")
            ok &= harness.verdict(f"{name}: without ÷ with", harness.median_ratio(figures, "without", "with"), GATE,
                                  at_most=False)
    sys.exit(0 if ok else 1)
