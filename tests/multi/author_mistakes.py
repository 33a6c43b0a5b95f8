"""Mistakes of a plugin's author: each message names component and code, and none calls it a defect of convoy."""
import concurrent.futures
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import runs

LIBRARY = runs.BUILD / "tests" / "libplugin_mistakes.so"
CONFIG = """\
name: mistakes
device: cpu
model: {{plugin: {library}, name: mistaken, mistake: {mistake}}}
data: {data}
{more}optimizer: {{name: sgd, lr: 0.01}}
train: {{epochs: 1, batch: {{global: 16}}, evaluate_every: 1 epoch, checkpoint_every: never}}
strategy: {strategy}
backend: gloo
launch: {{ranks: {ranks}, cores_per_rank: auto, bind: none, grace: 2s, failure_grace: 2s, rendezvous: 60s}}
"""
DATA = "{name: synthetic, kind: classification, rows: 64, evaluate_rows: 40, features: [4], classes: 3}"
DDP = "{name: ddp}"
ENSEMBLE = "{name: ensemble, members: 2}"


def ends(folder, number, title, code, words, mistake="none", data=DATA, loss="", strategy="{name: single}", ranks=1,
         registration="", without=()):
    config = folder / f"mistake{number}.yaml"
    more = f"loss: {{name: {loss}}}\n" if loss else ""
    config.write_text(CONFIG.format(library=LIBRARY, mistake=mistake, data=data, more=more, strategy=strategy,
                                    ranks=ranks))
    line = runs.command(config, folder / f"run{number}")
    done = runs.subprocess.run(line, cwd=runs.TOP, env=runs.environment(CONVOY_TEST_REGISTRATION=registration),
                               timeout=120, stdout=runs.subprocess.PIPE, stderr=runs.subprocess.STDOUT, text=True)
    message = f"{title}: exit {done.returncode}, expected {code}\n{done.stdout}"
    runs.check(done.returncode == code, message)
    for word in words:
        runs.check(word in done.stdout, f"no '{word}': {message}")
    # A mistake that is found after the start of the ranks names the rank that found it first.
    if code and not registration and "placement of the ranks" in done.stdout:
        runs.check(re.search(r"failed: .*\brank [01]( on \S|: )", done.stdout), f"no rank: {message}")
    for word in ("defect of convoy", *without):
        runs.check(word not in done.stdout, f"'{word}': {message}")


def own_data(mistake):
    return f"{{name: mistaken, mistake: {mistake}}}"


def line(key, number, column):
    return f".yaml:{number}:{column}: {key}: "


