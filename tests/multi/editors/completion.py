"""Completion in bash, zsh and fish, and the manual page: generated, installed by CMake, and used as a shell uses
them."""
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs


def listed(*words):
    done = subprocess.run([runs.CONVOY, "list", *words], timeout=60, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    runs.check(done.returncode == 0 and not done.stderr, f"list {words}: {done.returncode} {done.stderr}")
    return done.stdout


def shell(title, line, folder, **extra):
    done = subprocess.run(line, cwd=folder, timeout=60, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, "HOME": str(folder), **extra})
    runs.check(done.returncode == 0 and not done.stderr, f"{title}: {done.returncode}\n{done.stderr}")
    return done.stdout.splitlines()


def bash(script, line, folder):
    """The candidates that bash has after TAB: calls the function that `complete` has registered."""
    program = """
source "$1"; set -f
[[ $(complete -p convoy) =~ -F\\ ([^ ]+) ]]
COMP_LINE=$2 COMP_POINT=${#2}
"${BASH_REMATCH[1]}" convoy
printf '%s\\n' "${COMPREPLY[@]}" """
    return shell(f"bash: {line}",
                 ["bash", "--norc", "-c", program.replace("set -f\n", "\n"), "bash", str(script), line], folder)


def fish(script, line, folder):
    program = 'source $argv[1]; complete -C $argv[2]'
    return [each.split("\t")[0] for each in
            shell(f"fish: {line}", ["fish", "--no-config", "-c", program, str(script), line], folder,
                  XDG_CONFIG_HOME=str(folder))]


# zsh completes only in an interactive shell, so a pseudo-terminal types TAB and Ctrl-D lists the candidates.
ZSH = """
zmodload zsh/zpty
zpty shell "zsh -f -i"
zpty -w shell "PROMPT=; fpath=($1 \\$fpath); cd $2; autoload -Uz compinit; compinit -u -d $2/dump; \
zstyle ':completion:*' list-colors ''"
zpty -w shell "null-line() { print -r -- ENDLIST }; \
list() { compstate[insert]=; compstate[list]=; print -rl -- BEGINLIST }"
zpty -w shell "compadd() { local -a hits__; builtin compadd -O hits__ \\"\\$@\\" 2>/dev/null; \
print -rl -- FOUND:\\${^hits__}; builtin compadd \\"\\$@\\" }"
zpty -n -w shell "$3"$'\\t'
sleep 2
zpty -r -t shell output
while zpty -r -t shell more; do output+=$more; done
print -r -- $output
zpty -d shell
"""


def zsh(script, line, folder):
    output = "\n".join(shell(f"zsh: {line}", ["zsh", "-f", "-c", ZSH, "zsh", str(script.parent), str(folder), line],
                             folder))
    return [each.split("FOUND:")[1].strip() for each in output.splitlines() if "FOUND:" in each]


# The typed text; candidates that must be there; candidates that must not.
CASES = [
    ("convoy ve", {"verify"}, {"run"}),
    ("convoy run --o", {"--output"}, {"--hosts"}),
    ("convoy run a.yaml --set optimizer.l", {"optimizer.lr="}, {"model.name="}),
    ("convoy run --set strategy.mi", {"strategy.micro_batches="}, {"strategy.name="}),
    ("convoy evaluate runs/a --split t", {"training"}, {"all"}),
    ("convoy list s", {"strategy", "schedule"}, {"model"}),
    ("convoy list strategy dd", {"ddp"}, {"fsdp"}),
    ("convoy list --completion ", {"bash", "zsh", "fish"}, {"model"}),
    ("convoy top runs/", {"runs/a", "runs/b"}, set()),
    ("convoy run o", {"one.yaml"}, {"verify"}),
    ("convoy cancel runs/a w", {"waits"}, {"done"}),
]

HOSTILE = ("$(touch made)", "`touch made`", "with space", "quote'd")


def names_are_only_names(made, folder):
    """Names of folders and pipelines are data: nothing in them is executed, and each is one candidate."""
    place = folder / "hostile"
    journal = place / "runs/farm/journal.jsonl"
    for name in (*HOSTILE, "farm"):
        (place / "runs" / name).mkdir(parents=True)
        (place / "runs" / name / "summary.json").write_text("{}")
    journal.write_text("".join(f'{{"event":"queued","pipeline":"{name}"}}\n' for name in HOSTILE))
    for name, complete in (("bash", bash), ("fish", fish), ("zsh", zsh)):
        if not shutil.which(name):
            continue
        for line, words in (("convoy report ", len(HOSTILE) + 1), ("convoy cancel runs/farm ", len(HOSTILE))):
            found = complete(made[name], line, place)
            runs.check(name != "bash" or len(found) == words, f"{name}: '{line}' gives {found}")
            runs.check(not list(place.rglob("made")), f"{name}: '{line}' executed a name")


with runs.workspace() as folder:
    for name in ("a", "b"):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "summary.json").write_text("{}")
    (folder / "one.yaml").write_text("")
    (folder / "runs/a/journal.jsonl").write_text("".join(
        f'{{"attempt":0,"event":"queued","pipeline":"{name}","time":1.5}}\n' for name in ("waits", "done", "waits")))
    scripts = folder / "scripts"
    scripts.mkdir()
    made = {"bash": scripts / "convoy", "zsh": scripts / "_convoy", "fish": scripts / "convoy.fish"}
    for name, path in made.items():
        path.write_text(listed("--completion", name))
        if not shutil.which(name):
            print(f"skipped: no {name} here")
            continue
        shell(f"{name} -n", [name, "-n", str(path)], folder)
    for name, complete, value in (("bash", bash, "cpu"), ("fish", fish, "device=cpu"), ("zsh", zsh, "device=cpu")):
        if not shutil.which(name):
            continue
        for line, wanted, unwanted in [*CASES, ("convoy run --set device=c", {value}, {"model.name="}),
                                       ("convoy run --set strategy.name=dd",
                                        {value.replace("device=cpu", "strategy.name=ddp").replace("cpu", "ddp")},
                                        {"fsdp"})]:
            found = {each.rstrip("/") for each in complete(made[name], line, folder)}
            runs.check(wanted <= found, f"{name}: '{line}' gives {sorted(found)[:20]}, without {wanted - found}")
            # zsh filters what its functions add.
            runs.check(not unwanted & found or name == "zsh", f"{name}: '{line}' also gives {unwanted & found}")
        print(f"{name}: {len(CASES) + 2} lines are completed")

    names_are_only_names(made, folder)
    page = folder / "convoy.1"
    page.write_text(listed("--man"))
    text = page.read_text()
    for word in ("convoy run", "convoy verify", "\\-\\-set", "convoy list"):
        runs.check(word in text, f"no '{word}' in the manual page")
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-ww", "-man", "-k", "-Tutf8", "-P-cbou", str(page)], timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        runs.check(done.returncode == 0 and not done.stderr, f"groff: {done.stderr}")
        for command in ("run", "evaluate", "init", "cancel"):
            runs.check(f"convoy {command}" in done.stdout or command in done.stdout, f"the manual page lacks {command}")
    # CMake makes the same files, which an installation has.
    for name, path in (("convoy", made["bash"]), ("_convoy", made["zsh"]), ("convoy.fish", made["fish"]),
                       ("convoy.1", page)):
        built = runs.BUILD / "generated" / name
        runs.check(built.is_file() and built.read_text() == path.read_text(),
                   f"{built} is missing or out of date; ninja -C build convoy_generated")
