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

            # The first evaluation is the best, and its checkpoint is lost: of those that were written, the second is.
            worst = "train.keep_best={metric: loss, direction: maximize}"
            output, summary = trained("best", 1, worst)
            runs.check(summary["best_checkpoint"]["step"] == 26, f"{summary['best_checkpoint']}")
            runs.check((output / "checkpoints" / "best").read_text().strip() == "step-26", "another best")
            runs.check((output / "checkpoints" / "step-26").is_dir(), "no best checkpoint")

            # The last evaluation is the best: its checkpoint is written again, and named.
            output, summary = trained("last-best", 4, "train.keep_best={metric: loss}")
            runs.check(summary["best_checkpoint"]["step"] == 52, f"{summary['best_checkpoint']}")
            runs.check((output / "checkpoints" / "best").read_text().strip() == "step-52", "another best")
