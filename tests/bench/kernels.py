"""What each hand-written kernel saves: a step of one core without it, in a changed copy of the tree, ÷ a step of this build"""
# needs data: fashion-mnist
import os
import pathlib
import subprocess
import sys
import tempfile

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import extending_page

NEVER = ["train.epochs=~", "train.evaluate_every=never", "train.checkpoint_every=never", "train.resume=never"]
# Steps: (configuration, overrides, steps before the measurement, measured steps).
NCF = ("configs/ncf_story.yaml", ["strategy={name: single}"], 300, 1500)
BAGGING = ("configs/bagging_fashion.yaml", ["device=cpu", "data.prefetch=0"], 100, 600)
MLP = ("configs/mlp_25m.yaml", ["strategy={name: single}", "optimizer={name: adam, lr: 1.0e-3}"], 3, 12)
IS_SKINNY = "bool is_skinny(const at::Tensor& input, const at::Tensor& weight) {\n"
SKINNY = ("core/tensors/skinny_product.cpp", IS_SKINNY, IS_SKINNY + "  return false;\n")
# Kernel: (its step, file, lines, and the same lines without the kernel).
KERNELS = {
    "products of skinny layers": (NCF, *SKINNY),
    "the same, ten stacked MLPs": (BAGGING, *SKINNY),
    "rows of Adam": (NCF, "core/optim/rows/row_base.h", "return table.values.is_cpu() && !paths_.tensors;",
                     "return false && table.values.is_cpu() && !paths_.tensors;"),
    "pairs of user and items": (NCF, "models/pairs.cpp", "  return user.is_cpu() && (dtype", "  return false && user.is_cpu() && (dtype"),
    "relu of a sum": (NCF, "core/tensors/activation.cpp", "  if (!plain) return", "  if (!plain || true) return"),
    "cross-entropy of few classes": (BAGGING, "core/losses/losses.cpp", "  if (plain) {", "  if (plain && false) {"),
    "dense Adam": (MLP, "core/optim/dense.cpp", "  if (slot.values.is_cpu()) {\n    update_by_loop",
                   "  if (false && slot.values.is_cpu()) {\n    update_by_loop"),
}
GATE = 1.10


def step(convoy, workload):
    config, overrides, warm, steps = workload
    one_core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    more = [*NEVER, f"train.max_steps={warm + steps}", f"train.log_every={warm}", *overrides]
    return lambda: harness.Run(config, more, ranks=1, under=one_core, convoy=convoy).step_seconds(skip=warm)


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
        subprocess.run(["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *settings], cwd=tree, check=True, stdout=subprocess.DEVNULL)
        for number, (name, (workload, file, lines, without)) in enumerate(kernels.items(), 1):
            harness.say(f"{name} ({number} of {len(kernels)}): builds without it")
            text = (tree / file).read_text()
            if text.count(lines) != 1:
                sys.exit(f"benchmark: {file} has these lines {text.count(lines)} times:\n{lines}")
            (tree / file).write_text(text.replace(lines, without))
            build(tree)
            (tree / file).write_text(text)
            figures = harness.interleave(options.rounds, {"with": step(harness.CONVOY, workload),
                                                          "without": step(tree / "build" / "convoy", workload)})
            harness.table(figures, "with", "seconds a step")
            ok &= harness.verdict(f"{name}: step without ÷ with", harness.median_ratio(figures, "without", "with"), GATE,
                                  at_most=False)
    sys.exit(0 if ok else 1)
