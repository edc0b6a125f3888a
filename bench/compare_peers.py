"""Rankplan against other runtimes, interleaved so that a wandering clock hits all alike.

For each thread count and shape, a round runs every peer and then rankplan, one process each, back
to back; the next round goes the other way. A ratio is always taken within one round, peer's time
over rankplan's, and the table shows the median of the rounds: above 1 rankplan is faster. The best
peer is the one with the lowest ratio. The milliseconds beside it are medians too.

Shapes are BxS (B texts of S tokens) or ragged32. Peers and rankplan draw their own 32 lengths from
16..256 for the latter, so there the ratio is one of work done in a second (GFLOP/s over real
tokens), and of a peer's strategies (padded, sorted batches, one at a time) its best counts.

  compare_peers.py --rankplan build/rankplan --model MODEL --peers DIR --python PYTHON
      --peer ort-fp32=ort:model.onnx --peer ct2-fp32=ct2:float32:ct2-folder

DIR holds bench.py, called as `bench.py RUNTIME NAME PATH THREADS --shapes S --budget SECONDS`; it
prints json lines with shape, ms and gops. PYTHON is an interpreter with the peers installed.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

RAGGED = "ragged32"
RAGGED_FOR_RANKPLAN = "ragged:32:16:256"


def output_of(args, command):
    done = subprocess.run(shlex.split(args.prefix) + command, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"status {done.returncode} from: {shlex.join(command)}")
    return done.stdout.decode("utf-8")


def run_peer(args, peer, shape, threads):
    name, _, rest = peer.partition("=")
    runtime, _, path = rest.rpartition(":")
    command = [args.python, os.path.join(args.peers, "bench.py"), runtime, args.peer_model, path,
               str(threads), "--label", name, "--shapes", shape, "--budget", str(args.budget)]
    if args.no_pad:
        command.append("--no-pad")
    rows = [json.loads(line) for line in output_of(args, command).splitlines()]
    if not rows:
        sys.exit(f"{name} measured nothing at {shape}")
    best = min(rows, key=lambda row: row["ms"])
    how = best["shape"].partition("/")[2]
    return {"name": f"{name} {how}".strip(), "ms": best["ms"], "gflops": best["gops"]}


def run_rankplan(args, shape, threads):
    shape = RAGGED_FOR_RANKPLAN if shape == RAGGED else shape
    command = [args.rankplan, "bench", args.model, "--shape", shape, "--json",
               "--threads", str(threads), *args.rankplan_arg]
    row = json.loads(output_of(args, command))
    return {"name": "rankplan", "ms": row["median_ms"], "gflops": row["gflops"],
            "peak_share": row["peak_share"]}


def run_round(args, shape, threads, backwards):
    """One result of each runner: the peers in their order, rankplan last."""
    runs = [lambda peer=peer: run_peer(args, peer, shape, threads) for peer in args.peer]
    runs.append(lambda: run_rankplan(args, shape, threads))
    if backwards:
        return [run() for run in reversed(runs)][::-1]
    return [run() for run in runs]


def ratio(shape, peer, ours):
    if shape == RAGGED:
        return ours["gflops"] / peer["gflops"]
    return peer["ms"] / ours["ms"]


def print_row(shape, threads, rounds):
    """rounds: one list of results a round."""
    by_runner = list(zip(*rounds))
    ours = by_runner.pop()
    ratios = [[ratio(shape, p, o) for p, o in zip(peer, ours)] for peer in by_runner]
    best = min(range(len(by_runner)), key=lambda i: statistics.median(ratios[i]))

    def middle(rows, key):
        return statistics.median(row[key] for row in rows)

    name = statistics.mode(row["name"] for row in by_runner[best])
    spread = ratios[best]
    print(f"{shape:>9} {threads:>7} {middle(ours, 'ms'):>10.2f} {middle(ours, 'gflops'):>8.1f} "
          f"{100 * middle(ours, 'peak_share'):>5.0f}% {middle(by_runner[best], 'ms'):>10.2f} "
          f"{statistics.median(spread):>6.2f} {min(spread):>6.2f} {max(spread):>6.2f}  {name}",
          flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description="rankplan against other runtimes")
    parser.add_argument("--rankplan", required=True, help="path of the rankplan binary")
    parser.add_argument("--model", required=True, help="model folder for rankplan")
    parser.add_argument("--peers", required=True, help="folder with the peers' bench.py")
    parser.add_argument("--python", default=sys.executable, help="interpreter for the peers")
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=RUNTIME:PATH")
    parser.add_argument("--peer-model", default="minilm", help="the model's name in bench.py")
    parser.add_argument("--shapes", default="1x16,1x128,1x512,8x128,32x128,ragged32")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of a peer at a shape")
    parser.add_argument("--no-pad", action="store_true", help="skip the slow padded ragged batch")
    parser.add_argument("--prefix", default="", help="command put before each run")
    parser.add_argument("--rankplan-arg", action="append", default=[],
                        help="further argument of rankplan bench, as --rankplan-arg=--int8")
    return parser.parse_args()


def main():
    args = parse_arguments()
    print(f"{'shape':>9} {'threads':>7} {'ours ms':>10} {'GFLOP/s':>8} {'peak':>6} {'peer ms':>10} "
          f"{'ratio':>6} {'min':>6} {'max':>6}  best peer")
    for threads in map(int, args.threads.split(",")):
        for shape in args.shapes.split(","):
            rounds = [run_round(args, shape, threads, i % 2 == 1) for i in range(args.rounds)]
            print_row(shape, threads, rounds)


if __name__ == "__main__":
    main()
