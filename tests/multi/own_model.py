"""The plugins of docs/howto/own_model.md and docs/from/torchrun.md build as the pages say, and train."""
# labels: slow
# timeout: 600
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs


def blocks(page, kind):
    text = (runs.TOP / "docs" / page).read_text()
    return [block for found, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if found == kind]


def shell(page, script, folder):
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=runs.environment(CONVOY=str(folder.parent)),
                          timeout=400, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs.check(done.returncode == 0, f"docs/{page}: exit {done.returncode} of\n{script}\n{done.stdout[-3000:]}")
    print(f"docs/{page}:\n{script}")


def plugin(page, name, cmake, source, yaml, folder, steps):
    """Builds the plugin. The pages name `build/convoy` in the folder $CONVOY; the plugin's build folder is another
    one."""
    mine = folder / name
    mine.mkdir(mode=0o755)
    (folder / "build").symlink_to(runs.BUILD)
    (mine / "CMakeLists.txt").write_text(cmake)
    (mine / f"{name}.cpp").write_text(source)
    (mine / f"{name}.yaml").write_text(yaml)
    for script in steps:
        script = re.sub(r"( run \S+)", r"\1 --set train.max_steps=3", script)
        shell(page, f"convoy() {{ $CONVOY/build/convoy \"$@\"; }}\n{script}", mine)
    (folder / "build").unlink()


with runs.workspace() as work:
    page = "howto/own_model.md"
    (cmake,), source, (yaml,) = blocks(page, "cmake"), blocks(page, "cpp")[0], blocks(page, "yaml")
    steps = blocks(page, "sh")
    runs.check(len(steps) == 2, f"docs/{page} has {len(steps)} blocks of sh")
    plugin(page, "mine", cmake, source, yaml, work, steps)

    page = "from/torchrun.md"
    (source,), (yaml,), (run,) = blocks(page, "cpp"), blocks(page, "yaml"), blocks(page, "sh")
    build = steps[0].rpartition("chmod")[0] + "chmod go-w build build/libnet.so\n"
    plugin(page, "net", cmake.replace("mine", "net"), source, yaml, work, [build, run])
