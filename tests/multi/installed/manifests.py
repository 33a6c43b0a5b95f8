"""packaging/: the manifests against the published schemas of Kubernetes, Kubeflow Trainer, JobSet and SkyPilot, and
their names against each other; the systemd unit by systemd-analyze; the conda recipe's keys and version."""
# labels: slow
# timeout: 600
import json
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

FOLDER = runs.TOP / "packaging" / "kubernetes"
PACKAGES = ["kubernetes-validate==1.37.0", "importlib_resources", "kubeflow-trainer-api==2.3.0", "pyyaml",
            "skypilot==0.14.1", "jsonschema"]
RELEASE = "1.32"
# Runs in a Python with PACKAGES. MPIJob's schema is in no package, so its pods are checked.
CHECK = f"""
import pathlib, sys, yaml
import jsonschema
import kubernetes_validate
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
folder = pathlib.Path(sys.argv[1])
def documents(name):
    return list(yaml.safe_load_all((folder / name).read_text()))
def check(document):
    kubernetes_validate.validate(document, "{RELEASE}", strict=True)
def job(template, name):
    check({{"apiVersion": "batch/v1", "kind": "Job", "metadata": {{"name": name}}, "spec": template["spec"]}})
for document in documents("indexed_job.yaml"):
    check(document)
for replicated in documents("jobset.yaml")[0]["spec"]["replicatedJobs"]:
    job(replicated["template"], replicated["name"])
for name, replica in documents("mpijob.yaml")[0]["spec"]["mpiReplicaSpecs"].items():
    check({{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": name.lower()}}, \
"spec": replica["template"]["spec"]}})
for name, kind in (("trainjob.yaml", TrainerV1alpha1TrainJob), ("jobset.yaml", JobsetV1alpha2JobSet)):
    (document,) = documents(name)
    assert kind.from_dict(document).to_dict() == document, f"the model of {{name}} drops keys"
from sky.utils import schemas
(task,) = documents("../skypilot.yaml")
jsonschema.validate(task, schemas.get_task_schema())
jsonschema.validate(task["resources"], schemas.get_resources_schema())
try:
    jsonschema.validate({{**task, "num_nods": 2}}, schemas.get_task_schema())
    sys.exit("SkyPilot's schema accepts any key")
except jsonschema.ValidationError:
    pass
for broken in ({{"spec": 1}}, {{**documents("indexed_job.yaml")[1], "spec": {{"completion": 2}}}}):
    try:
        check({{"apiVersion": "batch/v1", "kind": "Job", **broken}})
    except Exception:
        continue
    sys.exit(f"accepted: {{broken}}")
"""


def installed_python(work):
    """Returns a Python with PACKAGES; skips the test where they cannot be installed."""
    subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    python = work / "venv" / "bin" / "python3"
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(f"skipped: {done.stdout.strip().splitlines()[-1]}")
        sys.exit(77)
    return python


def names_match(python):
    """The address of node 0 must be the name that the platform gives to the first pod."""
    text = subprocess.run([python, "-c", "import json,sys,yaml; "
                           "print(json.dumps([list(yaml.safe_load_all(open(f))) for f in sys.argv[1:]]))",
                           FOLDER / "indexed_job.yaml", FOLDER / "jobset.yaml"],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    (service, job), (jobset,) = json.loads(text)

    def variables(pod):
        return {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    pod = job["spec"]["template"]["spec"]
    given = variables(pod)
    runs.check(given["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}",
               f"indexed_job: {given}")
    runs.check(pod["subdomain"] == service["metadata"]["name"], "indexed_job: another service")
    runs.check(given["NNODES"] == str(job["spec"]["completions"]) == str(job["spec"]["parallelism"]),
               f"indexed_job: {given}")
    (part,) = jobset["spec"]["replicatedJobs"]
    given = variables(part["template"]["spec"]["template"]["spec"])
    first = f"{jobset['metadata']['name']}-{part['name']}-0-0.{jobset['spec']['network']['subdomain']}"
    runs.check(given["MASTER_ADDR"] == first, f"jobset: {given}, not {first}")
    runs.check(given["NNODES"] == str(part["template"]["spec"]["completions"]), f"jobset: {given}")


def unit(work):
    """systemd-analyze reports unknown keys and values, and exits with 0; so any output is a failure."""
    if not shutil.which("systemd-analyze"):
        print("skipped: no systemd-analyze for the unit")
        return
    text = (runs.TOP / "packaging" / "systemd" / "convoy-farm@.service").read_text()
    runs.check("/usr/bin/convoy " in text, "the unit starts another program")

    def problems(name, text):
        path = work / f"{name}@.service"
        path.write_text(text.replace("/usr/bin/convoy ", f"{runs.CONVOY} "))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", work / f"{name}@x.service"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.stdout
    runs.check(problems("convoy-farm", text) == "", problems("convoy-farm", text))
    runs.check("on-failures" in problems("broken", text.replace("on-failure", "on-failures")),
               "a wrong unit was accepted")


# Sections and keys that the recipe may use, from conda-build's page "Defining metadata".
RECIPE_KEYS = {"package": {"name", "version"}, "source": {"git_url", "git_rev"}, "build": {"number", "skip", "script"},
               "requirements": {"build", "host", "run"}, "test": {"commands"},
               "about": {"summary", "license", "license_file"}}


def recipe(python):
    text = (runs.TOP / "packaging" / "conda" / "meta.yaml").read_text()
    (version,) = re.findall(r'set version = "([0-9.]+)"', text)
    runs.check(f'"{version}"' in (runs.TOP / "core" / "base" / "version.h").read_text(), f"the recipe builds {version}")
    text = re.sub(r"{%.*?%}", "", text).replace("{{ version }}", version).replace('{{ compiler("cxx") }}', "cxx")
    done = subprocess.run([python, "-c", "import json,sys,yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"],
                          input=text, stdout=subprocess.PIPE, text=True, check=True)
    read = json.loads(done.stdout)
    for section, keys in RECIPE_KEYS.items():
        runs.check(set(read.pop(section)) <= keys, f"meta.yaml: {section} has another key than {sorted(keys)}")
    runs.check(not read, f"meta.yaml: unknown sections {list(read)}")


with runs.workspace() as work:
    unit(work)
    python = installed_python(work)
    done = subprocess.run([python, "-c", CHECK, FOLDER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs.check(done.returncode == 0, done.stdout)
    names_match(python)
    recipe(python)
print("passed")
