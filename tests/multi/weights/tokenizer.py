"""data.tokenizer gives the tokens of the Python package tokenizers, for text in many languages and odd spaces."""
import json
import pathlib
import random
import subprocess
import sys
import unicodedata

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs

try:
    from safetensors.numpy import load_file
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors, trainers
except ImportError as error:
    print(f"skipped: {error}; pip install tokenizers")
    sys.exit(77)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
CONFIG = """
name: tokens
device: cpu
model: {{name: gpt, layers: 1, heads: 1, dim: 4}}
data: {{name: text, path: {folder}/text.txt, length: 8, tokenizer: {tokenizer}}}
optimizer: {{name: sgd, lr: 0.1}}
train: {{max_steps: 1, batch: {{global: 2}}, evaluate_every: never, checkpoint_every: 1 step}}
strategy: {{name: single}}
"""
SENTENCES = """
It's the dog's bone; they'LL say WE'VE seen it 12345 times, at 3.14159 or 1/2.
Der Fluß fließt über große Steine — „ja“, sagte Jürgen. L'été dernier, à Paris, nous avons mangé des crêpes.
Привет, как дела? Всё хорошо! Καλημέρα κόσμε. שלום עולם מה שלומך. مرحبا بالعالم كيف حالك ١٢٣٤٥
नमस्ते दुनिया कैसे हैं आप? สวัสดีชาวโลก  안녕하세요 세계 여러분  これは日本語の文です。　全角空白　も。 你好，世界！今天天气很好。
Emoji: 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ☃️; maths: ∑ x² ≤ ½ ⅷ ① ٣; combining: é ạ̈ ñ; Straße ſ K İ ı 'ſ 'S
def f(x):\n\treturn x  +  1\r\n\r\n    # comment\n\n\n\tif x:   \n  pass
tabs\t\tand\u00a0no-break\u2009thin\u3000wide\u2028line\u2029paragraph\u0085next\x0bvertical\x0cform end   
<|endoftext|>document<|endoftext|>  <|endoftext|><mask>text<mask>s <|end
""".replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r")


def text_of(seed):
    """Returns the sentences in random order, words of random letters, and runs of spaces of every kind."""
    draw = random.Random(seed)
    parts = SENTENCES.splitlines(keepends=True) * 3
    spaces = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u2028", "\x0b", "\x1c", "\u200b", " \n",
              "\n "]
    for _ in range(400):
        low, high = draw.choice([(0x20, 0x7f), (0xa1, 0x24f), (0x370, 0x5ff), (0x900, 0xdff), (0x3040, 0x30ff),
                                 (0x4e00, 0x9fff), (0x1f300, 0x1f6ff), (0x20, 0xd7ff), (0x10000, 0x10fff),
                                 (0x30, 0x3a)])
        word = (chr(draw.randrange(low, high)) for _ in range(draw.randrange(1, 12)))
        # Libraries know different versions of Unicode, so they disagree about unassigned characters.
        parts.append("".join(letter for letter in word if unicodedata.category(letter) != "Cn"))
        parts.append("".join(draw.choice(spaces) for _ in range(draw.randrange(0, 4))))
    parts += ["a" * 3000, " " * 500, "\n" * 70, "ab" * 300]
    draw.shuffle(parts)
    return "".join(parts)


def trained(pre_tokenizer, special=(), ignore_merges=False, size=1500):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator([text_of(seed) for seed in (1, 2)], trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def split_by(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def cases():
    yield "gpt2", trained(byte_level(), ["<|endoftext|>"])
    yield "prefixed", trained(byte_level(add_prefix_space=True))
    yield "whole", trained(byte_level(use_regex=False), size=600)
    yield "qwen2", trained(split_by(QWEN2), ["<|endoftext|>", "<|endoftext|>document"])
    llama = trained(split_by(LLAMA3), ["<|endoftext|>"], ignore_merges=True)
    llama.add_tokens([AddedToken("<mask>", normalized=True), AddedToken("crêpes", normalized=True)])
    llama.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[
        ("<|endoftext|>", llama.token_to_id("<|endoftext|>"))])  # has no effect on a stream
    yield "llama3", llama
    yield "digits", trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]))


