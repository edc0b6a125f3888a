#!/usr/bin/env python3
"""Runs Hugging Face transformers and writes what its modules computed as `rankplan dump` would.

    tools/hf_dump.py MODEL_DIR OUT --cases cases.safetensors [--dtype float64]
    rankplan dump MODEL_DIR --cases cases.safetensors -o ours
    rankplan compare ours OUT --tol 1e-4

Each sequence runs alone and unpadded; the rows of all of them stand under each other, as in rankplan's
batches. Names are those of a plan that is not fused (`rankplan dump --no-fuse`): a product without its
activation and residual, then "X.act" and "X.add"; compare finds the counterpart of a fused step by itself.
Steps that are computed outside of the module tree (pooling, normalising, the activation of scores) are
left out, and the index says that it is partial.

Needs torch, transformers 5, numpy and safetensors. Reads MODEL_DIR and the cases, nothing else: no network.
"""
import argparse
import json
import os
import re
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import numpy as np  # noqa: E402

# What a step's value is: a module's output ("out") or what it is given ("in"). Several modules: their
# values side by side. "{}" is the layer. The paths are those of the checkpoints' tensors.
BERT_LAYER = [
    ("attn.qkv", "out", ["attention.self.query", "attention.self.key", "attention.self.value"]),
    ("attn.core", "in", ["attention.output.dense"]),
    ("attn.out", "out", ["attention.output.dense"]),
    ("attn.out.add", "in", ["attention.output.LayerNorm"]),
    ("attn.norm", "out", ["attention.output.LayerNorm"]),
    ("ffn.up", "out", ["intermediate.dense"]),
    ("ffn.up.act", "in", ["output.dense"]),
    ("ffn.down", "out", ["output.dense"]),
    ("ffn.down.add", "in", ["output.LayerNorm"]),
    ("ffn.norm", "out", ["output.LayerNorm"]),
]
MPNET_LAYER = [
    ("attn.qkv", "out", ["attention.attn.q", "attention.attn.k", "attention.attn.v"]),
    ("attn.core", "in", ["attention.attn.o"]),
    ("attn.out", "out", ["attention.attn.o"]),
    ("attn.out.add", "in", ["attention.LayerNorm"]),
    ("attn.norm", "out", ["attention.LayerNorm"]),
] + BERT_LAYER[5:]
DISTILBERT_LAYER = [
    ("attn.qkv", "out", ["attention.q_lin", "attention.k_lin", "attention.v_lin"]),
    ("attn.core", "in", ["attention.out_lin"]),
    ("attn.out", "out", ["attention.out_lin"]),
    ("attn.out.add", "in", ["sa_layer_norm"]),
    ("attn.norm", "out", ["sa_layer_norm"]),
    ("ffn.up", "out", ["ffn.lin1"]),
    ("ffn.up.act", "in", ["ffn.lin2"]),
    ("ffn.down", "out", ["ffn.lin2"]),
    ("ffn.down.add", "in", ["output_layer_norm"]),
    ("ffn.norm", "out", ["output_layer_norm"]),
]
# Layer 0 has no attn_norm; what attn.rope gives has no module. "" is the layer itself.
MODERNBERT_LAYER = [
    ("attn.norm", "out", ["attn_norm"]),
    ("attn.qkv", "out", ["attn.Wqkv"]),
    ("attn.core", "in", ["attn.Wo"]),
    ("attn.out", "out", ["attn.Wo"]),
    ("attn.out.add", "in", ["mlp_norm"]),
    ("ffn.norm", "out", ["mlp_norm"]),
    ("ffn.up", "out", ["mlp.Wi"]),
    ("ffn.glu", "in", ["mlp.Wo"]),
    ("ffn.down", "out", ["mlp.Wo"]),
    ("ffn.down.add", "out", [""]),
]
# Heads: paths from the whole model, a row for each sequence.
POOLER_HEAD = [
    ("first", "in", ["{base}.pooler.dense"]),
    ("pooler", "out", ["{base}.pooler.dense"]),
    ("pooler.act", "in", ["classifier"]),
    ("classifier", "out", ["classifier"]),
]
DENSE_HEAD = [
    ("first", "in", ["classifier.dense"]),
    ("classifier.dense", "out", ["classifier.dense"]),
    ("classifier.dense.act", "in", ["classifier.out_proj"]),
    ("classifier", "out", ["classifier.out_proj"]),
]
DISTILBERT_HEAD = [
    ("first", "in", ["pre_classifier"]),
    ("classifier.dense", "out", ["pre_classifier"]),
    ("classifier.dense.act", "in", ["classifier"]),
    ("classifier", "out", ["classifier"]),
]
MODERNBERT_HEAD = [
    ("{pool}", "in", ["head.dense"]),
    ("head.dense", "out", ["head.dense"]),
    ("head.dense.act", "in", ["head.norm"]),
    ("head.norm", "out", ["head.norm"]),
    ("classifier", "out", ["classifier"]),
]
# model_type: where the layers are, what is in one, the head, whether there are segments.
FAMILIES = {
    "bert": ("encoder.layer", BERT_LAYER, POOLER_HEAD, True),
    "electra": ("encoder.layer", BERT_LAYER, DENSE_HEAD, True),
    "roberta": ("encoder.layer", BERT_LAYER, DENSE_HEAD, True),
    "xlm-roberta": ("encoder.layer", BERT_LAYER, DENSE_HEAD, True),
    "mpnet": ("encoder.layer", MPNET_LAYER, DENSE_HEAD, False),
    "distilbert": ("transformer.layer", DISTILBERT_LAYER, DISTILBERT_HEAD, False),
    "modernbert": ("layers", MODERNBERT_LAYER, MODERNBERT_HEAD, False),
}
OPS = {"qkv": "gemm", "core": "attention", "act": "activation", "add": "add", "norm": "layer_norm",
       "sum": "embed", "tok": "embed", "first": "pool", "mean": "pool", "glu": "glu", "final_norm": "layer_norm"}


