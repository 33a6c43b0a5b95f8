# Sourced by ./quickstart and ./check, from the project's root: everything that both need before they can build. Prints
# one line per step; output of the tools goes to a log, which is shown if a step fails.

torch_version=2.11.0      # installed if there is no LibTorch; cmake/LibTorch.cmake lists what else fits
torch_download="2.7 GB"   # its wheel and its CUDA libraries, as measured
torch_installed="4.7 GB"
mkdocs_version=1.6.1      # makes the site of docs/
transformers_version=5.23.0  # tests compare models with those of Python
torchvision_version=0.26.0   # for this torch
scikit_learn_version=1.9.1   # for its data
venv=.deps/venv
cuda_headers=.deps/cuda-headers

say() { printf '%s\n' "$*"; }

stop() {
  printf '%s\n' "$@" >&2
  exit 1
}

# quietly LOG COMMAND...: shows the end of the output only when the command fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 && return
  printf '\nfailed: %s\n' "$*" >&2
  tail -n 40 "$log" >&2
  printf 'all of it: %s\n' "$log" >&2
  return 1
}

# Debian package, and a command or file that shows that it is installed (or the equivalent of another distribution).
# Looking for files is quick, and also finds what was installed in another way.
build_packages='
  cmake cmake
  ninja-build ninja
  g++ c++
  ccache ccache
  lld ld.lld
  python3 python3
  python3-venv /usr/lib/python3*/ensurepip/__init__.py
  openmpi-bin mpirun
  libopenmpi-dev mpicc
  libgloo-dev /usr/include/gloo/context.h
  libyaml-cpp-dev /usr/include/yaml-cpp/yaml.h
  libspdlog-dev /usr/include/spdlog/spdlog.h
  libcli11-dev /usr/include/CLI/CLI.hpp
  nlohmann-json3-dev /usr/include/nlohmann/json.hpp
  libasio-dev /usr/include/asio.hpp
  libhwloc-dev /usr/include/hwloc.h
  libdw-dev /usr/include/elfutils/libdwfl.h
  libxxhash-dev /usr/include/xxhash.h
  libncurses-dev /usr/include/ncurses.h
  zlib1g-dev /usr/include/zlib.h
  libpng-dev /usr/include/png.h
  libturbojpeg0-dev /usr/include/turbojpeg.h
  libre2-dev /usr/include/re2/re2.h
  libjemalloc-dev /usr/include/jemalloc/jemalloc.h
  libgtest-dev /usr/include/gtest/gtest.h
  libgmock-dev /usr/include/gmock/gmock.h
  dataset-fashion-mnist /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz'
# The text that configs/gpt_*.yaml train on; ./check does not need it.
text_packages='
  bible-kjv bible'
check_packages='
  clang-format clang-format
  procps ps'
# Shells and the formatter of manual pages, for the tests of the generated completions and of the manual page.
shell_packages='
  zsh zsh
  fish fish
  groff groff'
# Simulated hosts and a small Slurm, for the tests of several hosts; without them these tests are skipped.
cluster_packages='
  iproute2 /sbin/ip
  util-linux /usr/bin/nsenter
  munge /usr/sbin/munged
  slurmctld /usr/sbin/slurmctld
  slurmd /usr/sbin/slurmd
  slurm-client /usr/bin/srun
  slurm-wlm-basic-plugins /usr/lib/*/slurm-wlm/mpi_pmix.so'

# The browser that opens the page of `convoy report`, for one slow test; without it this test is skipped.
browser_packages='
  chromium chromium'

# missing_packages LIST: prints the packages of the list that are not installed.
missing_packages() {
  local package probe
  while read -r package probe; do
    [ -n "$package" ] || continue
    case $probe in
      /*) compgen -G "$probe" >/dev/null || printf '%s ' "$package" ;;
      *) command -v "$probe" >/dev/null || printf '%s ' "$package" ;;
    esac
  done <<<"$1"
}

install_packages() {
  local missing sudo='' size
  missing=$(missing_packages "$1")
  [ -n "$missing" ] || return 0
  local line="apt-get install --no-install-recommends ${missing% }"
  command -v apt-get >/dev/null ||
    stop "missing here, by their Debian names: $missing" "install what your system calls them, then start again"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null ||
      stop "missing system packages; type this, then start again:" "  sudo $line"
    sudo='sudo -n'
  fi
  # A machine that never fetched the lists of packages has none. A machine with old lists requests files that no longer
  # exist.
  if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || ! apt-get install -s $missing >/dev/null 2>&1; then
    say "packages: reading the lists of packages"
    quietly .deps/log/apt-update.log $sudo apt-get update -q
  fi
  size=$(LC_ALL=C $sudo apt-get install --no-install-recommends --assume-no $missing 2>&1 |
    sed -n -e 's/^Need to get \(.*\) of archives.*/\1 to fetch/p' \
      -e 's/^After this operation, \(.*\) of additional disk space.*/\1 on disk/p' |
    paste -sd, | sed 's/,/, /') || true
  say "packages: installing ${missing% } (${size:-size unknown})"
  quietly .deps/log/apt-install.log $sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends $missing || {
    # The lists may be older than what the archive still has.
    say "packages: once more with fresh lists of packages"
    quietly .deps/log/apt-update.log $sudo apt-get update -q
    quietly .deps/log/apt-install.log $sudo env DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends $missing
  }
}

