"""A moved installation runs, its public headers expose no other library, and a small program of the library builds
against it. installed_examples.py tests everything."""
import concurrent.futures
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import installed
import runs

PROGRAM = """
#include <convoy/job.h>
#include <cstdio>

int main() {
  convoy::Job job = convoy::Job::embedded();
  std::printf("rank %d of %d, sum %.1f\\n", job.rank(), job.size(), job.sum(2.5).value);
}
"""

CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(mine LANGUAGES CXX)
find_package(convoy REQUIRED)
add_executable(mine mine.cpp)
target_link_libraries(mine PRIVATE convoy::convoy)
"""


def layout(prefix):
    for name in ("bin/convoy", "bin/convoy-rank", "lib/libconvoy.so", "lib/libconvoy_core.so",
                 "lib/cmake/convoy/convoyConfig.cmake", "include/convoy/convoy.h", "include/convoy/plugin.h",
                 "share/convoy/tools/dump_reference.py", "share/convoy/configs/gpt_pipeline.yaml"):
        runs.check((prefix / name).exists(), f"the installation has no {name}")
    top = {path.name for path in prefix.iterdir()}
    runs.check(top == {"bin", "lib", "include", "share"}, f"the installation has {sorted(top)}")
    sources = {path.name for path in (runs.TOP / "include/convoy").glob("*.h")}
    found = {path.name for path in (prefix / "include/convoy").glob("*.h")}
    runs.check(found == sources, f"public headers: {sorted(found)}, not {sorted(sources)}")
    for header in (prefix / "include").rglob("*.h"):
        text = header.read_text()
        for name in installed.HIDDEN:
            runs.check(f"<{name}" not in text, f"{header} includes {name}")
        runs.check('"core/' not in text, f"{header} includes a header of the source tree")


def trains(prefix, work):
    config = runs.TOP / "configs" / "tiny" / "mlp.yaml"
    installed.shell([prefix / "bin/convoy", "run", config, "--ranks", "2", "--set", "strategy.name=ddp", "--output",
                     work / "run"], timeout=120)
    runs.check(runs.summary(work / "run")["status"] == "done", "the moved installation does not train")


def builds(prefix, source, *options):
    source.mkdir()
    (source / "mine.cpp").write_text(PROGRAM)
    (source / "CMakeLists.txt").write_text(CMAKE)
    installed.configured(source, source / "build", prefix, *options)
    installed.shell(["cmake", "--build", source / "build"])
    said = installed.shell([source / "build/mine"], cwd=source)
    runs.check("rank 0 of 1, sum 2.5" in said, f"a program of the library prints {said}")


lines = installed.changed_lines(*(installed.EXAMPLES / "training_loop" / name
                                  for name in ("plain.cpp", "training_loop.cpp")))
runs.check(0 < len(lines) <= 8, "training_loop.cpp differs from plain.cpp in:\n" + "\n".join(lines))
page = (runs.TOP / "docs/howto/own_program.md").read_text()
shown = [line[1:] for line in page.partition("```diff\n")[2].partition("```")[0].splitlines() if line.startswith("+")]
runs.check(shown == lines, "docs/howto/own_program.md shows another difference:\n" + "\n".join(shown))
with runs.workspace() as work:
    prefix = installed.install(work)
    layout(prefix)
    trains(prefix, work)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        build = pool.submit(builds, prefix, work / "mine")
        tree = pool.submit(builds, prefix, work / "tree", f"-Dconvoy_DIR={runs.BUILD}")  # the build is a package too
        seen = pool.submit(installed.includes, prefix / "include/convoy/job.h", prefix)
        build.result()
        tree.result()
        for path in seen.result():
            runs.check(not any(f"/{name}" in path for name in installed.HIDDEN), f"convoy/job.h includes {path}")
print("passed")
