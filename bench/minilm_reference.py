"""Float64 embeddings of a sentence-transformers BERT folder, the yardstick for `rankplan embed`.

The forward pass is written out in numpy and shares no code with rankplan or with any runtime, so
an agreement of the two says something about both. Each text runs alone: there is no padding and no
mask that could hide a mistake. Texts are the lines of a file, split at LF and at nothing else.

  minilm_reference.py MODEL TEXTS --out vectors.safetensors
  minilm_reference.py MODEL TEXTS --onnx model.onnx            how far ONNX Runtime is from float64
  rankplan embed MODEL TEXTS --format jsonl > ours.jsonl
  minilm_reference.py MODEL TEXTS --compare ours.jsonl         exit status 1 above --tol

Needs numpy, safetensors and tokenizers; onnxruntime for --onnx.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

erf = np.vectorize(math.erf, otypes=[np.float64])


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def read_texts(path):
    lines = path.read_bytes().decode("utf-8").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def tokenize(folder, texts, max_length):
    """Token ids of each text; the limit and padding in tokenizer.json are not the model's."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = [tokenizer.encode(text).ids for text in texts]
    return [t if len(t) <= max_length else t[: max_length - 1] + t[-1:] for t in ids]


class Bert:
    """A BERT encoder with mean pooling and L2 norm, in float64."""

    def __init__(self, folder):
        self.config = read_json(folder / "config.json")
        pooling = read_json(folder / "1_Pooling" / "config.json")
        if self.config["model_type"] != "bert" or self.config["hidden_act"] != "gelu":
            sys.exit(f"{folder}: the reference covers BERT with erf GELU only")
        if not pooling["pooling_mode_mean_tokens"]:
            sys.exit(f"{folder}: the reference covers mean pooling only")
        weights = load_file(folder / "model.safetensors")
        self.weights = {name: w.astype(np.float64) for name, w in weights.items()}

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def layer_norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        scaled = centred / np.sqrt(variance + self.config["layer_norm_eps"])
        return scaled * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def heads(self, x, name):
        n_heads = self.config["num_attention_heads"]
        return self.linear(x, name).reshape(len(x), n_heads, -1).transpose(1, 0, 2)

    def attention(self, x, layer):
        q, k, v = (self.heads(x, f"{layer}.attention.self.{n}") for n in ("query", "key", "value"))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        joined = (weights @ v).transpose(1, 0, 2).reshape(x.shape)
        return self.linear(joined, f"{layer}.attention.output.dense")

    def feed_forward(self, x, layer):
        h = self.linear(x, f"{layer}.intermediate.dense")
        return self.linear(0.5 * h * (1.0 + erf(h / math.sqrt(2.0))), f"{layer}.output.dense")

    def embed(self, ids):
        table = {n: self.weights[f"embeddings.{n}_embeddings.weight"]
                 for n in ("word", "position", "token_type")}
        x = table["word"][ids] + table["position"][: len(ids)] + table["token_type"][0]
        x = self.layer_norm(x, "embeddings.LayerNorm")
        for i in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{i}"
            x = self.layer_norm(x + self.attention(x, layer), f"{layer}.attention.output.LayerNorm")
            x = self.layer_norm(x + self.feed_forward(x, layer), f"{layer}.output.LayerNorm")
        return unit(x.mean(0))


def unit(v):
    return v / np.linalg.norm(v)


def embed_with_onnx(path, token_ids):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    vectors = []
    for ids in token_ids:
        row = np.array([ids], np.int64)
        feeds = {"input_ids": row, "attention_mask": np.ones_like(row),
                 "token_type_ids": np.zeros_like(row)}
        hidden = session.run(None, {n: feeds[n] for n in names})[0][0]
        vectors.append(unit(hidden.astype(np.float64).mean(0)))
    return np.array(vectors)


def load_rankplan_lines(path, shape):
    """Vectors and token counts of a jsonl file, which must hold each index exactly once."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    if sorted(r["index"] for r in rows) != list(range(shape[0])):
        sys.exit(f"{path}: {len(rows)} lines, expected each index from 0 to {shape[0] - 1} once")
    rows.sort(key=lambda r: r["index"])
    for row in rows:
        if len(row["embedding"]) != shape[1]:
            n_values = len(row["embedding"])
            sys.exit(f"{path}: text {row['index']} has {n_values} values, not {shape[1]}")
    return np.array([r["embedding"] for r in rows], np.float64), [r.get("tokens") for r in rows]


def compare(path, reference, token_ids, tolerance):
    vectors, tokens = load_rankplan_lines(path, reference.shape)
    errors = np.abs(vectors - reference).max(1)
    bad = np.flatnonzero(~(errors <= tolerance))  # written so that a NaN counts as bad
    for i in bad:
        print(f"text {i}: max abs error {errors[i]:.3e}; "
              f"tokens {tokens[i]}, here {len(token_ids[i])}")
    print(f"{len(errors)} texts, max abs error {errors.max():.3e} (text {errors.argmax()}), "
          f"{len(bad)} above {tolerance:g}")
    return len(bad) == 0


def parse_arguments():
    parser = argparse.ArgumentParser(description="float64 reference embeddings")
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("texts", type=Path, help="file with one text a line")
    parser.add_argument("--max-length", type=int, default=256, help="tokens, specials included")
    parser.add_argument("--out", type=Path, help=".safetensors file for the vectors")
    parser.add_argument("--onnx", type=Path, help="also run this ONNX file of the model")
    parser.add_argument("--compare", type=Path, help="jsonl of `rankplan embed` to check")
    parser.add_argument("--tol", type=float, default=1e-5, help="largest absolute error allowed")
    return parser.parse_args()


def main():
    args = parse_arguments()
    token_ids = tokenize(args.model, read_texts(args.texts), args.max_length)
    bert = Bert(args.model)
    reference = np.array([bert.embed(ids) for ids in token_ids])
    tensors = {"embeddings": reference, "tokens": np.array([len(ids) for ids in token_ids])}
    if args.onnx:
        tensors["onnx"] = embed_with_onnx(args.onnx, token_ids)
        errors = np.abs(tensors["onnx"] - reference).max(1)
        print(f"ONNX Runtime: max abs error {errors.max():.3e} (text {errors.argmax()})")
    if args.out:
        save_file(tensors, args.out)
    if args.compare and not compare(args.compare, reference, token_ids, args.tol):
        sys.exit(1)


if __name__ == "__main__":
    main()