class Step:
    """A step's name, where its value is to be seen, and what was seen of each sequence."""

    def __init__(self, name, side, paths, rows):
        self.name, self.side, self.paths, self.rows = name, side, paths, rows
        self.seen = {}  # path: value of the running sequence
        self.values = []

    def op(self):
        return OPS.get(self.name.rsplit(".", 1)[-1], "gemm")

    def finish_sequence(self, length):
        missing = [p for p in self.paths if p not in self.seen]
        if missing:
            sys.exit(f"{self.name}: {', '.join(missing)} did not run")
        rows = length if self.rows == "tokens" else 1
        self.values.append(np.concatenate([self.seen[p].reshape(rows, -1) for p in self.paths], axis=1))
        self.seen = {}


def list_steps(model, base, family, classifies):
    """Every step of the plan that has a counterpart, in the plan's order."""
    where, layer, head, _ = FAMILIES[family]
    modules = dict(model.named_modules())
    root = next((n for n, m in modules.items() if m is base), "")
    dot = root + "." if root else ""
    modern = family == "modernbert"
    norm = dot + ("embeddings.norm" if modern else "embeddings.LayerNorm")
    steps = [Step("embeddings.tok" if modern else "embeddings.sum", "in", [norm], "tokens"),
             Step("embeddings.norm", "out", [norm], "tokens")]
    if dot + "embeddings_project" in modules:
        steps.append(Step("embeddings.project", "out", [dot + "embeddings_project"], "tokens"))
    for i in range(model.config.num_hidden_layers):
        for name, side, paths in layer:
            if modern and i == 0 and name == "attn.norm":
                continue
            paths = [f"{dot}{where}.{i}.{p}".rstrip(".") for p in paths]
            steps.append(Step(f"layers.{i}.{name}", side, paths, "tokens"))
    if modern:
        steps.append(Step("final_norm", "out", [dot + "final_norm"], "tokens"))
    if classifies:
        pool = "pool.mean" if getattr(model.config, "classifier_pooling", "cls") == "mean" else "first"
        for name, side, paths in head:
            paths = [p.replace("{base}", root) for p in paths]
            steps.append(Step(name.replace("{pool}", pool), side, paths, "seqs"))
    for step in steps:
        for path in step.paths:
            if path not in modules:
                sys.exit(f"{step.name}: this model has no module {path}")
    return steps, modules


def add_hooks(steps, modules):
    def keep(step, path, value):
        if isinstance(value, tuple):
            value = value[0]
        # A copy: what follows may add to it in place.
        step.seen[path] = value.detach().double().cpu().numpy().copy()

    for step in steps:
        for path in step.paths:
            if step.side == "out":
                modules[path].register_forward_hook(
                    lambda module, args, output, s=step, p=path: keep(s, p, output))
            else:
                modules[path].register_forward_pre_hook(
                    lambda module, args, s=step, p=path: keep(s, p, args[0]))


