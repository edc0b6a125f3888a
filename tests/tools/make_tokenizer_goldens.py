#!/usr/bin/env python3
"""Makes tests/data/tokenizer: small tokenizer.json files and what the reference says about them.

    pip install tokenizers==0.23.3
    tests/tools/make_tokenizer_goldens.py tests/data/tokenizer examples/models

One NAME.json and one NAME.golden per tokenizer; of a file under examples/models only the goldens are
made. A golden line is, with tabs between:

    first  second  max_length  strategy  side  special  literal  ids  type_ids

Texts are ASCII with \\xNN for other bytes, `\\0` alone for "no second text"; max_length 0 is no limit;
special and literal are 0 or 1 (literal is the reference's encode_special_tokens); ids is `error` where
the reference fails, or where rankplan refuses by design (max_length below the special tokens).
The random texts come from a fixed seed: a second run makes the same files.
"""

import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors

ALPHABET = ["a", "b", "c", "s", "e", "1", "2", " ", " ", "  ", "\t", "\n", "é", "e\u0301", "大", "家", "🙂",
            "\u00a0", ".", "'s", "İ", "the cat", "[SEP]", "</s>", "<|endoftext|>", "\ufb01", "👩\u200d🚀", "x"]
T4_ALPHABET = ["a", "b", "z", "7", " ", " ", " ", "\t", "\n", "é", "大", "🙂"]
STRATEGIES = ["longest_first", "only_first", "only_second"]
QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(*contents):
    return [AddedToken(c, special=True, normalized=False) for c in contents]


def wordpiece(vocab, lowercase, strip_accents):
    tok = Tokenizer(models.WordPiece({t: i for i, t in enumerate(vocab)}, unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    tok.add_special_tokens(special("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
    return tok


def accents(lowercase, strip_accents):
    tok = wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hokkaido", "eire", "naive", "gospic",
                     "istanbul", "a", "b", "大", "家", "好"], lowercase, strip_accents)
    tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tok


def bert():
    tok = wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "sep", "the", "cat", "##s",
                     "dog", "##ing", "run", "?", "1", "c", "a", "b", "##a", "##b", "e", "##e", "大", "家",
                     ".", "x", "s", "'"], True, None)
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    # A file may carry both; the library must drop them.
    tok.enable_truncation(4)
    tok.enable_padding(length=6)
    return tok


