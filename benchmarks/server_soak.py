"""Load a server with a crowd that is unequal and partly leaves.

``draftproof serve`` runs as a process of its own. A client sends requests of mixed sizes,
policies and drafters, many at a time; some hang up at a random moment, some have a
deadline that they miss. Reported: time to the first token and time per token as clients
saw them, throughput, whether counters only grew, whether pages, places and memory came
back, and of some finished requests whether the text is that of the same request alone.

On a real model two passes of other shapes may round apart, so texts are compared in the
deterministic mode unless ``--no-deterministic`` says otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
from measure import report

POLICIES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.0, "frequency_penalty": 0.5, "presence_penalty": 0.3},
]
SPECULATION: list[dict[str, Any] | None] = [
    None,
    {"num_speculative_tokens": 0},
    {"method": "ngram", "num_speculative_tokens": 7},
    {"method": "suffix", "rejection_sample_method": "coupled"},
    {"method": "ngram", "rejection_sample_method": "block"},
]
TOPICS = ["a river", "an old mill", "the sea at night", "bread", "a long winter", "two brothers"]


def main() -> None:
    """Run the crowd and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rows", type=int, default=32, help="completions that run at once")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--check", type=int, default=25, help="texts compared with solo runs")
    parser.add_argument("--no-deterministic", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    process, url = start(args)
    try:
        figures = asyncio.run(run(args, url, process.pid))
    finally:
        process.terminate()
        figures_exit = process.wait(60)
    figures["exit_code"] = figures_exit
    show(figures)
    report(figures, args.output)


def start(args: argparse.Namespace) -> tuple[subprocess.Popen[str], str]:
    """Start a server and wait for its address."""
    words = [sys.executable, "-m", "draftproof", "serve", "-m", args.model, "--port", "0"]
    words += ["--speculative-config", '{"method": "suffix"}', "--max-rows", str(args.rows)]
    if not args.no_deterministic:
        words.append("--deterministic")
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None  # narrows the type
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            # Its log goes on into the pipe, and must not fill it.
            subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
            return process, found[0]
    raise SystemExit("the server ended before it listened")


def make_plan(index: int, coin: random.Random, most: int) -> dict[str, Any]:
    """Return a request, and when its client leaves."""
    topic = coin.choice(TOPICS)
    body: dict[str, Any] = {
        "prompt": f"Here is a text about {topic}. " * coin.randint(1, 12) + f"Number {index}:",
        "max_tokens": coin.choice([1, most // 6, most // 2, most]),
        "seed": index,
        "stream": True,
        **coin.choice(POLICIES),
    }
    spec = coin.choice(SPECULATION)
    if spec is not None:
        body["speculative_config"] = spec
    leave_s = None
    fate = coin.random()
    if fate < 0.15:
        leave_s = coin.random() * 8
    elif fate < 0.2:
        body["timeout_s"] = 0.05 + coin.random() * 4
    return {"body": body, "leave_s": leave_s}


async def ask(client: httpx.AsyncClient, plan: dict[str, Any]) -> dict[str, Any]:
    """Send one request and time it."""
    seen: dict[str, Any] = {"times": [], "tokens": [], "text": "", "end": "left"}
    began = perf_counter()
    try:
        async with (
            asyncio.timeout(plan["leave_s"]),
            client.stream("POST", "/v1/completions", json=plan["body"]) as answer,
        ):
            seen["status"] = answer.status_code
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    seen["end"] = "done"
                    break
                take(json.loads(line[6:]), seen, perf_counter() - began)
    except TimeoutError:
        return seen
    if answer.status_code != 200:
        seen["end"] = f"status {answer.status_code}"
    return seen


def take(event: dict[str, Any], seen: dict[str, Any], now: float) -> None:
    """Note what an event brought."""
    if "error" in event:
        seen["end"] = event["error"]["code"]
        return
    for choice in event["choices"]:
        seen["text"] += choice["text"]
        count = len(choice["token_ids"])
        if count:
            seen["times"].append(now)
            seen["tokens"].append(count)


async def run(args: argparse.Namespace, url: str, pid: int) -> dict[str, Any]:
    """Send the crowd, then some of it alone."""
    coin = random.Random(args.seed)
    plans = [make_plan(index, coin, args.max_tokens) for index in range(args.requests)]
    for plan in plans:
        plan["body"] |= {"model": args.model, "return_token_ids": True}
    limits = httpx.Limits(max_connections=2 * args.at_once)
    places, reading = asyncio.Semaphore(args.at_once), asyncio.Lock()
    falls: list[str] = []
    counters: dict[str, float] = {}
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def one(index: int, plan: dict[str, Any]) -> dict[str, Any]:
            async with places:
                seen = await ask(client, plan)
            if index % 10 == 0:
                async with reading:  # else the later answer may hold the earlier numbers
                    now = read_counters((await client.get("/metrics")).text)
                    falls.extend(name for name, value in counters.items() if value > now[name])
                    counters.update(now)
            return seen

        warm = {"model": args.model, "prompt": "Warm up.", "max_tokens": 8}
        await client.post("/v1/completions", json=warm)
        before = resident_bytes(pid)
        began = perf_counter()
        half = len(plans) // 2
        seen = await asyncio.gather(*(one(i, plan) for i, plan in enumerate(plans[:half])))
        between = resident_bytes(pid)
        seen += await asyncio.gather(*(one(i, plan) for i, plan in enumerate(plans[half:], half)))
        elapsed = perf_counter() - began
        while (await client.get("/health")).json()["num_in_flight"]:
            await asyncio.sleep(0.05)
        after = resident_bytes(pid)
        pages = (await client.get("/v1/models")).json()["data"][0]["draftproof"]["kv_cache"]
        texts = await alone(client, plans, seen, args.check)
    return {
        "what": "requests of mixed sizes, policies and drafters, many at a time, some leaving",
        "requests": args.requests,
        "at_once": args.at_once,
        "max_rows": args.rows,
        "deterministic": not args.no_deterministic,
        "seconds": elapsed,
        "ends": count_ends(seen),
        "tokens_per_second": sum(sum(one["tokens"]) for one in seen) / elapsed,
        "first_token_s": percentiles([one["times"][0] for one in seen if one["times"]]),
        "token_s": percentiles([gap for one in seen for gap in gaps(one)]),
        "counters_that_fell": sorted(set(falls)),
        "pages": pages["pages"] | {"sequences": pages["num_sequences"]},
        "resident_mb": {
            name: value / 1e6
            for name, value in (("before", before), ("half", between), ("after", after))
        },
        "texts": texts,
    }


async def alone(
    client: httpx.AsyncClient, plans: list[dict[str, Any]], seen: list[dict[str, Any]], number: int
) -> dict[str, Any]:
    """Send some finished requests again, one at a time, and compare texts."""
    finished = [index for index, one in enumerate(seen) if one["end"] == "done"]
    chosen = finished[:: max(1, len(finished) // max(1, number))][:number]
    other = [
        index
        for index in chosen
        if (await ask(client, plans[index] | {"leave_s": None}))["text"] != seen[index]["text"]
    ]
    return {"compared": len(chosen), "different": other}


def gaps(one: dict[str, Any]) -> list[float]:
    """Return the time per token behind the first event: a gap is shared by its tokens."""
    found: list[float] = []
    for before, now, count in zip(one["times"], one["times"][1:], one["tokens"][1:], strict=False):
        found += [(now - before) / count] * count
    return found


def count_ends(seen: list[dict[str, Any]]) -> dict[str, int]:
    """Count how requests ended."""
    ends = [one["end"] for one in seen]
    return {end: ends.count(end) for end in sorted(set(ends))}


def percentiles(values: list[float]) -> dict[str, float]:
    """Return the percentiles that people ask for."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "n": len(values)}


def read_counters(text: str) -> dict[str, float]:
    """Return every sample of ``/metrics`` that may only grow."""
    samples: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        kind = name.partition("{")[0]
        if not line.startswith("#") and kind.endswith(("_total", "_count", "_bucket", "_sum")):
            samples[name] = float(value)
    return samples


def resident_bytes(pid: int) -> int:
    """Return the resident size of a process (Linux)."""
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


def show(figures: dict[str, Any]) -> None:
    """Print what people want to know."""
    print(f"{figures['requests']} requests, {figures['at_once']} at once: {figures['ends']}")
    print(f"{figures['tokens_per_second']:.0f} tokens/s over {figures['seconds']:.0f} s")
    for name, text in (("first_token_s", "first token"), ("token_s", "per token")):
        cut = figures[name]
        print(f"{text}: p50 {cut['p50']:.3f} s, p90 {cut['p90']:.3f} s, p99 {cut['p99']:.3f} s")
    print(f"pages afterwards: {figures['pages']}; resident MB: {figures['resident_mb']}")
    print(
        f"counters that fell: {figures['counters_that_fell'] or 'none'}; texts {figures['texts']}"
    )


if __name__ == "__main__":
    main()
