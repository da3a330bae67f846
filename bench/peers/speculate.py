#!/usr/bin/env python3
"""Speculation with a draft model beside none, in Lockstep and in llama.cpp: the same pair of models and prompts.

  python speculate.py --model models/1b-family --lockstep target/release/lockstep --llama-bin llama.cpp/bin --out spec

In each repetition `lockstep bench speculate` answers all prompts without drafts and with every depth, then llama-server
does, started anew for each. Answers are greedy, one at a time, and end where the model ends them. Tokens/s are those
after an answer's first, so that prompts are not in them. OUT.json keeps every sample, OUT.md the medians.
Run it on a quiet machine, with a Python that has `tokenizers`.
"""

import argparse
import datetime
import json
import pathlib
import sys
import tempfile
import time
import urllib.request

import children
import servers
import tables
from children import THREADS, Failed
from servers import Server

HERE = pathlib.Path(__file__).resolve().parent
PROMPTS = HERE.parent / "src" / "speculate" / "prompts.json"
sys.path.append(str(HERE.parents[1] / "models" / "training"))
from chatml import render  # noqa: E402

# Tokens of the longest prompt and answer, and room for drafts.
CONTEXT = 1024


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=pathlib.Path, required=True, help="folder of a family made by models.py")
    add("--lockstep", type=pathlib.Path, default=pathlib.Path("target/release/lockstep"), help="the release binary")
    add("--llama-bin", type=pathlib.Path, required=True, help="folder of llama-server")
    add("--steps", nargs="+", type=int, default=[3, 5, 7], help="drafted tokens to try (default: 3 5 7)")
    add("--domains", nargs="+", help="only these (default: all 20)")
    add("--per-domain", type=int, default=2, help="prompts of each domain (default: 2)")
    add("--max-tokens", type=int, default=64, help="tokens of an answer at the most (default: 64)")
    add("--repeat", type=int, default=5, help="repetitions (default: 5)")
    add("--timeout", type=float, default=3600, help="seconds that one program may take (default: 3600)")
    add("--out", type=pathlib.Path, required=True, help="results go to OUT.json and OUT.md")
    return parser.parse_args()


def chosen(a: argparse.Namespace) -> list[dict]:
    """Domain and token ids of the prompts, in the file's order."""
    from tokenizers import Tokenizer  # Here, so that the tests need no packages.

    tokenizer = Tokenizer.from_file(str(a.model / "hf" / "tokenizer.json"))
    taken: dict[str, list[dict]] = {}
    for prompt in json.loads(PROMPTS.read_text())["prompts"]:
        domain = prompt["domain"]
        of_domain = taken.setdefault(domain, [])
        if len(of_domain) < a.per_domain and (not a.domains or domain in a.domains):
            ids = tokenizer.encode(render(prompt["messages"], True), add_special_tokens=False).ids
            of_domain.append({"domain": domain, "prompt_ids": ids})
    found = [prompt for of_domain in taken.values() for prompt in of_domain]
    if not found:
        raise SystemExit(f"no prompt of {a.domains}")
    return found


def lockstep(a: argparse.Namespace, prompts: list[dict]) -> list[dict]:
    """`lockstep bench speculate`, one rank of two threads: samples by domain and depth."""
    with tempfile.TemporaryDirectory() as folder:
        file, output = pathlib.Path(folder) / "prompts.json", pathlib.Path(folder) / "report.json"
        file.write_text(json.dumps({"prompts": prompts}))
        command = [a.lockstep, "bench", "speculate", "--device", "cpu", "--model-path", a.model / "hf", "--tp-size", 1]
        command += ["--threads-per-rank", THREADS, "--algorithms", f"standalone={a.model / 'hf-draft'}"]
        command += ["--steps", ",".join(map(str, a.steps)), "--prompts", file, "--per-domain", a.per_domain]
        command += ["--max-tokens", a.max_tokens, "--repeat", 1, "--batch", 1, "--output", output]
        children.run(command, a.timeout)
        report = json.loads(output.read_text())
    different = report["notes"]["answers that differ from those without speculation"]
    if different:
        raise Failed(f"{different} answers of Lockstep differ from those without speculation")
    return [
        {"engine": "lockstep", "domain": row["domain"], "steps": row["steps"], "rate": row["tokens/s"], "raw": row}
        for row in report["rows"]
    ]


