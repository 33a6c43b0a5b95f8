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
# The first moments of pixels that are nearly always black are denormal numbers from some 830 updates on.
LONG_BAGGING = (*BAGGING[:2], 1000, 400, 1)
MLP = ("configs/mlp_25m.yaml", ["strategy={name: single}"], 4, 40, 1)
CLASSES = ("configs/fashion_mlp.yaml", ["strategy={name: single}", "device=cpu"], 300, 3000, 1)
TABLE = ("configs/bagging_fashion.yaml",
         [*BAGGING[1], "data={name: synthetic, kind: classification, rows: 65536, features: [20], classes: 3}"],
         300, 3000, 1)
RANKING = "all pairs, as tests/bench/run ranking"


def with_option(workload, *overrides):
    return (workload[0], [*workload[1], *overrides], *workload[2:])


IS_SKINNY = "bool is_skinny(const at::Tensor& input, const at::Tensor& weight) {\n"
IS_SKINNY_SUM = "bool is_skinny_sum(const at::Tensor& rows, const at::Tensor& out) {\n"
SKINNY = [("core/tensors/skinny_product.cpp", function, function + "  return false;\n")
          for function in (IS_SKINNY, IS_SKINNY_SUM)]
ROWS = [("core/optim/rows/row_base.h", "return table.values.is_cpu() && !tensors_;",
         "return false && table.values.is_cpu() && !tensors_;")]
# LibTorch's fused optimizers (Adagrad: separate operators), once for each member, with zeros for denormal numbers.
DENSE = [("core/optim/dense.cpp", "    update_by_loop(slot, dense, scalars);\n", """\
    const DenormalsAreZero denormals;
    const int64_t members = slot.options.members;
    const auto of = [&](const at::Tensor& one, int64_t m) {
      return one.numel() == 1 ? one : one.reshape({-1}).narrow(0, m, 1);
    };
    for (int64_t m = 0; m < members; ++m) {
      Slot alone{slot.values.view({members, -1}).select(0, m), slot.options, {}};
      for (const at::Tensor& moment : slot.moments) alone.moments.push_back(moment.view({members, -1}).select(0, m));
      update_fused(alone, dense.view({members, -1}).select(0, m),
                   {of(scalars.learning_rate, m), of(scalars.step, m), of(scalars.gradient_scale, m),
                    of(scalars.apply, m)});
    }
""")]
# LibTorch's fused SGD by ranges, whose scaled gradients stay in the cache.
DENSE_SGD = [("core/optim/dense.cpp", "    sgd_loop(values, gradient, moments[0], n, step(options, scalars));\n", """\
    const SgdStep s = step(options, scalars);
    using T = std::remove_pointer_t<decltype(values)>;
    for (int64_t at = 0; at < n; at += 1 << 14) {
      const int64_t count = std::min<int64_t>(1 << 14, n - at);
      const auto range = [&](const T* first) {
        return at::from_blob(const_cast<T*>(first + at), {count}, c10::CppTypeToScalarType<T>::value);
      };
      std::vector<at::Tensor> velocity;
      if (moments[0] != nullptr) velocity.push_back(range(moments[0]));
      at::_fused_sgd_({range(values)}, {range(gradient) * s.gradient_scale}, velocity, s.l2, s.momentum,
                      s.learning_rate, 0, s.nesterov, false, false);
    }
"""),
             ("core/optim/dense.cpp", "#include <ATen/ops/full.h>\n",
              "#include <ATen/ops/full.h>\n#include <ATen/ops/from_blob.h>\n#include <ATen/ops/mul.h>\n")]
PAIRS = "core/ranking/pair_scorer.cpp"
# The same split into terms of rows and of items, with LibTorch's operators for a row and all items of the block.
SCORES = [(PAIRS, "#include <ATen/Dispatch.h>\n", "#include <ATen/ATen.h>\n#include <ATen/Dispatch.h>\n"),
          (PAIRS, "  for (int64_t begin = 0; begin < catalogue; begin += items_together)\n", """\
  const auto options = rows.options();
  for (int64_t row = 0; row < count; ++row) {
    at::Tensor here_ = items.add(rows.select(0, row)).relu_();
    for (const TransposedLayer& layer : layers_)
      here_ = at::addmm(layer.bias, here_.narrow(1, 0, layer.in), layer.weight).relu_();
    at::from_blob(out + row * catalogue, {catalogue}, options)
        .add_(at::mv(here_.narrow(1, 0, output_.numel()), output_));
  }
  if (count > 0) return;
  for (int64_t begin = 0; begin < catalogue; begin += items_together)
""")]
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
    "dense Adam, ten MLPs": (LONG_BAGGING, DENSE),
    "dense Adagrad, ten MLPs": (with_option(BAGGING, "optimizer={name: adagrad, lr: 0.01}"), DENSE),
    "dense SGD, ten MLPs": (with_option(LONG_BAGGING, "optimizer={name: sgd, lr: 0.01, momentum: 0.9}"), DENSE_SGD),
    "dense SGD, MLP of 25 M": (with_option(MLP, "optimizer={name: sgd, lr: 0.01}"), DENSE_SGD),
    "zeros for denormals": (LONG_BAGGING,
                            [("core/optim/loops.h", "before_ | results_to_zero | inputs_to_zero", "before_")]),
    "square sums of gradients": (MLP, SQUARES),
    "draws of dropout": (with_option(CLASSES, "model.dropout=0.1"),
                         [("strategies/common/layers/default_layers.cpp", "  if (!state.exact) {", "  if (true) {")]),
    "scores of all pairs": (RANKING, SCORES),
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
            measured = harness.interleave(options.rounds, {
                "with": measurement(harness.CONVOY, workload, pathlib.Path(folder)),
                "without": measurement(tree / "build" / "convoy", workload, pathlib.Path(folder))})
            harness.table(measured, "with", "seconds")
            ok &= harness.check(f"{name}: without ÷ with", harness.median_ratio(measured, "without", "with"), GATE,
                                  at_most=False)
    sys.exit(0 if ok else 1)
