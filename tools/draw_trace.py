#!/usr/bin/env python3
"""Draws the timeline that `rankplan profile --trace` writes, and says how much of it is gaps.

    rankplan profile MODEL texts.txt --threads 2 --trace trace.json
    tools/draw_trace.py trace.json trace.png [--from US] [--length US]

A track per worker, a colour per kind of step, white where a worker waited. Without --from and --length the
picture shows the middle run or so of the file. Needs Python alone; any browser's Perfetto shows the same file
in full.
"""
import argparse
import json
import struct
import zlib

COLOURS = {"gemm": (70, 110, 180), "qgemm": (40, 140, 140), "attention": (220, 140, 40), "layer_norm": (110, 170, 80),
           "quantize": (190, 90, 160), "embed": (150, 120, 90), "pool": (200, 60, 60), "l2_norm": (120, 120, 120)}
WIDTH, TRACK, MARGIN = 1600, 70, 20


def png(path, rows):
    """rows: one bytes object of RGB triples per line."""
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) +
                chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r for r in rows))) + chunk(b"IEND", b""))


def tracks_of(events):
    tracks = {}
    for e in events:
        if e["ph"] == "X":
            tracks.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"], e["cat"]))
    return {worker: sorted(t) for worker, t in sorted(tracks.items())}


def draw(tracks, start, length, path):
    blank = bytes([255, 255, 255])
    rows = [blank * WIDTH for _ in range(MARGIN)]
    for track in tracks.values():
        line = [blank] * WIDTH
        for begin, end, kind in track:
            first = max(0, int((begin - start) / length * WIDTH))
            last = min(WIDTH - 1, int((end - start) / length * WIDTH))
            colour = COLOURS.get(kind, (90, 90, 90))
            edge = bytes(c * 2 // 3 for c in colour)
            for x in range(first, last + 1):
                line[x] = edge if x == first else bytes(colour)
        rows += [b"".join(line)] * TRACK + [blank * WIDTH] * MARGIN
    png(path, rows)


def say_gaps(tracks):
    begin = min(t[0][0] for t in tracks.values())
    end = max(t[-1][1] for t in tracks.values())
    for worker, track in tracks.items():
        busy = sum(e - b for b, e, _ in track)
        gaps = sorted((b2 - e1 for (_, e1, _), (b2, _, _) in zip(track, track[1:])), reverse=True)
        print(f"worker {worker}: busy {100 * busy / (end - begin):.1f} % of {(end - begin) / 1e3:.1f} ms, "
              f"{len(track)} pieces of work; gaps: median {gaps[len(gaps) // 2]:.2f} us, "
              f"one in a hundred over {gaps[len(gaps) // 100]:.1f}, largest {gaps[0]:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("png")
    parser.add_argument("--from", dest="start", type=float, help="us from the start of the file")
    parser.add_argument("--length", type=float, help="us")
    args = parser.parse_args()
    with open(args.trace, encoding="utf-8") as f:
        tracks = tracks_of(json.load(f)["traceEvents"])
    if not tracks:
        raise SystemExit(f"{args.trace}: no events")
    end = max(t[-1][1] for t in tracks.values())
    length = args.length or end / 20
    start = args.start if args.start is not None else end / 2
    draw(tracks, start, length, args.png)
    say_gaps(tracks)


if __name__ == "__main__":
    main()
