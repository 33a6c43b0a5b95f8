#!/usr/bin/env bash
# Each rule of cmake/layering.sh, broken once in a tree made for it, and a tree that breaks none.
set -euo pipefail
cd "$(dirname "$0")/../.."
layering=$PWD/cmake/layering.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
status=0

# refuses FILE LINE WORDS: a tree with this one file is refused with these words.
refuses() {
  mkdir -p "$tree/$(dirname "$1")"
  printf '%s\n' "$2" >"$tree/$1"
  local said
  if said=$("$layering" "$tree") || [[ $said != "$1:1: "*"$3"* ]]; then
    printf '%s with %s: expected "%s", got: %s\n' "$1" "$2" "$3" "$said"
    status=1
  fi
  rm "$tree/$1"
}

mkdir -p "$tree"/{core/config,strategies,launch}
printf '#include "core/mesh.h"\nint single();\n' >"$tree/strategies/single_entry.cpp"
printf '#include <yaml-cpp/yaml.h>\n' >"$tree/core/config/reader.cpp"
printf '#include "models/registry.h"\n#include <hwloc.h>\n// as "single" does\n' >"$tree/launch/main.cpp"
"$layering" "$tree" || { echo "a tree without faults is refused"; status=1; }

refuses core/a.cpp '#include "models/mlp.h"' 'core knows no folder but itself'
refuses models/a.cpp '#include "backends/mpi.h"' 'siblings meet only in core'
refuses strategies/a.h '#include "models/mlp.h"' 'siblings meet only in core'
refuses backends/a.cpp '#include "strategies/ddp.h"' 'siblings meet only in core'
refuses launch/a.cpp '#include "tests/support/x.h"' 'does not depend on its tests'
refuses launch/a.cpp '#include "models/mlp.h"' 'catalogue.h or registry.h'
refuses core/a.cpp '#include "mesh.h"' 'not named from the root'
refuses models/mlp_entry.cpp '#include <ATen/ATen.h>' 'no LibTorch'
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
exit $status
