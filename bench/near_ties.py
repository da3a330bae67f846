#!/usr/bin/env python3
"""Whether answers that differ between two runs of a server part where two tokens were almost equally likely.

  near_ties.py --base-url http://127.0.0.1:8000 --prompts prompts.txt --out drafts.json
  near_ties.py --base-url http://127.0.0.1:8000 --prompts prompts.txt --out plain.json \\
               --body '{"speculative": {"enabled": false}}'
  near_ties.py --compare plain.json drafts.json

Prompts go to /v1/completions as they are: give a chat model text with its template applied, and enough of it that
answers are long. A prompt is a line of the file: a JSON string, a JSON array of token ids, or text.

A gap is the log-probability of a position's likeliest token less that of the next. Of an answer only the first
difference counts: what comes behind it answers another text.
"""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def wait_until_ready(base: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            with OPENER.open(base + "/health", timeout=5):
                return
        except OSError as error:  # Also answers other than 2xx.
            if time.monotonic() > end:
                sys.exit(f"{base}/health: not ready after {seconds:g} s: {error}")
        time.sleep(0.25)


def read_prompts(path: str) -> list:
    """A prompt a line: a JSON string, a JSON array of token ids, or else the line itself."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) if line[0] in '"[' else line for line in lines if line.strip()]


def ask(base: str, prompt: str | list, args: argparse.Namespace) -> dict:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": args.max_tokens, "logprobs": 2} | args.body
    post = urllib.request.Request(base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with OPENER.open(post, timeout=300) as response:
            answer = json.load(response)
        choice = answer["choices"][0]
        found = choice["logprobs"]
        # Likeliest first; the chosen token is among them, last if it is not among so many likeliest.
        top = [sorted((of or {}).items(), key=lambda entry: -entry[1]) for of in found["top_logprobs"]]
        return {"prompt": prompt, "text": choice["text"], "tokens": found["tokens"],
                "logprobs": found["token_logprobs"], "top": top, "usage": answer["usage"]}
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        said = error.read(300) if isinstance(error, urllib.error.HTTPError) else b""
        return {"prompt": prompt, "error": f"{error!r} {said.decode(errors='replace')}"}


def record(args: argparse.Namespace) -> None:
    base = args.base_url.rstrip("/").removesuffix("/v1")
    prompts = read_prompts(args.prompts)
    if not prompts:
        sys.exit(f"{args.prompts} has no prompts")
    wanted = [prompts[at % len(prompts)] for at in range(args.requests)]
    wait_until_ready(base, 60)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
        answers = list(pool.map(lambda prompt: ask(base, prompt, args), wanted))
    run = {"options": vars(args), "seconds": round(time.monotonic() - began, 2), "answers": answers}
    pathlib.Path(args.out).write_text(json.dumps(run), encoding="utf-8")
    print(describe(args.out, run))
    errors = [answer["error"] for answer in answers if "error" in answer]
    if errors:
        sys.exit(f"{len(errors)} requests failed, the first: {errors[0]}")


def describe(name: str, run: dict) -> str:
    good = [answer for answer in run["answers"] if "error" not in answer]
    details = [answer["usage"].get("completion_tokens_details") or {} for answer in good]
    accepted, rejected = (sum(of.get(f"{kind}_prediction_tokens") or 0 for of in details)
                          for kind in ("accepted", "rejected"))
    return (f"{name}: {len(good)} of {len(run['answers'])} answered, {sum(len(of['tokens']) for of in good)} tokens, "
            f"{run['options']['concurrency']} at once, {run['seconds']} s; "
            f"{'with ' + json.dumps(run['options']['body']) + '; ' if run['options']['body'] else ''}"
            f"drafts: {accepted} accepted, {rejected} rejected")


def gap(answer: dict, at: int) -> float | None:
    """None where there is no second token: beyond the end, or two tokens of one name."""
    top = answer["top"][at] if at < len(answer["top"]) else []
    return top[0][1] - top[1][1] if len(top) > 1 else None


def quantiles(name: str, values: list) -> str:
    values = sorted(value for value in values if value is not None)
    at = [values[round((len(values) - 1) * part)] for part in (0, 0.5, 0.9, 1) if values]
    return f"  {name:<34}{len(values):>7}" + "".join(f"{value:>11.6f}" for value in at)


def compare(plain_name: str, other_name: str, listed: int) -> None:
    runs = [json.loads(pathlib.Path(name).read_text(encoding="utf-8")) for name in (plain_name, other_name)]
    print(describe(plain_name, runs[0]), describe(other_name, runs[1]), sep="\n")
    pairs = [(at, *pair) for at, pair in enumerate(zip(*(run["answers"] for run in runs))) if
             not any("error" in answer for answer in pair)]
    asked = [(run["options"]["max_tokens"], [answer["prompt"] for answer in run["answers"]]) for run in runs]
    if asked[0] != asked[1]:
        sys.exit("the two runs were asked otherwise: --requests, --max-tokens and --prompts are to be the same")
    found, shifts, unlikely = [], [], 0
    for number, plain, other in pairs:
        tokens, others = plain["tokens"], other["tokens"]
        shared = min(len(tokens), len(others))
        at = next((at for at in range(shared) if tokens[at] != others[at]), shared)
        both = ((gap(plain, position), gap(other, position)) for position in range(at))
        shifts += [abs(one - two) for one, two in both if one is not None and two is not None]
        unlikely += sum(1 for top, own in zip(plain["top"], plain["logprobs"]) if top and own < top[0][1])
        if tokens != others:
            token, instead = (of[at] if at < len(of) else None for of in (tokens, others))
            rest = [name for name, _ in plain["top"][at] if name != token] if at < len(tokens) else []
            found.append((gap(plain, at), gap(other, at), number, at, token, instead, instead in rest[:1]))
    found.sort(key=lambda one: (one[0] is not None, -(one[0] or 0)))  # Without a gap first, then the widest.
    if not found:
        print(f"no answer differs: {len(pairs)} are the same")
        return
    gaps, every = [one[0] for one in found], [gap(of, at) for _, of, _ in pairs for at in range(len(of["tokens"]))]
    print(f"answers that differ: {len(found)} of {len(pairs)}; the other token is the plain run's second in "
          f"{sum(one[-1] for one in found)} of {len(found)}")
    for one, two, number, at, token, instead, second in found[:listed]:
        size, there = ("none" if value is None else f"{value:.6f}" for value in (one, two))
        print(f"  request {number:>3} position {at:>3}: gap {size} (other run {there}), {token!r} -> {instead!r}, "
              f"{'its second' if second else 'NOT ITS SECOND'}")
    if len(found) > listed:
        print(f"  and {len(found) - listed} with gaps that are no larger (--list {len(found)})")
    print(f"  {'gap, best to second':<34}{'count':>7}{'min':>11}{'median':>11}{'90 %':>11}{'max':>11}")
    print(quantiles("plain run, first differences", gaps))
    print(quantiles("plain run, all positions", every))
    print(quantiles("its change between the two runs", shifts) + "  (where both read the same text)")
    known, gaps = ([one for one in of if one is not None] for of in (every, gaps))
    if gaps:
        widest = max(gaps)
        near = sum(one <= widest for one in known)
        print(f"gaps of at most {widest:.6f}, the widest of the differences: {near} of {len(known)} positions of the "
              f"plain run ({100 * near / len(known):.3f} %)")
    if unlikely or len(known) < len(every):
        print(f"of the plain run: {unlikely} positions whose token is not the likeliest, "
              f"{len(every) - len(known)} without a second")


def fields(text: str) -> dict:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("a JSON object is wanted")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="the server to ask")
    parser.add_argument("--prompts", help="file of prompts, one a line")
    parser.add_argument("--out", help="file to write the answers to; what it held is lost")
    parser.add_argument("--requests", type=int, default=256, help="prompts are taken in turn (default: 256)")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at once (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer (default: 96)")
    parser.add_argument("--body", type=fields, default={}, metavar="JSON", help="more fields of each request")
    parser.add_argument("--compare", nargs=2, metavar=("PLAIN", "OTHER"), help="two files of answers to compare")
    parser.add_argument("--list", type=int, default=12, help="differing answers to print, the widest gaps first (default: 12)")
    args = parser.parse_args()
    try:
        if args.compare:
            compare(*args.compare, args.list)
        elif args.base_url and args.out and args.prompts:
            record(args)
        else:
            parser.error("give --base-url, --prompts and --out, or --compare")
    except FileNotFoundError as error:
        sys.exit(f"{error.filename}: no such file")


if __name__ == "__main__":
    main()
