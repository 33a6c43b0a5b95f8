#!/usr/bin/env bash
# Breaks each rule of cmake/layering.sh once in a small tree, and checks a tree that breaks none.
set -euo pipefail
cd "$(dirname "$0")/../.."
layering=$PWD/cmake/layering.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
status=0

# refuses FILE TEXT WORDS [LINE]: a tree with this one file is refused with these words, at this line (1).
refuses() {
  mkdir -p "$tree/$(dirname "$1")"
  printf '%s\n' "$2" >"$tree/$1"
  local said
  if said=$("$layering" "$tree") || [[ $said != "$1:${4:-1}: "*"$3"* ]]; then
    printf '%s with %s: expected "%s", got: %s\n' "$1" "$2" "$3" "$said"
    status=1
  fi
  rm "$tree/$1"
}

mkdir -p "$tree"/{core/config,strategies/plans,launch/rank,launch/farm}
printf '#include "core/base/plan.h"\nint single();\n' >"$tree/strategies/plans/single.cpp"
printf '#include <yaml-cpp/yaml.h>\n' >"$tree/core/config/reader.cpp"
printf '#include "models/registry.h"\n#include <hwloc.h>\n// as "single" does\nint a = 4 / 2;  // "single"\n' \
  >"$tree/launch/main.cpp"
printf 'int pipeline();\n' >"$tree/strategies/plans/pipeline.cpp"
printf 'auto* layer = dynamic_cast<const LayerModule*>(&module);\n// Often, "offset"\n// of all\n' \
  >"$tree/core/layer.cpp"
printf '%s\n' 'class Mine : public Base {};' 'auto mine = std::dynamic_pointer_cast<Mine>(base);' '// Whatever it is.' \
  'auto linear = std::dynamic_pointer_cast<torch::nn::LinearImpl>(module);' >"$tree/core/mine.cpp"
printf '#include <ATen/ATen.h>\n' >"$tree/launch/rank/rank.cpp"
printf 'line["pipeline"] = name;\n' >"$tree/launch/farm/farm.cpp"
printf '%s\n' 'namespace convoy {' 'class Known {' '};' 'namespace detail {' 'class Other {' '};' \
  '}  // namespace detail' '}  // namespace convoy' >"$tree/core/known.h"
filler=$(printf '// 1\n%.0s' {1..30})
for file in strategies/plans/{single,pipeline}.cpp core/{config/reader,layer,mine}.cpp core/known.h \
  launch/{main,rank/rank,farm/farm}.cpp; do
  printf '%s\n' "$filler" >>"$tree/$file"
done
printf "namespace convoy {\nclass Other {\n};\n}  // namespace convoy\n$filler\n" >"$tree/core/other.h"
"$layering" "$tree" || { echo "a tree without faults is refused"; status=1; }

