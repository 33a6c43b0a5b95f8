#!/bin/bash
# The example plugin, copied out of the tree, built against the build folder and trained by two ranks under ddp; and the
# errors for wrong options and for a library that others may write.
# timeout: 600
set -euo pipefail

work=$(mktemp -d "${TMPDIR:-/tmp}/convoy-plugin-XXXXXX")
trap 'rm -rf "$work"' EXIT
convoy=$CONVOY_BUILD/convoy
fail() { echo "FAILED: $*" >&2; exit 1; }

cp -r "$CONVOY_SOURCE/docs/examples/plugin" "$work/mine"
cd "$work/mine"
cmake -S . -B build -G Ninja -Dconvoy_DIR="$CONVOY_BUILD" >"$work/cmake.log" 2>&1 ||
  { cat "$work/cmake.log"; fail configuring; }
cmake --build build >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail building; }
chmod go-w build build/libmine.so

library=$PWD/build/libmine.so
run() { "$convoy" run mine.yaml --set model.plugin="$library" --set backend=gloo "$@"; }

run --output "$work/out" >"$work/run.log" 2>&1 || { cat "$work/run.log"; fail "training ended with $?"; }
python3 - "$work/out/summary.json" <<'END'
import json, sys
summary = json.load(open(sys.argv[1]))
assert summary["status"] == "done" and summary["world_size"] == 2, summary
loss = summary["metrics"]["loss"]
assert loss["last"] < 0.25, loss
print("huber loss of the plugin's model:", loss["last"])
END

# A target of one number has the shape [B]: the loss must still be a sum over rows, which verify checks.
python3 -c 'for n in range(80): print("x,z,y" if n == 0 else f"{n % 7},{n % 5},{n % 7 - n % 5}")' >one.csv
cat >one.yaml <<END
name: one
plugins: [$library]
model: {name: mlp, hidden: [8]}
loss: {name: huber, delta: 0.5}
data: {name: table, path: one.csv, task: regression, target: y}
optimizer: {name: adam}
train: {epochs: 3, batch: {global: 16}}
strategy: {name: ddp}
launch: {ranks: 2}
backend: gloo
END
"$convoy" verify one.yaml --steps 5 >"$work/one.log" 2>&1 ||
  { cat "$work/one.log"; fail "verify with a single target"; }

expect() {  # code, words, arguments…
  local code=$1 words=$2 got=0
  shift 2
  run --output "$work/none" "$@" >"$work/bad.log" 2>&1 || got=$?
  [ "$got" = "$code" ] || { cat "$work/bad.log"; fail "exit $got instead of $code for $*"; }
  grep -q -- "$words" "$work/bad.log" || { cat "$work/bad.log"; fail "no '$words' for $*"; }
}
expect 78 "did you mean hidden" --set 'model.hiden=[3]'
expect 78 "loss.delta" --set loss.delta=-1
expect 78 "transforms.0.width" --set data.transforms.0.width=wide
chmod g+w build/libmine.so
expect 77 "chmod go-w"
chmod g-w build/libmine.so
expect 78 "absolute" --set model.plugin=build/libmine.so
echo passed