def load(folder, dtype):
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.model_type not in FAMILIES:
        sys.exit(f"{folder}: model_type {config.model_type} is none of {', '.join(FAMILIES)}")
    classifies = any(a.endswith("ForSequenceClassification") for a in config.architectures or [])
    auto = transformers.AutoModelForSequenceClassification if classifies else transformers.AutoModel
    # Eager attention: plain products, and the same on every machine.
    model = auto.from_pretrained(folder, local_files_only=True, use_safetensors=True,
                                 attn_implementation="eager")
    model = model.to(getattr(torch, dtype)).eval()
    return model, config.model_type, classifies, transformers.__version__


def run(model, family, steps, cases):
    import torch

    ids, cu = cases["ids"].astype(np.int64), cases["cu"].astype(np.int64)
    types = cases["type_ids"].astype(np.int64) if "type_ids" in cases else None
    for start, end in zip(cu[:-1], cu[1:]):
        batch = {"input_ids": torch.from_numpy(ids[start:end])[None, :]}
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        if types is not None and FAMILIES[family][3]:
            batch["token_type_ids"] = torch.from_numpy(types[start:end])[None, :]
        with torch.no_grad():
            model(**batch)
        for step in steps:
            step.finish_sequence(int(end - start))


def statistics(x):
    """As rankplan's: over the finite values, in double."""
    x = x.astype(np.float64)
    finite = x[np.isfinite(x)]
    numbers = dict.fromkeys(["min", "max", "mean", "std", "absmax"])
    if finite.size:
        numbers = {"min": finite.min(), "max": finite.max(), "mean": finite.mean(), "std": finite.std(),
                   "absmax": np.abs(finite).max()}
        numbers = {key: float(value) for key, value in numbers.items()}
    numbers["nan"] = int(np.isnan(x).sum())
    numbers["inf"] = int(np.isinf(x).sum())
    return numbers


def write_npy(folder, name, x):
    temporary = os.path.join(folder, f".{name}.tmp")
    with open(temporary, "wb") as f:
        np.lib.format.write_array(f, np.ascontiguousarray(x, dtype="<f4"), version=(1, 0))
    os.replace(temporary, os.path.join(folder, name))


def write(folder, steps, cases, family, dtype, version):
    """The folder of a dump; the index comes last."""
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        sys.exit(f"{folder}: it is not empty")
    listed = []
    for i, step in enumerate(steps):
        x = np.concatenate(step.values).astype(np.float32)
        name = f"{i:04d}_{re.sub(r'[^A-Za-z0-9._-]', '_', step.name)}.npy"
        write_npy(folder, name, x)
        listed.append({"step": i, "op": step.op(), "kernel": "transformers", "tensor": step.name,
                       "module": step.paths, "file": name, "rows": step.rows, "shape": list(x.shape),
                       "dtype": "f32", "inputs": None, "xxh3": None, **statistics(x)})
    index = {"format": "rankplan dump", "version": 1, "transformers": version, "family": family,
             "precision": dtype, "fused": False, "partial": True,
             "cu": cases["cu"].tolist(), "ids": cases["ids"].tolist(),
             "type_ids": cases["type_ids"].astype(int).tolist() if "type_ids" in cases else None,
             "plan": [step.name for step in steps], "steps": listed}
    temporary = os.path.join(folder, ".index.json.tmp")
    with open(temporary, "w", encoding="utf-8") as f:
        json.dump(index, f, indent=1, allow_nan=False)
        f.write("\n")
    os.replace(temporary, os.path.join(folder, "index.json"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model_dir")
    parser.add_argument("out")
    parser.add_argument("--cases", required=True, help="a cases.safetensors with ids, cu and maybe type_ids")
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    args = parser.parse_args()

    from safetensors.numpy import load_file

    cases = load_file(args.cases)
    for key in ("ids", "cu"):
        if key not in cases:
            sys.exit(f"{args.cases}: there is no tensor {key}")
    model, family, classifies, version = load(args.model_dir, args.dtype)
    steps, modules = list_steps(model, model.base_model, family, classifies)
    add_hooks(steps, modules)
    run(model, family, steps, cases)
    write(args.out, steps, cases, family, args.dtype, version)
    print(f"{args.out}: {len(steps)} steps of {len(cases['cu']) - 1} sequences")


if __name__ == "__main__":
    main()