# offer_packages LIST WHAT: install_packages for packages that the build does not require. Prints WHAT if they cannot be
# installed.
offer_packages() {
  local missing
  missing=$(missing_packages "$1")
  [ -n "$missing" ] || return 0
  if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; } &&
    (install_packages "$1"); then
    return 0
  fi
  say "$2: missing here, by their Debian names: ${missing% }"
}

# python_torch PYTHON: version and place of the torch that it would import, if it is new enough and completely
# installed.
python_torch() {
  "$1" - 2>/dev/null <<'PYTHON'
import importlib.metadata as metadata, re, sys
version = metadata.version("torch")
major, minor = map(int, re.match(r"(\d+)\.(\d+)", version).groups())
# pip writes the list of files last: without it, the installation is incomplete.
whole = metadata.distribution("torch").files
where = metadata.distribution("torch").locate_file("torch")
sys.exit(print(f"{version} in {where}") if major == 2 and minor >= 11 and whole else 1)
PYTHON
}

free_gigabytes() { df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }'; }

install_torch() {
  local version
  if [ -n "${Torch_DIR:-}" ]; then
    say "LibTorch: yours, Torch_DIR=$Torch_DIR"
    return
  fi
  if version=$(python_torch $venv/bin/python3) || version=$(python_torch python3); then
    say "LibTorch: $version"
    return
  fi
  say "LibTorch: installing torch $torch_version into $venv ($torch_download to fetch, $torch_installed on disk;" \
    "to use one that you have, set Torch_DIR)"
  [ "$(free_gigabytes)" -ge 8 ] ||
    stop "this needs 8 GB of free disk while it unpacks; there are $(free_gigabytes) here"
  make_venv
  # Temporary space next to the destination: /tmp is often a small memory disk.
  rm -rf .deps/tmp
  mkdir -p .deps/tmp
  quietly .deps/log/pip-torch.log env TMPDIR="$PWD/.deps/tmp" $venv/bin/python3 -m pip install \
    --disable-pip-version-check --progress-bar off "torch==$torch_version" numpy safetensors
  rm -rf .deps/tmp
}

# missing_cuda_headers PYTHON: release of CUDA if the headers next to torch lack the folders crt/ and nv/, as CUDA 13's
# do. Separate packages have them.
missing_cuda_headers() {
  "$1" - "${Torch_DIR:-}" 2>/dev/null <<'PYTHON'
import importlib.util, pathlib, re, sys
root = (re.sub(r"/share/cmake/Torch/?$", "", sys.argv[1]) or
        importlib.util.find_spec("torch").submodule_search_locations[0])
site = pathlib.Path(root).parent
for header in site.glob("nvidia/*/include/cuda_runtime.h"):
    if not all((header.parent / needed).exists() for needed in ("crt/host_config.h", "nv/target")):
        runtime = next(site.glob("nvidia_cuda_runtime*.dist-info")).name
        print(re.search(r"-(\d+\.\d+)", runtime)[1])
PYTHON
}

install_cuda_headers() {
  local release python=python3
  compgen -G "$cuda_headers/nvidia/*/include/nv/target" >/dev/null && return
  [ ! -x $venv/bin/python3 ] || python=$venv/bin/python3
  release=$(missing_cuda_headers $python) || return 0
  [ -n "$release" ] || return 0
  say "CUDA: the headers of $release that NCCL's want (3 MB to fetch, 19 MB on disk), into $cuda_headers"
  make_venv
  quietly .deps/log/pip-cuda-headers.log $venv/bin/python3 -m pip install --disable-pip-version-check \
    --progress-bar off --no-deps --target $cuda_headers --upgrade \
    "nvidia-cuda-crt==$release.*" "nvidia-cuda-cccl==$release.*"
}

make_venv() {
  [ -x $venv/bin/pip ] || quietly .deps/log/venv.log python3 -m venv --system-site-packages $venv
}

# The tests read checkpoints with the reader of the format (safetensors), also if torch is from another place.
install_readers() {
  local python
  for python in $venv/bin/python3 python3; do
    "$python" -c 'import safetensors, numpy' 2>/dev/null && return
  done
  make_venv
  say "Python: installing safetensors and numpy into $venv (20 MB to fetch)"
  quietly .deps/log/pip-readers.log $venv/bin/python3 -m pip install --disable-pip-version-check --progress-bar off \
    safetensors numpy
}

