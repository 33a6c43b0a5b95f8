"""configs/schema.json: every configuration of configs/ and docs/ is valid, and the reader refuses what the schema
refuses."""
import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SCHEMA = json.loads((runs.TOP / "configs" / "schema.json").read_text())
jsonschema.Draft7Validator.check_schema(SCHEMA)
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


class Loader(yaml.SafeLoader):
    """Scalars as in YAML 1.2, which convoy and the language servers of editors read."""


Loader.yaml_implicit_resolvers = {}
for tag, pattern, first in (("bool", "true|false", "tf"), ("null", "~|null|", ["~", "n", ""]),
                            ("int", "[-+]?[0-9]+", "-+0123456789"),
                            ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789")):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)


def errors(text):
    return [f"{list(error.absolute_path)}: {error.message[:300]}"
            for error in VALIDATOR.iter_errors(yaml.load(text, Loader))]


def written_files():
    for path in sorted([*(runs.TOP / "configs").rglob("*.yaml"), *(runs.TOP / "docs" / "examples").rglob("*.yaml")]):
        yield str(path.relative_to(runs.TOP)), path.read_text()
    for page in sorted([*(runs.TOP / "docs").rglob("*.md"), runs.TOP / "README.md"]):
        for block in re.findall(r"^ *```yaml[^\n]*\n(.*?)^ *```$", page.read_text(), re.M | re.S):
            if re.search(r"^name: ", block, re.M) and re.search(r"^(model|strategy|program|config):", block, re.M):
                yield f"{page.relative_to(runs.TOP)}: {block.splitlines()[0]}", block


BASE = """name: try
seed: 1
device: cpu
model: {name: mlp, hidden: [8]}
data: {name: synthetic, kind: classification, rows: 100, evaluate_rows: 10, features: [4], classes: 3}
optimizer: {name: adam, lr: 1.0e-3}
strategy: {name: single}
train: {epochs: 1, batch: {global: 16}}
"""
FARM = BASE.replace("strategy: {name: single}", "strategy: {name: independent, grid: {seed: [1, 2]}}")
PROGRAM = "program: [./mine, 3]\nlaunch: {ranks: 1}\n"
ADDED = "name: more\nconfig:\n" + "".join(f"  {line}\n" for line in BASE.splitlines()[1:])
# Mistake: (file, text, its replacement). The schema and the reader must both refuse the result.
WRONG = {
    "an unknown key": (BASE, "seed: 1", "sede: 1"),
    "an unknown key of a section": (BASE, "epochs: 1", "epoch: 1"),
    "an unknown key of a model": (BASE, "hidden: [8]", "hiden: [8]"),
    "a key of another optimizer": (BASE, "lr: 1.0e-3", "lr: 1.0e-3, momentum: 0.9"),
    "a text for an integer": (BASE, "seed: 1", "seed: one"),
    "a real for an integer": (BASE, "epochs: 1", "epochs: 1.5"),
    "below the range": (BASE, "epochs: 1", "epochs: 0"),
    "above the range": (BASE, "rows: 100", "rows: 100000000000000000"),
    "at an exclusive limit": (BASE, "strategy: {name: single}", "strategy: single\nlaunch: {grace: 0}"),
    "a wrong choice": (BASE, "device: cpu", "device: gpu"),
    "yes for a boolean": (BASE, "strategy: {name: single}", "strategy: single\nlaunch: {host_memory: yes}"),
    "an unknown model": (BASE, "name: mlp", "name: mpl"),
    "an unknown data set": (BASE, "name: synthetic", "name: sinthetic"),
    "an unknown optimizer": (BASE, "name: adam", "name: adamm"),
    "an unknown strategy": (BASE, "strategy: {name: single}", "strategy: singel"),
    "an unknown backend": (BASE, "device: cpu", "backend: glue"),
    "an unknown loss": (BASE, "device: cpu", "loss: huge"),
    "an unknown transform": (BASE, "classes: 3", "classes: 3, transforms: [{name: flipp}]"),
    "a key of a transform": (BASE, "classes: 3", "classes: 3, transforms: [{name: noise, dev: 1}]"),
    "no model": (BASE, "model: {name: mlp, hidden: [8]}\n", ""),
    "no name": (BASE, "name: try\n", ""),
    "no batch": (BASE, ", batch: {global: 16}", ""),
    "a model without a name": (BASE, "name: mlp, ", ""),
    "a required key of a data set": (BASE, "name: synthetic, kind: classification, rows: 100, evaluate_rows: 10, "
                                     "features: [4], classes: 3", "name: interactions"),
    "a scalar for a map": (BASE, "train: {epochs: 1, batch: {global: 16}}", "train: 3"),
    "a list for a map": (BASE, "batch: {global: 16}", "batch: [16]"),
    "a map for a list": (BASE, "hidden: [8]", "hidden: {a: 8}"),
    "an interval without a unit": (BASE, "epochs: 1", "epochs: 1, evaluate_every: 3"),
    "an unknown unit of time": (BASE, "strategy: {name: single}", "strategy: single\nlaunch: {grace: 3 weeks}"),
    "null for a required key": (BASE, "name: try", "name: ~"),
    "a relative path of a plugin": (BASE, "name: mlp, hidden: [8]", "name: mlp, hidden: [8], plugin: libmine.so"),
    "an unknown key of a farm": (FARM, "grid:", "gird:"),
    "an unknown key beside a farm": (FARM, "seed: 1", "sede: 1"),
    "a wrong priority of a farm": (FARM, "grid:", "priority: high, grid:"),
    "a wrong type in what a farm shares": (FARM, "epochs: 1", "epochs: many"),
    "a model beside a program": (PROGRAM, "launch:", "model: mlp\nlaunch:"),
    "an unknown key of a pipeline to add": (ADDED, "name: more", "name: more\nurgent: true"),
    "a mistake in a pipeline to add": (ADDED, "epochs: 1", "epochs: many"),
}

count = 0
for place, text in written_files():
    found = errors(text)
    runs.check(not found, f"{place}: the schema refuses it:\n" + "\n".join(found))
    count += 1
runs.check(count > 60, f"only {count} configurations found")
for path in sorted((runs.TOP / "configs").rglob("*.yaml")):
    first = path.read_text().splitlines()[0]
    schema = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    runs.check(schema and (path.parent / schema[1]).resolve() == runs.TOP / "configs" / "schema.json",
               f"{path}: {first}")

for text in (BASE, FARM, PROGRAM, ADDED, BASE.replace("seed: 1", "seed: ${SEED}"),
             BASE.replace("device: cpu", "device: ${KIND}"),
             BASE.replace("strategy: {name: single}", "strategy: single"),
             BASE.replace("name: mlp, hidden: [8]", "plugin: /lib/mine.so, anything: 3"),
             BASE.replace("name: mlp,", "name: mine,") + "plugins: [/lib/mine.so]\n"):
    runs.check(not errors(text), f"the schema refuses\n{text}\n{errors(text)}")

with runs.workspace() as folder:
    # `convoy add` reads a pipeline only if its farm runs.
    (folder / "farm.yaml").write_text(BASE.replace("epochs: 1", "max_steps: 100000000").replace(
        "strategy: {name: single}", "strategy: {name: independent, grid: {seed: [1]}}"))
    farm = runs.start(folder / "farm.yaml", folder / "farm")
    runs.wait_for(lambda: (folder / "farm" / "journal.jsonl").exists(), 60, "the start of a farm")
    for title, (text, old, new) in WRONG.items():
        runs.check(text.count(old) >= 1, f"{title}: no '{old}'")
        wrong = text.replace(old, new, 1)
        runs.check(errors(wrong), f"{title}: the schema accepts\n{wrong}")
        (folder / "wrong.yaml").write_text(wrong)
        line = [runs.CONVOY, "add", "farm", "wrong.yaml"] if text is ADDED else [runs.CONVOY, "run", "wrong.yaml"]
        done = subprocess.run(line, cwd=folder, env=runs.environment(), timeout=60, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode != 78:
            farm.kill()
        runs.check(done.returncode == 78, f"{title}: the reader ends with {done.returncode}\n{wrong}\n{done.stdout}")
    farm.terminate()
    farm.wait(timeout=60)
    made = subprocess.run([runs.CONVOY, "list", "--json-schema"], check=True, timeout=60, text=True,
                          stdout=subprocess.PIPE)
    runs.check(json.loads(made.stdout) == SCHEMA, "configs/schema.json is out of date; build/convoy list --json-schema")
print(f"{count} configurations are valid; {len(WRONG)} wrong ones are refused by schema and reader")
