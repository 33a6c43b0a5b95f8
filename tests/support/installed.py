"""An installation of this build, moved afterwards, and projects that are built against it."""
import gzip
import os
import pathlib
import subprocess

import runs

EXAMPLES = runs.TOP / "docs" / "examples"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
# Public headers include none of these; LibTorch's own copies do not count.
HIDDEN = ("CLI", "yaml-cpp", "spdlog", "asio", "nlohmann")


def shell(line, cwd=None, timeout=400, expect=0, **extra):
    """Runs a command line; returns its output after checking the exit code."""
    done = subprocess.run([str(word) for word in line], cwd=cwd, env=runs.environment(**extra), timeout=timeout,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == expect,
               f"{' '.join(map(str, line))}\nexit {done.returncode}, expected {expect}:\n{done.stdout[-4000:]}")
    return done.stdout


def cache(name):
    """Returns a value of the build's CMake cache."""
    for line in (runs.BUILD / "CMakeCache.txt").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.partition("=")[2]
    return ""


def torch_root():
    """Returns the LibTorch of the build."""
    text = (runs.BUILD / "convoyConfig.cmake").read_text()
    return pathlib.Path(text.partition("set(CONVOY_TORCH_PLACES ")[2].partition(")")[0])


def install(work):
    """Installs into one folder and moves it to another; returns the latter."""
    shell(["cmake", "--install", runs.BUILD, "--prefix", work / "first"])
    moved = work / "moved"
    (work / "first").rename(moved)
    return moved


def configured(source, build, prefix, *options):
    # Use the generator and the compiler cache of the build.
    launcher = cache("CMAKE_CXX_COMPILER_LAUNCHER")
    shell(["cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
           *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"] if launcher else []), *options])


def build_example(name, work, prefix):
    """Builds a copy of docs/examples/NAME against the installation; returns the build folder."""
    source = work / name
    shell(["cp", "-r", EXAMPLES / name, source])
    configured(source, source / "build", prefix)
    shell(["cmake", "--build", source / "build"], timeout=900)
    for path in (source / "build", *(source / "build").glob("*.so")):
        os.chmod(path, path.stat().st_mode & 0o755)
    return source / "build"


def fashion_mnist(folder):
    """Unpacks Fashion-MNIST as torch::data::datasets::MNIST reads it."""
    folder.mkdir()
    for packed in FASHION.glob("*-ubyte.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    runs.check(len(list(folder.iterdir())) == 4, f"{FASHION} has not the four files of Fashion-MNIST")
    return folder


def includes(header, prefix):
    """Compiles a header alone against the installation; returns the files that it includes."""
    torch = torch_root()
    line = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-H", "-include", header,
            "-I", prefix / "include", "-isystem", torch / "include",
            "-isystem", torch / "include/torch/csrc/api/include", "/dev/null"]
    if header.name == "mpi.h":
        line[1:1] = [*shell(["mpicxx", "--showme:compile"]).split(), "-DOMPI_SKIP_MPICXX"]
    listed = [text.lstrip(".").strip() for text in shell(line).splitlines() if text.startswith(".")]
    return [path for path in listed if not path.startswith(str(torch))]


def changed_lines(before, after):
    """Returns lines of code that are new or different in the second file, without comments."""
    import difflib
    code = [[line for line in pathlib.Path(path).read_text().splitlines() if not line.lstrip().startswith("//")]
            for path in (before, after)]
    return [line[2:] for line in difflib.ndiff(*code) if line.startswith("+ ")]
