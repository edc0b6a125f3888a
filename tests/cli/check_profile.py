"""Checks what `rankplan profile` writes: a trace (FILE WORKERS), or its JSON (--profile FILE)."""

import json
import sys


def check_trace(path, workers):
    with open(path, encoding="utf-8") as f:
        trace = json.load(f)
    events = trace["traceEvents"]
    names = [e for e in events if e["ph"] == "M"]
    work = [e for e in events if e["ph"] == "X"]
    assert trace["displayTimeUnit"] == "ns"
    assert [e["tid"] for e in names] == list(range(workers)), "a track per worker"
    assert len(work) > 100 and len(names) + len(work) == len(events)
    last = {}
    for e in work:
        assert e["pid"] == 1 and 0 <= e["tid"] < workers and e["name"] and e["cat"]
        assert e["dur"] >= 0 and e["args"]["rows"] > 0 and e["args"]["flops"] >= 0
        assert e["ts"] >= last.get(e["tid"], 0) - 1e-3, "events of a track follow each other"
        last[e["tid"]] = e["ts"] + e["dur"]
    assert any(e["name"] == "layers.0.attn.core" for e in work)


def check_profile(path):
    with open(path, encoding="utf-8") as f:
        profile = json.load(f)
    steps = sum(s["us_per_run"] for s in profile["steps"])
    kinds = sum(k["us_per_run"] for k in profile["kinds"])
    assert abs(steps - kinds) < 1e-3 * steps
    assert profile["workers"] == 1 and profile["runs"] >= 20
    assert 0.97 * profile["us_per_run"] <= steps <= profile["us_per_run"], "steps add up to the run"
    assert profile["steps"] == sorted(profile["steps"], key=lambda s: -s["us_per_run"])


if sys.argv[1] == "--profile":
    check_profile(sys.argv[2])
else:
    check_trace(sys.argv[1], int(sys.argv[2]))
