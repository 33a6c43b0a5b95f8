"""train.on_save_error: continue: a lost save is never the last one, and a lost best checkpoint is not named."""
# timeout: 120
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

CONFIG = runs.TOP / "configs" / "tiny" / "mlp.yaml"

with runs.workspace() as folder:
    for ranks in (1, 2):
        for background in ("true", "false"):
            common = [f"strategy={'single' if ranks == 1 else 'ddp'}", "train.epochs=4", "train.on_save_error=continue",
                      "train.checkpoint_every=1 epoch", "train.evaluate_every=1 epoch",
                      f"train.checkpoint_async={background}"]

            def trained(title, number, *sets):
                output = folder / f"{title}-{ranks}-{background}"
                runs.run(CONFIG, output, [*common, *sets], ranks, inject=[f"enospc:write@save={number}"])
                summary = runs.summary(output)
                runs.check(summary["status"] == "done" and summary["failed_saves"] == 1, f"{output}: {summary}")
                return output, summary

            # The checkpoint of the last step is written again.
            output, summary = trained("last", 4)
            runs.check(runs.newest_checkpoint(output).name == "step-52", f"{runs.newest_checkpoint(output)}")

            # A run that fails later has the count too.
            output = folder / f"failed-{ranks}-{background}"
            runs.run(CONFIG, output, common, ranks, inject=["enospc:write@save=1", "throw@step=40"], expect=70)
            summary = runs.summary(output)
            runs.check(summary["status"] == "failed" and summary["failed_saves"] == 1, f"{output}: {summary}")

            # A stop and a resume do not forget it.
            output = folder / f"stopped-{ranks}-{background}"
            runs.run(CONFIG, output, [*common, "train.pause_after=2 epochs"], ranks, inject=["enospc:write@save=1"],
                     expect=143)
            runs.run(CONFIG, output, common, ranks, inject=["enospc:write:attempt=1@save=1"])
            runs.check(runs.summary(output)["failed_saves"] == 2, f"{output}: {runs.summary(output)}")

            # The first evaluation is the best, but its checkpoint is lost. The second is the best of the written ones.
            worst = "train.keep_best={metric: loss, direction: maximize}"
            output, summary = trained("best", 1, worst)
            runs.check(summary["best_checkpoint"]["step"] == 26, f"{summary['best_checkpoint']}")
            runs.check((output / "checkpoints" / "best").read_text().strip() == "step-26", "another best")
            runs.check((output / "checkpoints" / "step-26").is_dir(), "no best checkpoint")

            # The last evaluation is the best: its checkpoint is written again and becomes the best checkpoint.
            output, summary = trained("last-best", 4, "train.keep_best={metric: loss}")
            runs.check(summary["best_checkpoint"]["step"] == 52, f"{summary['best_checkpoint']}")
            runs.check((output / "checkpoints" / "best").read_text().strip() == "step-52", "another best")

    # Failed saves before a lost rank or a restart are counted too.
    config = runs.TOP / "configs" / "tiny" / "gpt.yaml"
    common = ["strategy=ddp", "backend=gloo", "train.max_steps=40", "train.epochs=~", "train.evaluate_every=never",
              "train.on_save_error=continue", "train.checkpoint_every=8 steps", "launch.bind=none",
              "launch.backoff=0.1s"]
    for title, sets, inject in (
            ("survivors", ["launch.min_ranks=2"],
             ["enospc:write:rank=0@save=1", "kill:rank=2@step=12", "enospc:write:rank=0@save=3"]),
            ("restart", ["launch.max_restarts=1"],
             ["enospc:write:rank=0@save=1", "kill:rank=2@step=12", "enospc:write:rank=0:attempt=1@save=1"])):
        output = folder / title
        summary = runs.run(config, output, [*common, *sets], 3, inject=inject)
        console = (output / "logs" / "rank0.log").read_text()
        lost = console.count("a checkpoint is lost")
        runs.check(lost == 2 and summary["failed_saves"] == lost, f"{output}: {summary.get('failed_saves')} of {lost}")