MODEL, PLUGIN = ".yaml:3:", f"plugin {LIBRARY}: "
CASES = [
    # Registration: the library is named.
    *[dict(title=mistake, code=78, words=[f"model.plugin: {PLUGIN}", *words], registration=mistake)
      for mistake, words in {
        "built-in replaced": ["adds a factory for the loss 'mse', which exists already"],
        "built-in described": ["describes the loss 'mse', which exists already"],
        "no entry": ["adds a factory for the loss 'mine' and no entry"],
        "no factory": ["describes the loss 'mine' and adds no factory"],
        "empty factory": ["adds an empty factory for the loss 'mine'"],
        "an optimizer": ["describes the optimizer 'mine'; a plugin adds models"],
        "a strategy": ["adds a factory for the strategy 'mine'; a plugin adds models"],
        "entries removed": ["changes existing entries of the kind loss"],
        "throws": ["its registration (CONVOY_PLUGIN) threw: not today"],
        "throws a number": ["its registration (CONVOY_PLUGIN) threw: an exception that is no std::exception"],
        "default does not fit": ["describes the loss 'mine' wrongly", "'count'", "its default does not fit"],
        "option called name": ["describes the loss 'mine' wrongly", "the option 'name'"],
        "entry in two lines": [r"describes a loss 'mi\x0ane'; use letters"],
        "factory in two lines": [r"adds a factory for a loss 'mi\x0ane'; use letters"],
        "empty factory in two lines": [r"adds an empty factory for the loss 'mi\x0ane'"],
        "option in two lines": ["describes the loss 'mine' wrongly", r"an option is named 'co\x0aunt'; use letters"],
        "list of nothing": ["describes the loss 'mine' wrongly", "exactly one item"],
    }.items()],
    dict(title="registration crashes", code=70, words=["SIGSEGV in model.plugin", str(LIBRARY)],
         registration="crashes"),
    dict(title="registration exits", code=70, registration="exits",
         words=["exit() was called in model.plugin", str(LIBRARY), "it ended the process"]),
    dict(title="registration exits at once", code=70, registration="exits at once",
         words=["without an answer", str(LIBRARY), "ended the process"]),
    dict(title="registration exits at once with 3", code=70, registration="exits at once with 3",
         words=["without an answer, with exit code 3", str(LIBRARY), "ended the process"]),
    dict(title="registration exits as a configuration error", code=70, registration="exits as a configuration error",
         words=["without an answer, with exit code 78", str(LIBRARY), "ended the process", "It printed:\nbye"]),
    dict(title="registration exits quickly", code=70, registration="exits quickly",
         words=["exit() was called in model.plugin", str(LIBRARY), "it ended the process"]),
    dict(title="registration prints", code=0, words=[], registration="prints"),
    # Construction: the key that selected the component.
    dict(title="model throws", code=70, words=[MODEL, "model mistaken, its constructor, threw: cannot be built"],
         mistake="model throws"),
    dict(title="model throws a number", code=70, words=[MODEL,
         "its constructor, threw: an exception that is no std::exc"],
         mistake="model throws a number"),
    dict(title="model crashes", code=139, mistake="model crashes",
         words=["SIGSEGV in model mistaken, its constructor",
         "before its first step: in model mistaken, its constructor"]),
    dict(title="block throws", code=70, words=[MODEL, "block 0 (only), its constructor, threw: no such block"],
         mistake="block throws"),
    dict(title="block crashes", code=139, words=["failed: rank 0", "SIGSEGV", "in block 0 (only), its constructor"],
         mistake="block crashes"),
    dict(title="null block", code=78, words=[MODEL, "block 0 (only): the model returned null"], mistake="null block"),
    dict(title="name in two lines", code=78, words=[MODEL, r"names a block 'on\x0aly'; a name has no control"],
         mistake="name in two lines"),
    dict(title="layer in two lines", code=78,
         words=[r"a tensor is named 'only.lin\x0aear.weight'; a name has no control"], mistake="layer in two lines"),
    dict(title="field in two lines", code=78, words=["data: ", r"names a field 'fie\x0ald'; a name has no control"],
         data=own_data("field in two lines")),
    dict(title="no blocks", code=78, words=[MODEL, "the model has 0 blocks"], mistake="no blocks"),
    dict(title="many blocks", code=78, words=[MODEL, f"the model has {1 << 40} blocks", f"the maximum is {1 << 20}"],
         mistake="many blocks"),
    *[dict(title=mistake, code=70, words=[MODEL, *words], mistake=mistake)
      for mistake, words in {
          "blocks throws": ["model mistaken, its blocks, threw: not counted"],
          "name throws": ["model mistaken, its block_name, threw: an exception that is no std::exception"],
          "default loss throws": ["model mistaken, its default_loss, threw: no loss"],
      }.items()],
    dict(title="no default loss", code=78, words=[MODEL, "Model::default_loss returns no name; valid are",
         ". Correct it, or set loss: {name: …}"], mistake="no default loss"),
    dict(title="schema throws", code=70, words=["data: data set mistaken, its schema, threw: no header"],
         data=own_data("schema throws")),
    dict(title="endless row", code=78,
         words=["data: declares field 'features' of shape [4611686018427387904]", "2^40"],
         data=own_data("endless row")),
    dict(title="minus one class", code=78, words=["data: declares -1 ids or classes of field 'target'"],
         data=own_data("minus one class")),
    dict(title="option not described", code=78, words=[line("model", 3, 8), "option 'heads'", "described are",
         "mistake"],
         mistake="option not described"),
    dict(title="option of another type", code=78, words=["model.mistake: is \"option of another type\"",
         "Options::integer"],
         mistake="option of another type"),
    dict(title="no such loss", code=78,
         words=[MODEL, "Model::default_loss returns 'cross_entrpy', which does not exist",
                "did you mean cross_entropy?"],
         mistake="no such loss"),
    dict(title="a loss called 5", code=78, words=[".yaml:5:14: loss.name: unknown loss '5'"], loss="5"),
    dict(title="null loss", code=78, words=["loss.name: ", "the factory of the loss 'null_loss' returned null"],
         loss="null_loss"),
    dict(title="data throws", code=70, words=["data: data set mistaken, its constructor, threw: the disk is gone"],
         data=own_data("data throws")),
    dict(title="no rows", code=78, words=["data: has no rows to train on"], data=own_data("no rows")),
    # Training: component, step and rank.
    dict(title="gather throws a number", code=70,
         words=["failed: rank 0 on ", "data set mistaken, its gather, threw: an exception that is no std::exception"],
         data=own_data("gather throws a number")),
    dict(title="other rows", code=78, words=["data: gathered a batch of 15 rows, for 16"],
         data=own_data("other rows")),
    dict(title="scalar field", code=78, words=["gathered a field 'target' that is of shape []"],
         data=own_data("scalar field")),
    dict(title="no such field", code=78, words=["model mistaken, its inputs, step 0", "no field 'pixels'",
         "gives features, target"],
         mistake="no such field"),
    dict(title="no fields", code=78, words=["no field 'features'; this data set gives no fields; use another"],
         data=own_data("no fields")),
    dict(title="examples throws", code=70,
         words=["failed: rank 0 on ", "model mistaken, its examples, step 0: no target"], mistake="examples throws"),
    dict(title="no output", code=70, words=["failed: rank 0 on ",
         "block 0 (only), forward, step 0: returned no tensor"],
         mistake="no output"),
    dict(title="throws a number", code=70,
         words=["block 0 (only), forward, step 0: an exception that is no std::exception"],
         mistake="throws a number", strategy=DDP, ranks=2),
    dict(title="forward crashes", code=139, words=["failed: rank 0", "SIGSEGV in block 0 (only), forward",
         "at step 0: in block 0 (only), forward"], mistake="forward crashes"),
    dict(title="forward exits", code=70, words=["failed: rank ", "exit() was called in block 0 (only), forward"],
         mistake="forward exits", strategy=DDP, ranks=2),
    dict(title="no prediction", code=70, words=["the loss cross_entropy, step 0: the prediction is undefined"],
         mistake="no prediction"),
    dict(title="vector loss", code=70, words=["the loss vector_loss, step 0: its sum has shape [16]"],
         loss="vector_loss"),
    dict(title="undefined loss", code=70, words=["the loss undefined_loss, step 0: its sum is undefined"],
         loss="undefined_loss"),
    dict(title="a loss without a graph", code=70, words=["the loss graphless_loss, step 0: it has no graph"],
         loss="graphless_loss"),
    dict(title="a detached block", code=70, words=["the loss cross_entropy, step 0: it has no graph"],
         mistake="detached",
         strategy=DDP, ranks=2),
    dict(title="no graph in an ensemble", code=70, words=["step 0: it has no graph"], mistake="detached",
         strategy=ENSEMBLE),
    *[dict(title=f"a loss that counts nothing, {ranks} ranks", code=78,
           words=["no gradient for 2 parameters in the first update",
                  "the loss uncounted_loss had the weight 0 in every batch of epoch 1: nothing was trained"],
           loss="uncounted_loss", strategy=strategy, ranks=ranks)
      for strategy, ranks in (("{name: single}", 1), (DDP, 2))],
    dict(title="an own loss with options", code=0, words=[], mistake="own loss", without=["no gradient"]),
    *[dict(title=f"an unused layer under {strategy}", code=0, words=["no gradient for 2 parameters in the first update",
         "only.spare.bias"],
           mistake="unused", strategy=strategy, ranks=ranks)
      for strategy, ranks in ((ENSEMBLE, 1), ("{name: fsdp}", 2), ("{name: tensor_parallel}", 2))],
    dict(title="an unused layer", code=0,
         words=["no gradient for 2 parameters in the first update: only.spare.bias, "
                                                 "only.spare.weight."], mistake="unused", strategy=DDP, ranks=2),
    # Metrics.
    *[dict(title=mistake, code=70, words=["model mistaken, its metrics, evaluation: ", *words], mistake=mistake)
      for mistake, words in {
          "wide metric": ["metric 'wide': its sum has shape [3]"],
          "wide weight": ["metric 'wide': its weight has shape [3]"],
          "metric loss": ["metric 'loss': that name is the loss's own"],
          "metric twice": ["metric 'same' is given twice"],
          "metric name": ["metric ", "a name has letters, digits"],
          "undefined metric": ["metric 'none': its sum is undefined"],
          "metric of booleans": ["metric 'truth': its sum is of"],
      }.items()],
    dict(title="changing metric", code=70, words=["the metrics of one batch are"], mistake="changing metric"),
    dict(title="metric by rank", code=76, words=["rank 0: loss, of_rank_0; rank 1: loss, of_rank_1"],
         mistake="metric by rank", strategy=DDP, ranks=2),
    dict(title="metric by rank in an ensemble", code=76, words=["rank 0: loss, of_rank_0", "rank 1: loss, of_rank_1"],
         mistake="metric by rank", strategy="{name: ensemble, members: 2, how: processes}", ranks=2),
    # On several ranks.
    *[dict(title=f"{mistake or loss} under ddp", code=code, words=words, mistake=mistake or "none", loss=loss,
           strategy=DDP, ranks=2)
      for mistake, loss, code, words in (
          ("model throws", "", 70, ["model mistaken, its constructor, threw: cannot be built"]),
          ("block throws", "", 70, ["block 0 (only), its constructor, threw: no such block"]),
          ("null block", "", 78, ["block 0 (only): the model returned null"]),
          ("no output", "", 70, ["block 0 (only), forward, step 0: returned no tensor"]),
          ("undefined metric", "", 70, ["its metrics, evaluation: metric 'none': its sum is undefined"]),
          ("", "vector_loss", 70, ["the loss vector_loss, step 0: its sum has shape [8]"]),
          ("", "null_loss", 78, ["the factory of the loss 'null_loss' returned null"]))],
]


def without_contents(folder):
    """Data that cannot be compared with the checkpoint's: a resume warns."""
    config = folder / "silent.yaml"
    config.write_text(CONFIG.format(library=LIBRARY, mistake="none", data=own_data("none"), more="", strategy=DDP,
                                    ranks=2))
    runs.run(config, folder / "silent", ["train.checkpoint_every=1 epoch"])
    runs.run(config, folder / "silent-on", [f"train.resume={folder / 'silent'}", "train.epochs=2"])
    message = (folder / "silent-on" / "logs" / "rank0.log").read_text()
    runs.check("data set mistaken does not identify its data" in message, f"no warning:\n{message}")


with runs.workspace() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
    cases = [pool.submit(ends, folder, number, **case) for number, case in enumerate(CASES)]
    cases.append(pool.submit(without_contents, folder))
    failed = [str(case.exception()) for case in cases if case.exception()]
    runs.check(not failed, "\n\n".join(failed))
print(f"{len(CASES)} mistakes of authors are reported with their location")