refuses core/a.cpp '#include "models/gpt.h"' 'core knows no folder but itself'
refuses models/z.h 'namespace convoy {
class Known {' 'a second class convoy::Known'
refuses models/a.cpp '#include "backends/mpi.h"' 'siblings meet only in core'
refuses strategies/a.h '#include "models/gpt.h"' 'siblings meet only in core'
refuses backends/a.cpp '#include "strategies/registry.h"' 'siblings meet only in core'
refuses launch/a.cpp '#include "tests/support/x.h"' 'does not depend on its tests'
refuses launch/a.cpp '#include "models/gpt.h"' 'catalogue.h or registry.h'
refuses api/a.cpp '#include "launch/job/agent.h"' 'the library is below the programs'
refuses launch/job/a.cpp '#include <convoy/job.h>' 'only launch/rank uses the library'
refuses launch/job/a.cpp '#include "launch/cli/commands.h"' 'use the commands'
refuses core/base/a.cpp '#include "core/data/loader.h"' 'core/data is above core/base in the order of folders'
refuses core/config/a.h '#include "core/data/loader.h"' 'core/data is above core/config'
refuses core/data/formats/a.cpp '#include "core/config/node.h"' 'core/config is above core/data/formats'
refuses core/data/sets/a.cpp '#include "core/training/length.h"' 'core/training is above core/data'
refuses core/control/a.cpp '#include "core/context.h"' 'core/context.h is above core/control'
refuses core/strategy.h '#include "core/data/loader.h"' 'core/data is above core/strategy.h'
refuses core/losses/a.cpp '#include "core/registry.h"' 'core/registry.h is above core/losses'
refuses core/mine/a.cpp '// A new folder.' 'without a place in the order'
refuses launch/text/a.cpp '#include "launch/job/agent.h"' 'launch/job is above launch/text'
refuses launch/prepare/a.cpp '#include "launch/farm/config/farm.h"' 'launch/farm is above launch/prepare'
refuses launch/farm/schedule/a.cpp '#include "launch/farm/run/farm.h"' 'launch/farm is above launch/farm/schedule'
refuses include/convoy/a.h '#include "api/job_impl.h"' 'hide the rest behind a pointer'
refuses include/convoy/a.h '#include <nlohmann/json.hpp>' 'this header is installed'
refuses docs/examples/mine/a.cpp '#include "core/model.h"' 'what a stranger can include'
refuses core/a.cpp '#include <models/gpt.h>' 'core knows no folder but itself'
refuses launch/job/a.cpp '#include <api/components.h>' 'only launch/rank uses the library'
refuses launch/job/a.cpp '#include <launch/rank/rank.h>' 'a program of its own'
refuses launch/a.cpp '#include <models/gpt.h>' 'catalogue.h or registry.h'
refuses core/a.cpp '#include HEADER' 'write the name of the header'
refuses launch/report/a.cpp '#include <ATen/ATen.h>' 'no LibTorch'
refuses launch/job/a.cpp '#include <caffe2/serialize/inline_container.h>' 'no LibTorch'
refuses core/a.cpp '#include "mesh.h"' 'not named from the root'
refuses models/catalogue/mlp.cpp '#include <ATen/ATen.h>' 'no LibTorch'
refuses core/control/a.h '#include <torch/types.h>' 'no LibTorch'
refuses core/a.cpp '#include <torch/torch.h>' 'costs every build'
refuses strategies/a.cpp '#include <mpi.h>' 'communication belongs to backends'
refuses core/a.cpp '#include <torch/csrc/distributed/c10d/Store.hpp>' 'communication belongs to backends'
refuses launch/a.cpp '#include <yaml-cpp/yaml.h>' 'knows YAML'
refuses core/a.cpp '#include <spdlog/spdlog.h>' 'knows spdlog'
refuses core/a.cpp '#include <CLI/CLI.hpp>' 'command line'
refuses core/a.cpp '#include <hwloc.h>' 'reads the machine'
refuses launch/a.cpp 'if (name == "single") return;' 'names a strategy'
refuses core/a.cpp "$(printf '// 1\n%.0s' {1..601})" 'split it'
refuses core/a.cpp "$(printf '// 1\n%.0s' {1..20})" 'merge it'
refuses core/a.cpp "// $(printf 'x%.0s' {1..130})" 'more than 120 columns'
refuses core/a.cpp 'auto* held = dynamic_cast<HeldOutEvaluation*>(&strategy);' 'casts to an interface'
refuses core/a.cpp 'auto held = std::dynamic_pointer_cast<HeldOutEvaluation>(strategy);' 'casts to an interface'
refuses core/a.cpp 'auto* layer = dynamic_cast<LayerModuleX*>(&module);' 'casts to an interface'
refuses core/a.cpp 'f(dynamic_cast<LayerModule*>(a), dynamic_cast<HeldOutEvaluation*>(b));' 'casts to an interface'
refuses launch/a.cpp '#include "strategies/replicas/catalogue.h"' 'names its classes'
refuses core/a.cpp 'auto* held = dynamic_cast<' 'casts to an interface'
refuses core/a.cpp 'if (typeid(strategy) == typeid(Ensemble)) held = static_cast<Ensemble*>(&strategy);' \
  'asks for the class'
refuses core/a.cpp 'std::type_index(info)' 'asks for the class'
refuses core/a.h "$(printf 'struct Held {\n};\nHeld* held(Base* base) { return dynamic_cast<Held*>(base); }')" \
  'casts to' 3
refuses core/a.cpp '// Of the rows.' 'start it with its subject'
refuses core/a.cpp 'int rows;  // Of a batch' 'start it with its subject'
refuses core/a.cpp 'int rows;  // of a batch' 'start it with its subject'
refuses core/a.cpp '/* Of the rows. */' 'start it with its subject'
refuses core/a.cpp ' * Of the rows.' 'start it with its subject'
for word in What Whether Whoever Such; do refuses core/a.cpp "// $word rows are read." 'start it with its subject'; done
refuses launch/a.cpp 'if (name == R"(single)") return;' 'names a strategy'
refuses launch/a.cpp 'if (name == "pipeline") return;' 'names a strategy'
refuses launch/farm/a.cpp 'if (strategy.name == "pipeline") return;' 'names a strategy'
refuses launch/farm/a.cpp 'line["pipeline"] = "single";' 'names a strategy'
refuses launch/a.cpp 'const double half = a / b; if (name == "single") return;' 'names a strategy'
refuses launch/a.cpp 'join("runs/a", "single");' 'names a strategy'
refuses tests/a.cpp "// $(printf 'x%.0s' {1..130})" 'more than 120 columns'
for script in tests/a.py tests/support/a tools/a.sh check; do
  refuses $script "#!$(printf 'x%.0s' {1..130})" 'more than 120 columns'
done
for file in CMakeLists.txt core/CMakeLists.txt cmake/a.cmake launch/a.{js,css,html} configs/{a,tiny/a}.yaml; do
  refuses $file "$(printf 'x%.0s' {1..121})" 'more than 120 columns'
done
rm -r "$tree/cmake"
refuses core/a.inc '#include <ATen/ATen.h>' 'rename it to core/a.h or core/a.cpp'
refuses core/a.hpp '#pragma once' 'rename it to core/a.h or core/a.cpp'
refuses backends/cuda/a.cu 'int a;' 'rename it'
refuses launch/job/a.cpp '#include "launch/rank/rank.h"' 'a program of its own'
refuses strategies/plans/a.cpp '#include "strategies/common/step/update.h"' 'plans are part of convoy'
for header in cuda_runtime.h ATen/cuda/CUDAContext.h c10/cuda/CUDAStream.h torch/cuda.h; do
  refuses core/a.cpp "#include <$header>" 'links the CUDA half'
  refuses backends/gloo/a.cpp "#include <$header>" 'links the CUDA half'
done

# LibTorch through headers of our own.
mkdir -p "$tree/core/data"
printf '#include <ATen/ATen.h>\n%s' "$filler" >"$tree/core/batch.h"
printf '#include "core/batch.h"\n%s' "$filler" >"$tree/core/data/loader.h"
refuses core/config/a.cpp '#include "core/data/loader.h"' 'through core/batch.h -> ATen/ATen.h'
refuses launch/job/a.cpp '#include "core/batch.h"' \
  'includes core/batch.h, which includes LibTorch (through ATen/ATen.h)'
refuses strategies/plans/a.cpp '#include "core/data/loader.h"' 'which includes LibTorch'
printf '#include "core/data/loader.h"\n%s' "$filler" >"$tree/core/trainer.cpp"
"$layering" "$tree" || { echo "LibTorch in a folder that may include it is refused"; status=1; }
rm -r "$tree/core/data" "$tree"/core/{batch.h,trainer.cpp}

# Includes of lower folders and of the same level.
mkdir -p "$tree"/core/data "$tree"/launch/{farm/run,prepare}
printf '#include "core/config/node.h"\n#include "core/batch.h"\n%s' "$filler" >"$tree/core/data/loader.cpp"
printf '#include "core/context.h"\n#include "core/model_interface.h"\n%s' "$filler" >"$tree/core/strategy.h"
printf '#include "core/inject/injector.h"\n%s' "$filler" >"$tree/core/trainer.cpp"
printf '#include "launch/prepare/prepare.h"\n%s' "$filler" >"$tree/launch/farm/run/farm.cpp"
printf '#include "launch/farm/schedule/queue.h"\n%s' "$filler" >"$tree/launch/prepare/prepare.cpp"
"$layering" "$tree" || { echo "an include of a lower folder is refused"; status=1; }
rm -r "$tree/core/data" "$tree"/core/{strategy.h,trainer.cpp} "$tree"/launch/{farm/run,prepare}

mkdir -p "$tree/cmake"
printf 'Shelf -> CheckpointDirectory\nis told -> receives\n' >"$tree/cmake/banned_words"
refuses core/a.cpp 'Shelf shelf;' 'write: CheckpointDirectory'
refuses core/a.cpp '// A rank Is Told this.' 'write: receives'
rm -r "$tree/cmake"
mkdir -p "$tree/models"
for number in {1..31}; do printf '// 1\n%.0s' {1..30} >"$tree/models/m$number.cpp"; done
said=$("$layering" "$tree") && status=1
[[ $said == "models/:1: 31 sources in one folder"* ]] || { echo "a folder of 31 sources: $said"; status=1; }
rm -r "$tree/models"
exit $status