def encoded(folder, tokenizer):
    (folder / "run.yaml").write_text(CONFIG.format(folder=folder, tokenizer=tokenizer))
    runs.run(folder / "run.yaml", folder / "run")
    return load_file(folder / "text.txt.cache.safetensors")["tokens"].tolist()


def compare(title, mine, theirs, tokenizer):
    if mine == theirs:
        return print(f"{title}: {len(mine)} tokens agree", flush=True)
    at = next(i for i, pair in enumerate(zip(mine, theirs)) if pair[0] != pair[1])
    show = lambda ids: [tokenizer.id_to_token(one) for one in ids[max(0, at - 5):at + 5]]
    runs.fail(f"{title}: token {at} of {len(mine)} and {len(theirs)} differs: {show(mine)}, in Python {show(theirs)}")


def made(work):
    """`convoy vocabulary` merges what the trainer of the package merges."""
    special = ["<|endoftext|>", "<|pad|>"]
    for size in (300, 1500):
        theirs = Tokenizer(models.BPE())
        theirs.pre_tokenizer = byte_level()
        theirs.train_from_iterator([text_of(seed) for seed in (1, 2)], trainers.BpeTrainer(
            vocab_size=size, show_progress=False, special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        for seed in (1, 2):
            (work / f"part-{seed}.txt").write_bytes(text_of(seed).encode())
        made = work / f"made-{size}.json"
        words = [word for token in special for word in ("--special", token)]
        done = subprocess.run([runs.CONVOY, "vocabulary", work / "part-*.txt", "--size", str(size), "--to", made,
                               *words], text=True, capture_output=True, timeout=60)
        runs.check(done.returncode == 0, f"convoy vocabulary: exit {done.returncode}\n{done.stdout}{done.stderr}")
        ours = Tokenizer.from_file(str(made))
        runs.check(ours.get_vocab() == theirs.get_vocab(), f"{size} tokens: the vocabulary differs from the package's")
        mine, peer = (json.loads(tokenizer.to_str())["model"]["merges"] for tokenizer in (ours, theirs))
        runs.check(mine == peer, f"{size} tokens: the merges differ from the package's")
        print(f"convoy vocabulary --size {size}: {len(mine)} merges agree", flush=True)
    again = subprocess.run([runs.CONVOY, "vocabulary", work / "part-1.txt", "--size", "300", "--to", made], text=True,
                           capture_output=True, timeout=60)
    runs.check(again.returncode == 73 and "--force" in again.stderr,
               f"an existing file: {again.returncode}, {again.stderr}")


with runs.workspace() as work:
    text = text_of(3)
    made(work)
    for title, tokenizer in cases():
        folder = work / title
        folder.mkdir()
        (folder / "text.txt").write_bytes(text.encode())
        tokenizer.save(str(folder / "tokenizer.json"))
        theirs = tokenizer.encode(text, add_special_tokens=False).ids
        compare(title, encoded(folder, folder / "tokenizer.json"), theirs, tokenizer)
        if title == "gpt2":  # the same as two files
            model = json.loads((folder / "tokenizer.json").read_text())["model"]
            vocabulary = {**model["vocab"], "<|endoftext|>": tokenizer.token_to_id("<|endoftext|>")}
            (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
            (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(
                (" ".join(merge) if isinstance(merge, list) else merge) + "\n" for merge in model["merges"]))
            (folder / "run").rename(folder / "first")
            compare("vocab.json", encoded(folder, folder / "vocab.json"), theirs, tokenizer)
            # A checkpoint has the files.
            lists = load_file(next((folder / "run" / "checkpoints").glob("step-*")) / "data.safetensors")
            stored = lists["tokenizer.bytes"].tobytes()
            runs.check((folder / "merges.txt").read_bytes() in stored and b"vocab.json" in stored,
                       "the files are not kept")
print("tokens equal those of the package tokenizers")