# Tests compare models, tokens and exported weights with these packages, and are skipped without them. Without
# --no-deps, torchvision would also install another torch.
install_python_peers() {
  local python
  for python in $venv/bin/python3 python3; do
    "$python" -c 'import torch, transformers, tokenizers, torchvision' 2>/dev/null && return
  done
  make_venv
  say "Python: installing transformers, tokenizers and torchvision into $venv (200 MB on disk)"
  { quietly .deps/log/pip-peers.log $venv/bin/python3 -m pip install --disable-pip-version-check --progress-bar off \
    "transformers==$transformers_version" tokenizers &&
    quietly .deps/log/pip-torchvision.log $venv/bin/python3 -m pip install --disable-pip-version-check \
      --progress-bar off --no-deps "torchvision==$torchvision_version" pillow; } ||
    say "the tests that compare with transformers, tokenizers and torchvision will be skipped"
}

# A test reads the data files of scikit-learn. Without its dependencies: no module of it is imported. Not into the venv:
# transformers would import it.
install_test_data() {
  [ ! -d .deps/scikit-learn/sklearn/datasets/data ] || return 0
  make_venv
  say "Python: installing scikit-learn for its data into .deps/scikit-learn (9 MB to fetch, 50 MB on disk)"
  quietly .deps/log/pip-data.log $venv/bin/python3 -m pip install --disable-pip-version-check --progress-bar off \
    --no-deps --target .deps/scikit-learn "scikit-learn==$scikit_learn_version" ||
    say "the test on the data of scikit-learn will be skipped"
}

# MkDocs makes a site of the documentation (mkdocs.yml). The test of the site is skipped if it cannot be installed.
install_site_tools() {
  local python
  for python in $venv/bin/python3 python3; do
    [ "$("$python" -c 'import mkdocs; print(mkdocs.__version__)' 2>/dev/null)" != $mkdocs_version ] || return 0
  done
  make_venv
  say "Python: installing mkdocs $mkdocs_version into $venv (5 MB to fetch, 20 MB on disk)"
  quietly .deps/log/pip-mkdocs.log $venv/bin/python3 -m pip install --disable-pip-version-check --progress-bar off \
    "mkdocs==$mkdocs_version" || say "the test of the documentation's site will be skipped"
}

# A test uses jsonschema to check configs/schema.json, and the files of configs/ and docs/ against it. It is skipped if
# jsonschema cannot be installed.
install_schema_reader() {
  local python
  for python in $venv/bin/python3 python3; do
    "$python" -c 'import jsonschema, yaml' 2>/dev/null && return
  done
  make_venv
  say "Python: installing jsonschema and pyyaml into $venv (3 MB to fetch)"
  quietly .deps/log/pip-schema.log $venv/bin/python3 -m pip install --disable-pip-version-check --progress-bar off \
    jsonschema pyyaml || say "the test of configs/schema.json will be skipped"
}

# set_up PACKAGES: installs everything that a build needs: these packages, LibTorch and the headers of CUDA.
set_up() {
  install_packages "$1"
  install_torch
  install_cuda_headers
}

# configure_and_build TARGET...: builds the targets with the preset $preset in the folder $build. Runs only as many
# compilers at once as fit into memory.
preset=release
build=build
configure_and_build() {
  local cores memory jobs quiet=--quiet
  quietly .deps/log/configure.log cmake --preset $preset -U CONVOY_TORCH_NAMED -DTorch_DIR="${Torch_DIR:-}"
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  jobs=$((memory < 1 ? 1 : memory < cores ? memory : cores))
  [ ! -t 1 ] || quiet=
  say "build: $jobs at a time, into $build/"
  ninja -C "$build" -j "$jobs" $quiet "$@"
}

# This project may not redistribute the ratings, so they are fetched from where they are published: inside a wheel.
fetch_movielens() {
  local to=.data/ml-100k.inter
  [ ! -s $to ] || return 0
  say "data: MovieLens-100K, from the wheel of RecBole (2 MB to fetch), into $to"
  make_venv
  rm -rf .deps/recbole
  mkdir -p .data
  quietly .deps/log/recbole.log $venv/bin/python3 -m pip download --disable-pip-version-check --no-deps \
    --only-binary=:all: --dest .deps/recbole recbole==1.2.1
  $venv/bin/python3 - .deps/recbole/*.whl $to.part <<'PYTHON'
import sys, zipfile
with open(sys.argv[2], "wb") as out:
    out.write(zipfile.ZipFile(sys.argv[1]).read("recbole/dataset_example/ml-100k/ml-100k.inter"))
PYTHON
  mv $to.part $to
  rm -rf .deps/recbole
}

# A long text in the public domain, from a package of Debian: the King James Version of the Bible, one verse per line.
# configs/gpt_*.yaml train on it; NeuMF of ./quickstart does not need it, so a machine without the package continues.
fetch_text() {
  local to=.data/text.txt
  [ ! -s $to ] || return 0
  say "data: the text of Debian's package bible-kjv (4.4 MB, public domain), into $to"
  (install_packages "$text_packages") || {
    say "data: no text without it; configs/gpt_*.yaml take any other by --set data.path=FILE"
    return 0
  }
  mkdir -p .data
  bible -f Gen1:1-Rev22:21 </dev/null >$to.part
  mv $to.part $to
}
