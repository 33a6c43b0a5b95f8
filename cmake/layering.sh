#!/usr/bin/env bash
# layering.sh [TREE]: checks that every #include respects the layers of docs/architecture.md. Prints FILE:LINE, what is
# wrong and what to do instead. With TREE it checks that tree (for its own test).
set -euo pipefail
rules=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$rules/..}"

found=0
complain() {
  printf '%s: %s\n' "$1" "$2"
  found=1
}

folders='core backends strategies models api include launch tests docs'
mapfile -t files < <(find $folders \( -name '*.h' -o -name '*.cpp' \) 2>/dev/null | sort)
while read -r file; do
  complain "$file:1" "this script and CMake read .h and .cpp only; rename it to ${file%.*}.h or ${file%.*}.cpp"
done < <(find $folders -regextype posix-extended ! -path 'tests/bench/bare/*' \
  -regex '.*\.(hh|hpp|hxx|H|cuh|inc|inl|ipp|tpp|c|cc|cxx|C|c\+\+|cu)' 2>/dev/null | sort)
[ ${#files[@]} -gt 0 ] || exit $found

# Every include once, as FILE:LINE:TARGET with < or " before the target.
includes=$(grep -nHE '^[[:space:]]*#[[:space:]]*include' "${files[@]}" |
  sed -E 's/^([^:]*:[0-9]+):[[:space:]]*#[[:space:]]*include[[:space:]]*([<"])([^>"]*).*/\1 \2 \3/' |
  sed -E "s/ < (convoy|${folders// /|})\// \" \1\//")  # convoy's headers always with "
while IFS=: read -r file line text; do
  complain "$file:$line" "includes a macro; write the name of the header"
done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[^<"[:space:]]' "${files[@]}" /dev/null || true)

# --- which folder may include which -------------------------------------------------------------------------------

# layer REGEX_OF_FILES ALLOWED_FOLDERS REMEDY
layer() {
  local where line kind target
  while read -r where kind target; do
    case $target in
      */*) ;;
      *) complain "$where" "\"$target\" is not named from the root of the tree; write \"FOLDER/$target\""; continue ;;
    esac
    [[ $target =~ ^($2)/ ]] || complain "$where" "includes $target from a folder that it may not include; $3"
  done < <(grep -E "^($1)" <<<"$includes" | grep ' " ' || true)
}
# An example is a separate project, and names its headers freely.
includes=$(grep -vE '^docs/[^ ]* " [^/]*$' <<<"$includes" || true)

seam='take what it needs through core/strategy.h, core/communicator.h or core/model_interface.h'
layer 'core/' 'core' "core knows no folder but itself: move the shared part into core, or $seam"
layer 'backends/' 'core|backends' "siblings meet only in core: $seam"
layer 'strategies/' 'core|strategies' "siblings meet only in core: $seam"
layer 'strategies/plans/' 'core|strategies/plans' \
  "plans are part of convoy, which links no other code of strategies: move the shared part into strategies/plans or \
core/base"
layer 'models/' 'core|models' "siblings meet only in core: $seam"
layer 'api/' 'core|backends|strategies|models|api|convoy' \
  'the library is below the programs: move the shared part into core or api'
layer 'include/' 'core|convoy' \
  'a public header shows core and other public headers only: hide the rest behind a pointer'
layer 'launch/' 'core|backends|strategies|models|api|convoy|launch' 'the program does not depend on its tests'
layer 'docs/' 'convoy' 'an example shows what a stranger can include: <convoy/…> only'

while read -r where kind target; do
  complain "$where" "includes $target; only launch/rank uses the library, which needs LibTorch"
done < <(grep -E '^launch/' <<<"$includes" | grep -vE '^launch/rank/' | grep -E ' " (api|convoy)/' || true)

while read -r where kind target; do
  complain "$where" "includes $target; launch/rank is a program of its own, convoy-rank: move the shared part into \
another folder of launch"
done < <(grep -E '^launch/' <<<"$includes" | grep -vE '^launch/rank/' | grep ' " launch/rank/' || true)
while read -r where kind target; do
  complain "$where" "includes $target; only launch/cli and launch/main.cpp use the commands: move the shared part into \
another folder of launch"
done < <(grep -E '^launch/' <<<"$includes" | grep -vE '^launch/(cli/|main\.cpp:)' | grep ' " launch/cli/' || true)

# The folders below core/ and launch/ from the lowest to the highest, one level a line (docs/architecture.md). A file
# may include its level and lower ones. It belongs to the longest entry that is its folder, or its path without .h and
# .cpp; files of core/ and launch/ itself without an entry are above all folders. launch/cli and launch/rank have their
# own rules above.
core_order='
base
files
data/formats
data/catalogue
config
control
rank_state
batch communicator context generation layers model model_interface state strategy
tensors
data
losses
optim
ranking
metrics
checkpoint
training
inject
'
launch_order='
text
machine
process
diagnose
farm/schedule
prepare
job
farm
explain
init
report
generate
rank cli
'

# ordered FOLDER LEVELS
ordered() {
  local where message
  while read -r where message; do
    complain "$where" "$message"
  done < <({ printf '%s:1\n' "${files[@]}"; printf '%s\n' "$includes"; } | awk -v top="$1" -v levels="$2" '
    # Sets `place` to the entry of a path, and returns its level.
    function level_of(path, i, best) {
      place = path
      best = ""
      sub(/\.[a-z]+$/, "", path)
      for (i in level) if ((path == i || index(path, i "/") == 1) && length(i) > length(best)) best = i
      if (best != "" && best != path) place = best
      if (best == "" && path ~ /\/.*\//) return 0
      return best == "" ? 1000 : level[best]
    }
    BEGIN {
      count = split(levels, lines, "\n")
      for (i = 1; i <= count; ++i) {
        entries = split(lines[i], all, " ")
        for (j = 1; j <= entries; ++j) level[top "/" all[j]] = i
      }
    }
    index($1, top "/") != 1 { next }
    { file = $1; sub(/:[0-9]+$/, "", file); mine = level_of(file); own = place }
    NF == 1 && mine == 0 {
      print $1, "is in a folder without a place in the order; add it to " top "_order in cmake/layering.sh"
    }
    NF == 1 || mine == 0 || index($3, top "/") != 1 || $3 ~ /^launch\/(cli|rank)\// { next }
    { other = level_of($3) }
    other > mine {
      print $1, "includes " $3 ", but " place " is above " own " in the order of folders; move what both need into " \
        own " or a lower folder, or let the caller pass it in"
    }')
}
ordered core "$core_order"
ordered launch "$launch_order"

# Headers that an installation has: include/convoy and what they include of core (cmake/install_headers.cmake). Programs
# of others compile them, so they need LibTorch and the standard library only.
public=$(find include -name '*.h' 2>/dev/null | sort || true)
known=$public
while [ -n "$public" ]; do
  next=$(grep -hoE '^#include "core/[^"]*' $public | sed 's/.*"//' | sort -u | grep -vxF "$known" || true)
  known+=$'\n'$next
  public=$next
done
while read -r where kind target; do
  complain "$where" "includes $target, and this header is installed; declare what you need and include $target in a \
source, as core/base/json.h does"
done < <(grep -F -f <(sed '/^$/d; s/$/:/' <<<"$known") <<<"$includes" |
  grep -E " [<\"] (nlohmann|yaml-cpp|spdlog|fmt|asio|CLI)" || true)

while read -r where kind target; do
  [[ $target =~ ^(backends|models)/(catalogue/catalogue|registry)\.h$|^strategies/(plans/catalogue|registry)\.h$ ]] ||
    complain "$where" "names $target; only a folder's registry names its classes: include its catalogue.h or registry.h"
done < <(grep -E '^launch/' <<<"$includes" | grep -E ' " (backends|strategies|models)/' || true)

# --- folders without LibTorch -------------------------------------------------------------------------------------

# One regular expression for all folders and files of cmake/without_libtorch, and for all of launch. The loop below
# leaves out launch/rank.
without=$(grep -v '^#' "$rules/without_libtorch" |
  sed -E 's/\./\\./g; s|\*|[^/:]*|g; /cpp$/!s|$|/|; /cpp$/s|$|:|' | paste -sd'|')'|launch/'
while read -r where kind target; do
  complain "$where" "includes $target, but this file is also part of convoy, which links no LibTorch; move what needs \
tensors into a file of its own"
done < <(grep -E "^($without)" <<<"$includes" | grep -v '^launch/rank/' |
  grep -E ' [<"] (torch|ATen|c10|caffe2)/' || true)

# Checks the same for headers that are included through others. Prints the first header outside of these folders that
# leads to LibTorch, and how.
while read -r where kind target way; do
  complain "$where" "includes $target, which includes LibTorch ($way), but this file is also part of convoy, which \
links no LibTorch; include a header without it, or move what needs tensors into a folder that cmake/without_libtorch \
does not list"
done < <(awk -v without="^($without)" '
  { file = $1; sub(/:[0-9]+$/, "", file); target = $3; sub(/^convoy\//, "include/convoy/", target) }
  $3 ~ /^(torch|ATen|c10|caffe2)\// { if (!(file in way)) { way[file] = $3; queue[++last] = file } next }
  $2 == "\"" { users[target] = users[target] " " file }
  $2 == "\"" && file ":" ~ without && file !~ /^launch\/rank\// && target !~ without {
    line[++lines] = $0; of[lines] = target
  }
  END {
    for (next_one = 1; next_one <= last; ++next_one) {
      count = split(users[queue[next_one]], all, " ")
      for (i = 1; i <= count; ++i)
        if (!(all[i] in way)) { way[all[i]] = queue[next_one] " -> " way[queue[next_one]]; queue[++last] = all[i] }
    }
    for (i = 1; i <= lines; ++i) if (of[i] in way) print line[i], "through " way[of[i]]
  }' <<<"$includes")

while read -r where kind target; do
  complain "$where" "torch/torch.h costs every build 10 s for this file; include the header of what it uses, such as \
ATen/ATen.h or torch/nn/modules/linear.h"
done < <(grep -vE '^(docs|tests/api)/' <<<"$includes" | grep ' torch/torch\.h$' || true)

# --- third-party headers stay with their owner --------------------------------------------------------------------

# owned REGEX_OF_HEADERS REGEX_OF_OWNERS REMEDY
owned() {
  local where kind target
  while read -r where kind target; do
    complain "$where" "includes $target; $3"
  done < <(grep -vE "^($2)" <<<"$includes" | grep -E " [<\"] ($1)" || true)
}

backend_tests='include/convoy/mpi\.h|docs/examples/embedded_mpi/|tests/backends/|tests/conformance/|tests/support/'
backend_tests+='|tests/bench/'
owned 'mpi\.h|nccl\.h|gloo/|torch/csrc/distributed/|torch/csrc/cuda/nccl' "backends/|$backend_tests" \
  'communication belongs to backends/: use core/communicator.h'
owned '(ATen|c10|torch|torch/csrc)/cuda|cuda' 'backends/cuda/|tests/backends/|tests/conformance/|tests/bench/' \
  'only backends/cuda/module links the CUDA half of LibTorch: add a file there, and load it through backends/registry.h'
owned 're2/' 'core/(base/name_pattern|data/formats/text_splitter)\.cpp' \
  'expressions are compiled in two places: use core/base/name_pattern.h, or core/data/formats/text_splitter.h'
owned 'yaml-cpp/' 'core/config/' 'only the reader of configurations (core/config) knows YAML'
owned 'spdlog/|fmt/' 'core/base/log\.cpp' \
  'only core/base/log.cpp knows spdlog, whose fmt clashes with that of LibTorch: use core/base/log.h'
owned 'hwloc' 'launch/' 'only launch reads the machine: use core/base/plan.h'
owned 'CLI/' 'launch/' 'only launch reads the command line'
owned 'ncurses' 'launch/farm/monitor/screen\.cpp' \
  'only launch/farm/monitor/screen.cpp draws on terminals: use launch/farm/monitor/run_view.h'
owned 'asio' 'core/control/|launch/' 'only the control channel knows asio: use core/control/channel.h'

# --- only strategies/ names strategies ----------------------------------------------------------------------------

# "pipeline" is also a key in the files of a farm, so launch/farm and launch/report may name it away from the word
# strategy.
names=$(find strategies/plans -maxdepth 1 -name '*.cpp' 2>/dev/null | sed -E 's|.*/||; s|\.cpp||' |
  grep -vxE 'catalogue|mesh_plan|schedule|stages' | paste -sd'|' || true)
if [ -n "$names" ]; then
  others=$(tr '|' '\n' <<<"$names" | grep -vx pipeline | paste -sd'|' || true)
  while IFS=: read -r file line text; do
    complain "$file:$line" "names a strategy: ${text#"${text%%[![:space:]]*}"} — ask the strategy (core/strategy.h) or \
its catalogue instead; if the string has nothing to do with the strategy, give the strategy another name"
  done < <(grep -nP "^(?:'\"'|\"(?!\(?(?:$names)\)?\")(?:[^\"\\\\]|\\\\.)*\"|/(?!/)|[^\"/])*+\"\(?(?:$names)\)?\"" \
    "${files[@]}" |
    grep -vE '^(strategies|tests|docs)/' |
    grep -vP "^launch/(farm|report)/(?!.*(?:strategy|\"\(?(?:$others)\)?\"))" || true)
fi

# --- size and shape -----------------------------------------------------------------------------------------------

while read -r lines file; do
  [ "$file" = total ] || [ "$lines" -le 600 ] ||
    complain "$file:1" "$lines lines; past 400 it is usually two ideas: split it"
done < <(wc -l "${files[@]}")

mapfile -t product < <(printf '%s\n' "${files[@]}" | grep -E '^(core|backends|strategies|models|api|include|launch)/')
if [ ${#product[@]} -gt 0 ]; then
  while read -r count folder; do
    [ "$count" -le 30 ] ||
      complain "$folder/:1" "$count sources in one folder; past 30 nobody finds a file: divide it by what the files do"
  done < <(printf '%s\n' "${product[@]}" | sed 's|/[^/]*$||' | sort | uniq -c)

  # A header and its source count together. Stubs, registries, the file that holds the version, interfaces of core and a
  # macro that costs nothing to include may be short.
  while read -r lines module; do
    [ "$lines" -ge 25 ] || complain "$module:1" "$lines lines, header and source together; merge it with the file that \
uses it most"
  done < <(wc -l "${product[@]}" |
    awk '$2 != "total" { name = $2; sub(/\.[a-z]+$/, "", name); n[name] += $1; f[name] = $2 }
         END { for (name in n) print n[name], f[name] }' |
    grep -vE '/(no_[a-z]+|registry|version|vectorised)\.|^[0-9]+ include/|^[0-9]+ core/[a-z_]+\.h$' | sort -k2)

  # Two classes with one name in one namespace: the linker takes functions of either for both.
  while read -r name file; do
    complain "$file:1" "a second class $name in one namespace; rename one"
  done < <(printf '%s\n' "${product[@]}" | grep '\.h$' | xargs awk '
    FNR == 1 { n = 0 }
    /^namespace [a-z:]+ \{/ { space[++n] = $2 }
    /^\}  \/\/ namespace/ { --n }
    /^(class|struct|enum class) [A-Za-z]+ [^;]*\{/ {
      path = ""
      for (i = 1; i <= n; ++i) path = path space[i] "::"
      name = path ($2 == "class" ? $3 : $2)
      if (name in first && first[name] != FILENAME) print name, FILENAME
      first[name] = FILENAME
    }')

  # Allows casts to classes of LibTorch, to classes that the file itself defines, and to two classes of one folder: none
  # of them is the interface of a seam.
  while IFS=: read -r file line text; do
    class=$(sed -E 's/.*cast<(const )?([A-Za-z0-9_]*).*/\2/' <<<"$text")
    [[ $file == *.cpp && -n $class ]] && grep -qE "^(class|struct) $class( |$)" "$file" && continue
    complain "$file:$line" "casts to an interface: $(sed -n "${line}{s/^ *//;p}" "$file"); let the seam return it from \
a method, as Strategy::capabilities does"
  done < <(grep -noP \
    'dynamic_(pointer_)?cast\b(?!\s*<(const )?((torch|c10)::|(LayerModule|CannotExecute)[*&>])).{0,99}' \
    "${product[@]}" /dev/null || true)

  # typeid with a static_cast is the same cast. One file compares the classes of LibTorch's optimizers.
  while IFS=: read -r file line text; do
    complain "$file:$line" "asks for the class of an object ($text); let the seam return what you need from a method, \
as Strategy::capabilities does"
  done < <(grep -noE '\b(typeid|type_index|type_info)\b' "${product[@]}" /dev/null |
    grep -v '^core/optim/torch_optimizer\.cpp:' || true)
fi

# Scripts without a suffix start with #!.
mapfile -t scripts < <(find check quickstart cmake docs packaging tests tools -type f \
  \( -name '*.py' -o -name '*.sh' -o -name '*.sbatch' -o ! -name '*.*' -exec grep -qm1 '^#!' {} \; \) \
  -print 2>/dev/null | sort)
# Page, build files and configurations. uPlot is the work of others, unchanged.
mapfile -t written < <(find CMakeLists.txt cmake configs $folders -type f ! -path 'launch/report/page/uplot/*' \
  \( -name '*.js' -o -name '*.css' -o -name '*.html' -o -name CMakeLists.txt -o -name '*.cmake' \
  -o -path 'configs/*.yaml' \) -print 2>/dev/null | sort)
while IFS=: read -r file line text; do
  complain "$file:$line" "more than 120 columns; break the line"
done < <(LC_ALL=C.UTF-8 grep -nP '^.{121,}' "${files[@]}" ${scripts[@]+"${scripts[@]}"} \
  ${written[@]+"${written[@]}"} /dev/null || true)

# --- comments -----------------------------------------------------------------------------------------------------

while IFS=: read -r file line text; do
  complain "$file:$line" "a comment starts with \"Of\", \"What\" or the like; start it with its subject or a verb"
done < <({
  grep -nE '(//+[!/<]*|/\*+!?|^ *\*) *(Of|What|Whether|Whoever|Such) ' "${files[@]}" /dev/null
  grep -nE '[^ /].*//+[!/<]* *of ' "${files[@]}" /dev/null  # behind code; a line of its own may continue a sentence
} || true)

# --- words --------------------------------------------------------------------------------------------------------

# Identifiers match as whole words and with their case; phrases, which have a blank, match in any case.
words=cmake/banned_words
if [ -f $words ]; then
  mapfile -t searched < <(printf '%s\n' "${product[@]}"
    find docs -name '*.md' ! -name glossary.md ! -name config.md 2>/dev/null || true)
  identifiers=$(grep -E '^[A-Za-z_]+ -> ' $words | sed 's/ -> .*//' | paste -sd'|')
  phrases=$(grep -E '^[^#].* .* -> ' $words | sed 's/ -> .*//' | paste -sd'|')
  better() { grep -iE "^$1 -> " $words | head -1 | sed 's/.* -> //'; }
  # left_over is also a key in checkpoints.
  while IFS=: read -r file line word; do
    [ "$word" != left_over ] || ! sed -n "${line}p" "$file" | grep -q '"left_over' || continue
    complain "$file:$line" "says $word; write: $(better "$word") (docs/glossary.md)"
  done < <({ grep -noE "\\b($identifiers)\\b" "${searched[@]}" /dev/null || true
             grep -nioE "\\b($phrases)\\b" "${searched[@]}" /dev/null || true; } | sort -u)
fi

exit $found