def byte_level_bpe(specials):
    """Bytes, and merges that make each piece of the T4 cases one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "Ġ"), ("ĠĠ", "Ġ"), ("Ġ", "b"), ("Ġ", "Ċ"), ("ĉ", "b"), ("Ġ", "a"), ("a", "b"), ("Ã", "©"),
              ("t", "h"), ("th", "e"), ("Ġ", "the"), ("c", "a"), ("ca", "t"), ("Ġ", "cat")]
    vocab = {t: i for i, t in enumerate(alphabet + [a + b for a, b in merges])}
    vocab.update(specials)
    return models.BPE(vocab, merges)


def qwen():
    eos = 151643
    tok = Tokenizer(byte_level_bpe({"<|endoftext|>": eos}))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="$A <|endoftext|>", pair="$A:0 <|endoftext|>:0 $B:1 <|endoftext|>:1",
            special_tokens=[("<|endoftext|>", eos)])])
    tok.add_special_tokens(special("<|endoftext|>"))
    return tok


def roberta():
    tok = Tokenizer(byte_level_bpe({"<s>": 300, "<pad>": 301, "</s>": 302, "<mask>": 303}))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.RobertaProcessing(("</s>", 302), ("<s>", 300))
    tok.add_special_tokens(special("<s>", "<pad>", "</s>")
                           + [AddedToken("<mask>", special=True, normalized=False, lstrip=True)])
    return tok


def xlmr():
    words = ["▁the", "▁cat", "cat", "s", "ing", "▁a", "▁b", "ab", "é", "大", "家", "▁大", "fi", "se", "</"]
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.5)]
    vocab += [(w, -4.0 - i / 8) for i, w in enumerate(words)]
    vocab += [(c, -9.0 - i / 16) for i, c in enumerate("abcdefghijklmnopqrtuvwxyz123.<>/[]'")]
    tok = Tokenizer(models.Unigram(vocab, unk_id=3))
    tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0",
        special_tokens=[("<s>", 0), ("</s>", 2)])
    tok.add_special_tokens(special("<s>", "<pad>", "</s>", "<unk>"))
    return tok


def plain():
    """No post-processor at all."""
    tok = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "the": 3, "cat": 4, ".": 5}, "[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return tok


TOKENIZERS = {
    "accents_lower_null": lambda: accents(True, None),
    "accents_lower_keep": lambda: accents(True, False),
    "accents_cased_null": lambda: accents(False, None),
    "accents_cased_strip": lambda: accents(False, True),
    "bert": bert,
    "qwen": qwen,
    "roberta": roberta,
    "xlmr": xlmr,
    "plain": plain,
}


def escape(text):
    if text is None:
        return "\\0"
    return "".join(chr(b) if 0x20 <= b < 0x7f and b != 0x5c else f"\\x{b:02x}" for b in text.encode())


def reference(tok, first, second, max_length, strategy, side, add_special, literal):
    """(ids, type_ids), or None for a refusal."""
    tok.no_padding()
    tok.no_truncation()
    tok.encode_special_tokens = literal
    n_special = tok.num_special_tokens_to_add(second is not None) if add_special else 0
    if max_length:
        if max_length < n_special:
            return None
        tok.enable_truncation(max_length, strategy=strategy, direction=side)
    try:
        out = tok.encode(first, second, add_special_tokens=add_special)
    except Exception as error:
        assert "Truncation error" in str(error), error
        return None
    return out.ids, out.type_ids


def forged(tok, first, second, literal):
    """Whether the reference lets the model read a special token out of plain text."""
    if not literal:
        return False
    ids = {i for i, t in tok.get_added_tokens_decoder().items() if t.special and t.content != "<unk>"
           and t.content != "[UNK]"}
    tok.encode_special_tokens = True
    tok.no_truncation()
    return any(ids & set(tok.encode(t, add_special_tokens=False).ids) for t in (first, second) if t)


def record(tok, first, second=None, max_length=0, strategy="longest_first", side="right", add_special=True,
           literal=False):
    if forged(tok, first, second, literal):
        return None
    result = reference(tok, first, second, max_length, strategy, side, add_special, literal)
    fields = [escape(first), escape(second), str(max_length), strategy, side, str(int(add_special)),
              str(int(literal))]
    fields += [" ".join(map(str, part)) for part in result] if result else ["error", ""]
    return "\t".join(fields)


def random_text(rng, alphabet, longest):
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(0, longest)))


def random_records(tok, seed, n):
    rng = random.Random(seed)
    for _ in range(n):
        second = random_text(rng, ALPHABET, 14) if rng.random() < 0.7 else None
        yield record(tok, random_text(rng, ALPHABET, 14), second,
                     rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 24]), rng.choice(STRATEGIES),
                     rng.choice(["right", "left"]), rng.random() < 0.8, rng.random() < 0.25)


def cases(name, tok):
    """The field cases that this tokenizer is for."""
    if name.startswith("accents"):
        for text in ["Hokkaidō", "Éire", "e\u0301ire", "naïve", "Gospić", "İstanbul", "大家好", "a\u00a0b"]:
            yield record(tok, text)
    if name == "bert":
        for a, b, m in [(260, 500, 512), (200, 500, 512), (500, 20, 512), (500, 500, 512), (6, 3, 8),
                        (3, 6, 8), (4, 4, 8), (7, 7, 10), (5, 5, 4), (10, 0, 8), (0, 10, 8)]:
            yield record(tok, " ".join("a" * a), " ".join("b" * b), m)
        for text in ["a [SEP] b", "a[SEP]b", "a [sep] b"]:
            yield record(tok, text)
            yield record(tok, text, literal=True)
            yield record(tok, text, "the [SEP] cat")
    if name in ("bert", "qwen"):
        for side in ("right", "left"):
            yield record(tok, " ".join(["cat"] * 20), max_length=8, side=side)
    if name == "qwen":
        rng = random.Random(4)
        for text in ["a   b", "a   ", "   ", "a \n b", "a  1", "a\t\tb"]:
            yield record(tok, text, add_special=False)
        for _ in range(200):
            yield record(tok, random_text(rng, T4_ALPHABET, 24), add_special=False)
    if name == "xlmr":
        yield record(tok, "the cat", "a 大家")
        yield record(tok, "the </s> cat", "a<s>b")


def write_goldens(path, tok, name, n):
    lines = [*cases(name, tok), *random_records(tok, name, n)]
    path.write_text("\n".join(line for line in lines if line) + "\n", encoding="ascii")


def main():
    out, examples = Path(sys.argv[1]), Path(sys.argv[2])
    for name, make in TOKENIZERS.items():
        tok = make()
        (out / f"{name}.json").write_text(tok.to_str() + "\n", encoding="utf-8")
        write_goldens(out / f"{name}.golden", tok, name, 30 if name.startswith("accents") else 150)
    name = "apt-bert-tiny"
    write_goldens(out / f"{name}.golden", Tokenizer.from_file(str(examples / name / "tokenizer.json")),
                  name, 150)


if __name__ == "__main__":
    main()
