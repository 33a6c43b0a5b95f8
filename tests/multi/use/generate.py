"""convoy generate: seeds, the likeliest tokens, tokenizers and bytes, and what is refused."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

CONFIG = """
name: words
seed: 1
device: cpu
model: {{name: {model}, layers: 2, heads: 4, dim: 32}}
data: {{name: text, path: {folder}/text.txt, length: 32, {more}}}
optimizer: {{name: adamw, lr: 1.0e-2, clip_norm: 1.0}}
train: {{max_steps: 250, batch: {{global: 16}}, evaluate_every: never, checkpoint_every: 250 steps}}
strategy: {{name: single}}
"""
# Its 45 characters and the 32 of a sequence have no common divisor: training shows each character at each position.
SENTENCE = "the quick brown fox jumps over the lazy dog.\n"


def generate(run, *words, code=0):
    line = [runs.CONVOY, "generate", run, *map(str, words)]
    done = subprocess.run(line, env=runs.environment(), timeout=120, text=True, capture_output=True)
    runs.check(done.returncode == code, f"{' '.join(map(str, line))}\nexit {done.returncode}, expected {code}:\n"
                                        f"{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stdout + done.stderr


with runs.workspace() as work:
    (work / "text.txt").write_text(SENTENCE * 400)
    made = subprocess.run([runs.CONVOY, "vocabulary", work / "text.txt", "--size", "280", "--special", "<|end|>",
                           "--to", work / "tokenizer.json"], text=True, capture_output=True, timeout=60)
    runs.check(made.returncode == 0, f"convoy vocabulary: {made.stdout}{made.stderr}")
    for name, model, more in (("bytes", "gpt", "vocabulary: bytes"),
                              ("tokens", "llama", f"tokenizer: {work}/tokenizer.json")):
        (work / f"{name}.yaml").write_text(CONFIG.format(folder=work, model=model, more=more))
        runs.run(work / f"{name}.yaml", work / name)
    (work / "text.txt").unlink()  # neither the text nor the tokenizer is needed any more
    (work / "tokenizer.json").unlink()

    for name in ("bytes", "tokens"):
        # 250 steps are enough to learn the one sentence; the text is longer than the context of 32 tokens.
        likeliest = generate(work / name, "--prompt", "the quick", "--temperature", 0, "--max-tokens", 100)
        runs.check("brown fox jumps over the lazy dog.\nthe quick brown" in likeliest, f"{name}: {likeliest!r}")
        first = generate(work / name, "--prompt", "the", "--seed", 7, "--temperature", 3)
        runs.check(first == generate(work / name, "--prompt", "the", "--seed", 7, "--temperature", 3),
                   f"{name}: equal seeds")
        runs.check(first != generate(work / name, "--prompt", "the", "--seed", 8, "--temperature", 3),
                   f"{name}: other seeds")
        narrow = generate(work / name, "--prompt", "the quick", "--top-k", 1, "--max-tokens", 100)
        runs.check(narrow == likeliest, f"{name}: --top-k 1 is the likeliest token")
        answer = json.loads(generate(work / name, "--prompt", "the", "--samples", 3, "--max-tokens", 5, "--json"))
        runs.check(answer["drawn"] == 15 and len(answer["texts"]) == 3, f"{name}: {answer}")
        print(f"{name}: {likeliest.splitlines()[0]}", flush=True)

    ended = generate(work / "bytes", "--prompt", "the quick", "--temperature", 0, "--stop", "x")
    runs.check(ended == "the quick brown fo\n", f"--stop: {ended!r}")
    runs.check("is not one token" in generate(work / "bytes", "--prompt", "a", "--stop", "fox", code=64),
               "--stop of several tokens")
    for option, value in (("--temperature", "nan"), ("--temperature", "101"), ("--top-p", "nan"), ("--top-p", "0")):
        runs.check("must be a number from" in generate(work / "bytes", "--prompt", "a", option, value, code=64),
                   f"{option} {value}")
    runs.check("give --prompt" in generate(work / "bytes", code=64), "no prompt")
    numbers = json.loads(generate(work / "bytes", "--prompt-tokens", "116,104,101", "--temperature", 0,
                                  "--max-tokens", 4, "--json"))
    runs.check(bytes(numbers["tokens"][0]) == b" qui" or bytes(numbers["tokens"][0]) == b" laz", f"{numbers['tokens']}")
    # At a high temperature all bytes occur, also control characters: JSON has to stay JSON.
    wild = json.loads(generate(work / "bytes", "--prompt", "the", "--temperature", 100, "--max-tokens", 2000, "--json"))
    runs.check(len(set(wild["tokens"][0])) > 200 and "\x7f" in wild["texts"][0],
               f"{len(set(wild['tokens'][0]))} different bytes")
    runs.check("is not one of the model's" in generate(work / "bytes", "--prompt-tokens", "99999", code=78),
               "a token too large")
    # Tokens without names: numbers go in and out.
    runs.run(runs.TOP / "configs/tiny/gpt.yaml", work / "unnamed", sets=["train.max_steps=2"])
    drawn = generate(work / "unnamed", "--prompt-tokens", "1,2,3", "--max-tokens", 5)
    runs.check(len(json.loads(drawn)) == 5, f"numbers of tokens: {drawn!r}")
    runs.check("without names" in generate(work / "unnamed", "--prompt", "a", code=78), "a text for unnamed tokens")
print("the text follows the seed, the tokenizer is that of the checkpoint")
