"""Ranking quality on real text: find a Debian package's description by its synopsis.

A query is a synopsis, its right document the long description of the same package. The other
candidates are half hard ones (those that share the most telling words with the query) and half
random ones. The sample depends on the lists and the seed alone, so two models, two builds or two
precisions can be compared; the chance of a random order and a plain count of shared words are
printed beside. An embedder is asked for all vectors in one `rankplan embed`; a cross-encoder (a
...ForSequenceClassification) gets one `rankplan rerank` for each query.

  apt_ranking.py --rankplan build/rankplan --model MODEL --queries 100 --candidates 20 --seed 1

The descriptions come with `apt-get -o Acquire::Languages=en update`.
"""

import argparse
import collections
import glob
import heapq
import json
import math
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LISTS = "/var/lib/apt/lists/*_i18n_Translation-en*"
CAT = "/usr/lib/apt/apt-helper"  # unpacks whatever compression apt chose
MIN_WORDS = 8  # a shorter description says too little to be found

Package = collections.namedtuple("Package", "synopsis description words")
Query = collections.namedtuple("Query", "text right candidates")


def words_of(text):
    return set(re.findall(r"[a-z0-9]{2,}", text.lower()))


def read_paragraphs(path):
    """The (synopsis, long description) pairs of a Translation-en list, descriptions on one line."""
    text = subprocess.run([CAT, "cat-file", path], check=True, stdout=subprocess.PIPE).stdout
    for paragraph in text.decode("utf-8").split("\n\n"):
        _, found, body = paragraph.partition("\nDescription-en: ")
        if found:
            synopsis, *lines = body.split("\n")
            lines = [line.strip() for line in lines if line.strip() != "."]
            yield synopsis.strip(), " ".join(lines)


def read_packages(paths):
    """One package for each description and synopsis: twins would have no one right answer."""
    descriptions, synopses, packages = set(), set(), []
    for path in sorted(paths):
        for synopsis, description in read_paragraphs(path):
            words = words_of(description)
            if len(words) < MIN_WORDS or synopsis in synopses or description in descriptions:
                continue
            synopses.add(synopsis)
            descriptions.add(description)
            packages.append(Package(synopsis, description, words))
    return packages


class SharedWords:
    """Scores a description by the words it shares with a query, the rare ones counting more."""

    def __init__(self, packages):
        self.where = collections.defaultdict(list)
        for i, package in enumerate(packages):
            for word in package.words:
                self.where[word].append(i)
        self.weight = {w: math.log(len(packages) / len(at)) for w, at in self.where.items()}

    def scores(self, query):
        scores = collections.Counter()
        for word in sorted(words_of(query)):
            for i in self.where.get(word, ()):
                scores[i] += self.weight[word]
        return scores


def sample_queries(packages, shared, n_queries, n_candidates, seed):
    rng = random.Random(seed)
    queries = []
    for right in rng.sample(range(len(packages)), n_queries):
        scores = shared.scores(packages[right].synopsis)
        scores.pop(right, None)
        n_hard = n_candidates // 2
        chosen = heapq.nsmallest(n_hard, scores, key=lambda i: (-scores[i], i))
        chosen.append(right)
        while len(chosen) < n_candidates:
            other = rng.randrange(len(packages))
            if other not in chosen:
                chosen.append(other)
        rng.shuffle(chosen)
        queries.append(Query(packages[right].synopsis, right, chosen))
    return queries


def rankplan(args, texts, *command):
    """Runs the command on a file of texts; gives the jsonl lines it prints."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write("".join(text + "\n" for text in texts))
        file.flush()
        line = [args.rankplan, command[0], args.model, *command[1:], file.name]
        done = subprocess.run(line, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"{args.rankplan} {command[0]} failed with status {done.returncode}")
    rows = [json.loads(row) for row in done.stdout.decode("utf-8").split("\n") if row]
    if sorted(row["index"] for row in rows) != list(range(len(texts))):
        sys.exit(f"rankplan {command[0]}: {len(texts)} texts went in, {len(rows)} lines came out")
    return rows


def score_by_embedding(args, packages, queries):
    used = sorted({i for query in queries for i in query.candidates})
    texts = [query.text for query in queries] + [packages[i].description for i in used]
    vectors = [None] * len(texts)
    for row in rankplan(args, texts, "embed", "--format", "jsonl"):
        vectors[row["index"]] = row["embedding"]
    documents = dict(zip(used, vectors[len(queries):]))
    for query, vector in zip(queries, vectors):
        yield [sum(a * b for a, b in zip(vector, documents[i])) for i in query.candidates]


def score_by_reranking(args, packages, queries):
    for query in queries:
        scores = [None] * len(query.candidates)
        texts = [packages[i].description for i in query.candidates]
        for row in rankplan(args, texts, "rerank", "--query", query.text):
            scores[row["index"]] = row["score"]
        yield scores


def rank_of_right(query, scores):
    """Ties and scores that are no numbers count against the model."""
    right = scores[query.candidates.index(query.right)]
    return sum(not score < right for score in scores)


def report(name, queries, all_scores):
    ranks = [rank_of_right(q, s) for q, s in zip(queries, all_scores)]
    recall = sum(rank == 1 for rank in ranks) / len(ranks)
    mrr = sum(1.0 / rank for rank in ranks) / len(ranks)
    print(f"{name:14} recall@1 {recall:.3f}  MRR {mrr:.3f}", flush=True)


def is_cross_encoder(model):
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    return any("ForSequenceClassification" in a for a in config.get("architectures") or [])


def parse_arguments():
    parser = argparse.ArgumentParser(description="ranking quality on Debian package descriptions")
    parser.add_argument("--rankplan", required=True, help="path of the rankplan binary")
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lists", default=LISTS, help="glob of Translation-en lists")
    return parser.parse_args()


def main():
    args = parse_arguments()
    paths = glob.glob(args.lists)
    if not paths:
        sys.exit(f"no file matches {args.lists}: run apt-get -o Acquire::Languages=en update")
    packages = read_packages(paths)
    if len(packages) < max(args.queries, args.candidates):
        sys.exit(f"{len(packages)} packages are too few for this sample")
    shared = SharedWords(packages)
    queries = sample_queries(packages, shared, args.queries, args.candidates, args.seed)
    print(f"{len(packages)} packages; {args.queries} queries with {args.candidates} candidates, "
          f"seed {args.seed}")
    chance = 1.0 / args.candidates
    print(f"{'chance':14} recall@1 {chance:.3f}  "
          f"MRR {sum(chance / rank for rank in range(1, args.candidates + 1)):.3f}")
    lexical = [shared.scores(query.text) for query in queries]
    report("shared words", queries,
           ([s[i] for i in q.candidates] for q, s in zip(queries, lexical)))
    score = score_by_reranking if is_cross_encoder(args.model) else score_by_embedding
    report("model", queries, score(args, packages, queries))


if __name__ == "__main__":
    main()