def llamacpp(a: argparse.Namespace, prompts: list[dict], steps: int) -> list[dict]:
    """llama-server with drafts of `steps` tokens, or without for 0: samples by domain."""
    port = servers.free_port()
    command = [a.llama_bin / "llama-server", "-m", a.model / "bf16.gguf", "--host", "127.0.0.1", "--port", port]
    command += ["-t", THREADS, "-tb", THREADS, "-np", 1, "-c", CONTEXT, "-b", 2048, "-ub", 512]
    if steps:
        command += ["--spec-type", "draft-simple", "--spec-draft-model", a.model / "draft-bf16.gguf"]
        command += ["--spec-draft-n-max", steps]
    sums: dict[str, dict] = {}
    with servers.running(Server(command), port):
        complete(port, prompts[0]["prompt_ids"], a.max_tokens, a.timeout)
        for prompt in prompts:
            answer = complete(port, prompt["prompt_ids"], a.max_tokens, a.timeout)
            timings = answer["timings"]
            if steps and not timings.get("draft_n"):
                raise Failed("llama-server drafted nothing")
            empty = {"tokens": 0, "ms": 0.0, "drafted": 0, "accepted": 0, "texts": []}
            domain = sums.setdefault(prompt["domain"], empty)
            # The first token is counted, but comes with the prompt.
            domain["tokens"] += timings["predicted_n"] - 1
            domain["ms"] += timings["predicted_ms"]
            domain["drafted"] += timings.get("draft_n", 0)
            domain["accepted"] += timings.get("draft_n_accepted", 0)
            domain["texts"].append(answer.get("tokens", []))
    return [
        {"engine": "llamacpp", "domain": name, "steps": steps, "rate": 1e3 * sum_["tokens"] / sum_["ms"], "raw": sum_}
        for name, sum_ in sums.items()
        if sum_["tokens"] > 0
    ]


def complete(port: int, ids: list[int], max_tokens: int, timeout: float) -> dict:
    """A greedy answer of llama-server, nothing cached."""
    body = {"prompt": ids, "n_predict": max_tokens, "temperature": 0, "cache_prompt": False, "return_tokens": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def rates(samples: list[dict], engine: str, domain: str, steps: int) -> dict[int, float]:
    """Tokens/s by repetition."""
    wanted = (engine, domain, steps)
    return {s["repetition"]: s["rate"] for s in samples if (s["engine"], s["domain"], s["steps"]) == wanted}


def markdown(a: argparse.Namespace, record: dict) -> str:
    """By domain: each engine without drafts and at every depth, its own ratio, and Lockstep's to llama.cpp's best."""
    samples = record["samples"]
    head = ["domain", "engine", "no drafts", *(f"{steps} drafts" for steps in a.steps)]
    head += [f"{steps} / none" for steps in a.steps] + ["Lockstep's best / llama.cpp's best"]
    lines = [f"## {record['title']}", ""]
    lines += [
        f"Tokens/s, median (least–most) of {a.repeat}; {THREADS} threads; greedy, one request at a time, "
        f"{a.per_domain} prompts a domain, at most {a.max_tokens} tokens each. Ratios are medians of those within a "
        "repetition; a best is the best median, drafts or none.",
        "",
        tables.row(head),
        tables.row(["---"] * len(head)),
    ]
    for domain in dict.fromkeys(sample["domain"] for sample in samples):
        best = {}
        for engine in ("lockstep", "llamacpp"):
            by = {steps: rates(samples, engine, domain, steps) for steps in (0, *a.steps)}
            best[engine] = max(by.values(), key=lambda found: tables.median(found.values()) if found else 0)
            cells = [domain, engine, *(tables.span(list(found.values()), 1) for found in by.values())]
            cells += [tables.span(tables.ratios(by[steps], by[0]), 2) for steps in a.steps]
            both = engine == "llamacpp"
            cells.append(tables.span(tables.ratios(best["lockstep"], best["llamacpp"]), 2) if both else "")
            lines.append(tables.row(cells))
    lines += ["", *(f"Failed: {failure['what']}." for failure in record["failures"])]
    return "\n".join(lines).rstrip() + "\n"


def write(a: argparse.Namespace, record: dict) -> None:
    """Both files, as far as the run has come."""
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.with_name(a.out.name + ".json").write_text(json.dumps(record, indent=1) + "\n")
    a.out.with_name(a.out.name + ".md").write_text(markdown(a, record))


def main() -> None:
    """Run all programs, repetition after repetition."""
    a = arguments()
    needed = [a.model / name for name in ("hf", "hf-draft", "bf16.gguf", "draft-bf16.gguf")]
    for path in [*needed, a.lockstep, a.llama_bin]:
        if not path.exists():
            raise SystemExit(f"{path} is not there")
    prompts = chosen(a)
    record = {
        "title": f"Speculation with a draft model, {a.model.name}",
        "command": sys.argv,
        "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": children.machine(),
        "samples": [],
        "failures": [],
    }
    programs = [("lockstep", lambda: lockstep(a, prompts))]
    for steps in (0, *a.steps):
        programs.append((f"llamacpp, {steps} drafts", lambda steps=steps: llamacpp(a, prompts, steps)))
    start, before = time.monotonic(), children.memory_available()
    for repetition in range(a.repeat):
        for what, program in programs[:: -1 if repetition % 2 else 1]:
            children.settle(before)
            key = {"repetition": repetition, "others_busy_cores": children.others_busy()}
            try:
                found = program()
            except Failed as problem:
                record["failures"].append(key | {"what": what, "problem": str(problem)})
                result = f"failed: {problem}"
            else:
                record["samples"] += [key | sample for sample in found]
                result = f"{len(found)} samples"
            minutes = (time.monotonic() - start) / 60
            print(f"[repetition {repetition + 1} of {a.repeat}, {minutes:.1f} min] {what}: {result}", flush=True)
            write(a, record)
    print(markdown(a, record))


if __name__ == "__main__":
    main()
