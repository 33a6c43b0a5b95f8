"""CPack's archives: their contents and dependencies, no path of this machine, and the .tar.gz trains after LibTorch is
unpacked next to it or named by Torch_DIR."""
# labels: slow
# timeout: 600
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import installed
import runs

NEEDED = ("bin/convoy", "bin/convoy-rank", "lib/libconvoy.so", "lib/libconvoy_core.so", "lib/libconvoy_backends.so",
          "lib/cmake/convoy/convoyConfig.cmake", "include/convoy/convoy.h",
          "share/convoy/examples/training_loop/plain.cpp")


def no_path_of_here(tree):
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if path.suffix in (".so", ".cmake", ".h") or path.parent.name == "bin":
                for root in (runs.TOP, runs.BUILD, installed.torch_root()):
                    runs.check(str(root).encode() not in data, f"{path} names {root}")


def archive(packages, work):
    (path,) = packages.glob("*.tar.gz")
    installed.shell(["tar", "-xzf", path, "-C", work])
    (tree,) = work.glob("convoy-*")
    for name in NEEDED:
        runs.check((tree / name).exists(), f"{path.name} has no {name}")
    no_path_of_here(tree)
    config = runs.TOP / "configs" / "tiny" / "mlp.yaml"
    run = [tree / "bin/convoy", "run", config, "--ranks", "1", "--set", "strategy.name=single", "--output"]
    said = installed.shell([*run, work / "without"], expect=78, Torch_DIR="", LD_LIBRARY_PATH="")
    runs.check("Torch_DIR=/path/to/libtorch" in said, f"without LibTorch it prints: {said}")
    installed.shell([*run, work / "named"], Torch_DIR=str(installed.torch_root()), LD_LIBRARY_PATH="")
    (work / "libtorch").symlink_to(installed.torch_root())
    installed.shell([*run, work / "beside"], Torch_DIR="", LD_LIBRARY_PATH="")


def debian(packages, work):
    (path,) = packages.glob("*.deb")
    listed = installed.shell(["dpkg-deb", "-c", path])
    for name in NEEDED:
        runs.check(f"./opt/convoy/{name}\n" in listed, f"{path.name} has no /opt/convoy/{name}")
    runs.check("./usr/bin/convoy -> /opt/convoy/bin/convoy" in listed, f"{path.name} has no /usr/bin/convoy")
    runs.check("torch_cpu" not in listed and "libc10" not in listed, f"{path.name} contains LibTorch")
    depends = installed.shell(["dpkg-deb", "-f", path, "Depends"])
    for library in ("libc6", "libhwloc15", "libyaml-cpp", "libpng16-16", "libdw1"):
        runs.check(library in depends, f"{path.name} does not depend on {library}: {depends}")
    installed.shell(["dpkg-deb", "-x", path, work / "deb"])
    no_path_of_here(work / "deb")
    print(depends.strip())


if not shutil.which("dpkg-shlibdeps"):
    print("skipped: dpkg-shlibdeps is missing (package dpkg-dev)")
    sys.exit(77)
with runs.workspace() as work:
    packages = work / "packages"
    installed.shell(["cpack", "--config", runs.BUILD / "CPackConfig.cmake", "-B", packages], cwd=work)
    archive(packages, work)
    debian(packages, work)
print("passed")
