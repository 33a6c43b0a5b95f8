#!/usr/bin/env bash
# layering.sh [TREE]: does every #include respect the layers of docs/architecture.md? Prints FILE:LINE, what is wrong
# and what to do instead. With a tree it checks that one (for its own test).
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

found=0
complain() {
  printf '%s: %s\n' "$1" "$2"
  found=1
}

folders='core backends strategies models launch tests docs'
mapfile -t files < <(find $folders \( -name '*.h' -o -name '*.cpp' \) 2>/dev/null | sort)
[ ${#files[@]} -gt 0 ] || exit 0

# Every include once, as FILE:LINE:TARGET with < or " before the target.
includes=$(grep -nHE '^[[:space:]]*#[[:space:]]*include' "${files[@]}" |
  sed -E 's/^([^:]*:[0-9]+):[[:space:]]*#[[:space:]]*include[[:space:]]*([<"])([^>"]*).*/\1 \2 \3/')

# --- which folder may include which -------------------------------------------------------------------------------

# layer REGEX_OF_FILES ALLOWED_FOLDERS REMEDY
layer() {
  local where line kind target
  while read -r where kind target; do
    case $target in
      */*) ;;
      *) complain "$where" "\"$target\" is not named from the root of the tree; write \"FOLDER/$target\""; continue ;;
    esac
    [[ $target =~ ^($2)/ ]] || complain "$where" "includes $target, which is not its to know; $3"
  done < <(grep -E "^($1)" <<<"$includes" | grep ' " ' || true)
}
# An example is a project of its own, and names its own headers as it likes.
includes=$(grep -vE '^docs/[^ ]* " [^/]*$' <<<"$includes" || true)

seam='take what it needs through core/strategy.h, core/communicator.h or core/model.h'
layer 'core/' 'core' "core knows no folder but itself: move the shared part into core, or $seam"
layer 'backends/' 'core|backends' "siblings meet only in core: $seam"
layer 'strategies/' 'core|strategies' "siblings meet only in core: $seam"
layer 'models/' 'core|models' "siblings meet only in core: $seam"
layer 'launch/' 'core|backends|strategies|models|launch' 'the program does not depend on its tests'
layer 'docs/' 'core' 'an example shows what a stranger can include: core only'

while read -r where kind target; do
  [[ $target =~ /(catalogue|registry)\.h$ ]] ||
    complain "$where" "names $target; only a folder's registry names its classes: include its catalogue.h or registry.h"
done < <(grep -E '^launch/' <<<"$includes" | grep -E ' " (backends|strategies|models)/' || true)

# --- what goes without LibTorch -----------------------------------------------------------------------------------

torch_free='([^:]*_entry\.cpp|[^:]*/catalogue\.(h|cpp)|core/config/|core/control/|tests/base/|tests/launch/'
torch_free+='|strategies/(description\.cpp|parts/stages/(block_placement|schedule|stages)\.(h|cpp))'
torch_free+='|launch/[^/:]*\.(h|cpp)|launch/commands/|launch/farm/|core/(error|log|text|mesh|plan|topology|options)\.(h|cpp))'
while read -r where kind target; do
  complain "$where" "includes $target, but this file is also part of convoy, which links no LibTorch; move what needs \
tensors into a file of its own"
done < <(grep -E "^$torch_free" <<<"$includes" | grep -E ' [<"] (torch|ATen|c10)/' || true)

while read -r where kind target; do
  complain "$where" "torch/torch.h costs every build 10 s for this file; include the header of what it uses, such as \
ATen/ATen.h or torch/nn/modules/linear.h"
done < <(grep -vE '^docs/' <<<"$includes" | grep ' torch/torch\.h$' || true)

# --- third-party headers stay with their owner --------------------------------------------------------------------

# owned REGEX_OF_HEADERS REGEX_OF_OWNERS REMEDY
owned() {
  local where kind target
  while read -r where kind target; do
    complain "$where" "includes $target; $3"
  done < <(grep -vE "^($2)" <<<"$includes" | grep -E " [<\"] ($1)" || true)
}

backend_tests='tests/backends/|tests/conformance/|tests/support/|tests/bench/'
owned 'mpi\.h|nccl\.h|gloo/|cuda|torch/csrc/distributed/|torch/csrc/cuda/nccl' "backends/|$backend_tests" \
  'communication belongs to backends/: use core/communicator.h'
owned 're2/' 'core/name_pattern\.cpp' 'patterns of names are compiled in one place: use core/name_pattern.h'
owned 'yaml-cpp/' 'core/config/' 'only the reader of configurations (core/config) knows YAML'
owned 'spdlog/|fmt/' 'core/log\.cpp' 'only core/log.cpp knows spdlog, whose fmt clashes with that of LibTorch: use core/log.h'
owned 'hwloc' 'launch/' 'only launch reads the machine: use core/topology.h'
owned 'CLI/' 'launch/' 'only launch reads the command line'
owned 'ncurses' 'launch/farm/screen\.cpp' 'only launch/farm/screen.cpp draws on terminals: use launch/farm/screen.h'
owned 'asio' 'core/control/|launch/' 'only the control channel knows asio: use core/control/channel.h'

# --- strategies are named nowhere else ----------------------------------------------------------------------------

# pipeline is also an axis of the mesh, and so no sign of a strategy.
names=$(find strategies -maxdepth 1 -name '*_entry.cpp' 2>/dev/null | sed -E 's|.*/||; s|_entry\.cpp||' | grep -vx 'pipeline' |
  paste -sd'|')
if [ -n "$names" ]; then
  while IFS=: read -r file line text; do
    complain "$file:$line" "names a strategy: ${text#"${text%%[![:space:]]*}"} — ask the strategy (core/strategy.h) or \
its catalogue instead"
  done < <(grep -nE "^[^/]*\"($names)\"" "${files[@]}" | grep -vE '^(strategies|tests|docs)/' || true)
fi

# --- size ---------------------------------------------------------------------------------------------------------

while read -r lines file; do
  [ "$file" = total ] || [ "$lines" -le 600 ] || complain "$file:1" "$lines lines; past 400 it is usually two ideas: split it"
done < <(wc -l "${files[@]}")

exit $found
