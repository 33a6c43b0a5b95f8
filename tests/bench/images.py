"""JPEG files, decoded and augmented, and sequences of a text, rows a second: against torchvision and DataLoader"""
# needs: torchvision==0.26.0
# needs data: text
import pathlib
import random
import sys
import tempfile

import harness

PEER, TEXT_PEER, STACKED_PEER = "torchvision", "DataLoader, text", "slices stacked by the loop, text"
CLASSES, IMAGES, SIDE, SIZE, BATCH, WORKERS, EPOCHS = 4, 3000, 256, 64, 64, 2, 3
# A model that costs next to nothing, so that the loader sets the pace.
CONFIG = """\
name: images
seed: 1
device: cpu
model: {{name: mlp, hidden: [1]}}
data: {{name: images, path: {path}, height: {size}, width: {size}, decoders: {workers}, evaluate: {{fraction: 0}},
       transforms: [{{name: flip}}]}}
optimizer: {{name: sgd, lr: 1.0e-3}}
train: {{epochs: {epochs}, batch: {{global: {batch}}}, evaluate_every: never, checkpoint_every: never, \
log_every: {every}}}
strategy: {{name: single}}
launch: {{ranks: 1, threads: 1}}
log: {{tensorboard: false}}
"""


def write_images(folder):
    """Writes images that are smooth with some noise, as photographs are: this decides how long a decoder takes."""
    from PIL import Image, ImageFilter
    chance = random.Random(1)
    for number in range(IMAGES):
        small = Image.frombytes("RGB", (16, 16), chance.randbytes(16 * 16 * 3)).resize(
            (SIDE, SIDE), Image.Resampling.BICUBIC)
        noise = Image.frombytes("RGB", (SIDE, SIDE), chance.randbytes(SIDE * SIDE * 3)).filter(
            ImageFilter.GaussianBlur(1))
        path = folder / f"class{number % CLASSES}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.blend(small, noise, 0.15).save(path, quality=90)


def convoy(config):
    def measure():
        records = [r for r in harness.Run(config).records if r["kind"] == "train"]
        steps = records[-1]["step"] - records[0]["step"]  # the first epoch starts the decoders
        return steps * BATCH / (records[-1]["seconds"] - records[0]["seconds"])
    return measure


def torchvision(path):
    return lambda: harness.peer("images.py", "--path", path, "--size", SIZE, "--batch", BATCH, "--workers", WORKERS,
                                "--epochs", EPOCHS)["rows_per_second"]


def sequences():
    """64 sequences of 1,024 bytes a batch. convoy reads ahead with one thread, so the peer has one worker."""
    text, steps, warm = harness.TOP / ".data" / "text.txt", 2000, 200

    def peer(*more):
        return lambda: harness.peer("text.py", "--path", text, "--steps", steps, "--warm", warm,
                                    *more)["rows_per_second"]
    return {
        TEXT_PEER: peer(),
        STACKED_PEER: peer("--stacked"),
        "convoy, text": lambda: BATCH / harness.program("gloo", "text", steps, warm, text=text,
                                                        ranks=1)["step_seconds"],
    }


if __name__ == "__main__":
    options = harness.arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="convoy-bench-") as top:
        path = pathlib.Path(top, "pictures")
        path.mkdir()
        write_images(path)
        config = pathlib.Path(top, "images.yaml")
        config.write_text(CONFIG.format(path=path, size=SIZE, workers=WORKERS, epochs=EPOCHS + 1, batch=BATCH,
                                        every=IMAGES // BATCH))
        measured = harness.interleave(options.rounds,
                                      {PEER: torchvision(path), "convoy": convoy(config), **sequences()})
    harness.table({name: measured[name] for name in (PEER, "convoy")}, PEER, "rows a second")
    harness.table({name: measured[name] for name in sequences()}, TEXT_PEER, "sequences a second")
    ok = harness.check(f"rows a second ÷ {PEER}", harness.median_ratio(measured, "convoy", PEER), 1.5, at_most=False,
                         aim=3)
    for peer in (TEXT_PEER, STACKED_PEER):
        ok &= harness.check(f"sequences a second ÷ {peer}", harness.median_ratio(measured, "convoy, text", peer), 1.5,
                              at_most=False, aim=3)
    sys.exit(0 if ok else 1)
