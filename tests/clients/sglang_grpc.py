#!/usr/bin/env python3
"""Drives sglang.grpc.scheduler.SglangScheduler with a client generated from its proto.

    pip install grpcio grpcio-tools
    cargo run --release -- serve --port 8000 --sglang-grpc-port 8002
    python tests/clients/sglang_grpc.py [--target 127.0.0.1:8002] [--protos DIR]

Against a server with keys, `--api-key` and `--admin-key` say them. The Python code is generated at run time, from `proto/protos/sglang/` or from
another copy of the protos, such as those inside the wheel `smg-grpc-proto`.
"""

import argparse
import hashlib
import importlib
import io
import json
import pathlib
import sys
import tempfile
import zipfile

import grpc
from grpc_tools import protoc

PROTOS = pathlib.Path(__file__).resolve().parents[2] / "proto" / "protos" / "sglang"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def generate(folder, into):
    """Makes Python modules of the two protos."""
    include = pathlib.Path(protoc.__file__).parent / "_proto"
    names = ["common.proto", "sglang_scheduler.proto"]
    code = protoc.main(
        ["protoc", f"-I{folder}", f"-I{include}", f"--python_out={into}", f"--grpc_python_out={into}"]
        + names
    )
    assert code == 0, f"protoc ended with {code}"
    sys.path.insert(0, str(into))
    modules = ("common_pb2", "sglang_scheduler_pb2", "sglang_scheduler_pb2_grpc")
    return [importlib.import_module(name) for name in modules]


class Call(grpc.ClientCallDetails):
    def __init__(self, details, metadata):
        self.method, self.timeout = details.method, details.timeout
        self.credentials, self.metadata = details.credentials, metadata


class ShowKey(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Shows a key with every call, or none."""

    def __init__(self, key):
        self.metadata = [("authorization", f"Bearer {key}")] if key else None

    def intercept_unary_unary(self, go_on, details, request):
        return go_on(Call(details, self.metadata), request)

    intercept_unary_stream = intercept_unary_unary


class Client:
    def __init__(self, target, modules, key, admin_key):
        self.common, self.pb, stubs = modules
        channel = grpc.insecure_channel(target)

        def stub(key):
            return stubs.SglangSchedulerStub(grpc.intercept_channel(channel, ShowKey(key)))

        self.stub, self.operator, self.stranger = stub(key), stub(admin_key or key), stub(None)
        self.timeout = 60

    def request(self, request_id, ids, tokens, **params):
        """As the gateway sends it: all parameters set, seeds and stops not."""
        defaults = dict(
            temperature=0, top_p=1, top_k=-1, repetition_penalty=1, n=1, skip_special_tokens=True
        )
        params = self.pb.SamplingParams(**{**defaults, **params})
        if tokens is not None:
            params.max_new_tokens = tokens
        return self.pb.GenerateRequest(
            request_id=request_id,
            tokenized=self.pb.TokenizedInput(input_ids=ids),
            sampling_params=params,
            logprob_start_len=-1,
            stream=True,
        )

    def generate(self, request):
        return self.stub.Generate(request, timeout=self.timeout)


def refused(code, call):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, f"{error.code()}: {error.details()}"
        return error.details()
    raise AssertionError(f"{code} was expected")


@check
def health(client):
    answer = client.stub.HealthCheck(client.pb.HealthCheckRequest(), timeout=client.timeout)
    assert answer.healthy, answer.message


@check
def model_info(client):
    info = client.stub.GetModelInfo(client.pb.GetModelInfoRequest(), timeout=client.timeout)
    assert info.served_model_name and info.is_generation and not info.supports_vision
    assert info.max_context_length > 0 and info.vocab_size > 0 and len(info.eos_token_ids) > 0


@check
def server_info(client):
    info = client.stub.GetServerInfo(client.pb.GetServerInfoRequest(), timeout=client.timeout)
    for key in ("tp_size", "context_length", "max_total_tokens", "served_model_name"):
        assert key in info.server_args.fields, key


@check
def loads(client):
    request = client.pb.GetLoadsRequest(include=["core", "disagg", "queues", "memory"])
    answer = client.stub.GetLoads(request, timeout=client.timeout)
    (load,) = answer.loads
    assert load.memory.weight_gb > 0 and load.memory.kv_cache_gb > 0, load


@check
def tokenizer(client):
    chunks = list(client.stub.GetTokenizer(client.common.GetTokenizerRequest(), timeout=client.timeout))
    archive = b"".join(chunk.data for chunk in chunks)
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        names = files.namelist()
        assert "tokenizer.json" in names, names
        json.loads(files.read("tokenizer.json"))
        assert all(not name.startswith("/") and ".." not in name for name in names)


@check
def stream(client):
    ids, chunks, ends = [5, 6, 7, 8], [], []
    request = client.request("py-stream", ids, 12, ignore_eos=True)
    for message in client.generate(request):
        assert message.request_id == "py-stream"
        kind = message.WhichOneof("response")
        (chunks if kind == "chunk" else ends).append(getattr(message, kind))
    streamed = [token for chunk in chunks for token in chunk.token_ids]
    assert len(ends) == 1 and list(ends[0].output_ids)[: len(streamed)] == streamed
    assert len(ends[0].output_ids) == 12 and ends[0].finish_reason == "length"
    assert [chunk.completion_tokens for chunk in chunks] == sorted(c.completion_tokens for c in chunks)
    assert ends[0].prompt_tokens == 4 and ends[0].completion_tokens == 12


@check
def whole(client):
    request = client.request("py-whole", [5, 6, 7, 8], 12, ignore_eos=True)
    request.stream = False
    (message,) = client.generate(request)
    streamed = client.request("py-streamed", [5, 6, 7, 8], 12, ignore_eos=True)
    *_, last = client.generate(streamed)
    assert message.complete.output_ids == last.complete.output_ids, "greedy is greedy"


@check
def choices_and_logprobs(client):
    request = client.request("py-n", [5, 6, 7], 6, n=2, temperature=1, ignore_eos=True)
    request.return_logprob, request.top_logprobs_num = True, 3
    ends = [m.complete for m in client.generate(request) if m.HasField("complete")]
    assert sorted(end.index for end in ends) == [0, 1]
    for end in ends:
        assert list(end.output_logprobs.token_ids) == list(end.output_ids)
        assert all(value <= 0 for value in end.output_logprobs.token_logprobs)
        assert len(end.output_logprobs.top_logprobs) == 6


@check
def cached_prompt(client):
    ids = [index % 50 + 5 for index in range(200)]
    for request_id in ("py-cold", "py-warm"):
        *_, last = client.generate(client.request(request_id, ids, 4, ignore_eos=True))
    assert last.complete.cached_tokens > 0


@check
def stop_token(client):
    *_, plain = client.generate(client.request("py-plain", [5, 6, 7], 6, ignore_eos=True))
    third = plain.complete.output_ids[2]
    request = client.request("py-stop", [5, 6, 7], 6, ignore_eos=True, stop_token_ids=[third])
    *_, last = client.generate(request)
    assert last.complete.finish_reason == "stop"
    assert last.complete.matched_token_id == third


@check
def abort(client):
    call = client.generate(client.request("py-abort", [5, 6, 7], 1500, ignore_eos=True))
    next(call)
    abort = client.pb.AbortRequest(request_id="py-abort", reason="Stream dropped")
    assert client.stub.Abort(abort, timeout=client.timeout).success
    messages = []
    try:
        messages.extend(call)
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED)
    else:
        assert messages[-1].complete.finish_reason == "abort"
    # Unknown and finished ids do no harm.
    client.stub.Abort(abort, timeout=client.timeout)


@check
def leaving(client):
    call = client.generate(client.request("py-leave", [5, 6, 7], 1500, ignore_eos=True))
    next(call)
    call.cancel()
    health(client)


@check
def errors(client):
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    bad = [
        client.request("py-bad-1", [], 5),
        client.request("py-bad-2", [10_000_000], 5),
        client.request("py-bad-3", [5], 10_000_000),
        client.request("py-bad-4", [5], 5, temperature=-1),
        client.request("py-bad-5", [5], 5, ebnf_grammar="root ::= a"),
    ]
    for request in bad:
        refused(invalid, lambda: list(client.generate(request)))
    unimplemented = grpc.StatusCode.UNIMPLEMENTED
    refused(unimplemented, lambda: client.stub.Embed(client.pb.EmbedRequest(), timeout=client.timeout))


@check
def kv_events(client):
    call = client.stub.SubscribeKvEvents(
        client.common.SubscribeKvEventsRequest(), timeout=client.timeout
    )
    ids = [index % 70 + 9 for index in range(150)]
    list(client.generate(client.request("py-events", ids, 4, ignore_eos=True)))
    batch = next(call)
    assert batch.events or batch.HasField("snapshot") or batch.HasField("load")
    call.cancel()


@check
def flush(client):
    request = client.common.FlushCacheRequest(timeout_s=10)
    assert client.operator.FlushCache(request, timeout=client.timeout).success


def strangers(client):
    """On a server with a key."""
    unknown = grpc.StatusCode.UNAUTHENTICATED
    generate = client.request("py-stranger", [5, 6, 7], 4)
    refused(unknown, lambda: list(client.stranger.Generate(generate, timeout=client.timeout)))
    info = client.pb.GetModelInfoRequest()
    refused(unknown, lambda: client.stranger.GetModelInfo(info, timeout=client.timeout))


def clients_are_no_operators(client):
    """On a server with a key for operators."""
    request = client.common.FlushCacheRequest(timeout_s=10)
    refused(
        grpc.StatusCode.UNAUTHENTICATED,
        lambda: client.stub.FlushCache(request, timeout=client.timeout),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="127.0.0.1:8002")
    parser.add_argument("--protos", type=pathlib.Path, default=PROTOS)
    parser.add_argument("--api-key")
    parser.add_argument("--admin-key", help="the operators' key [default: --api-key]")
    arguments = parser.parse_args()
    checks = list(CHECKS)
    if arguments.api_key:
        checks.append(strangers)
    if arguments.admin_key:
        checks.append(clients_are_no_operators)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        modules = generate(arguments.protos, folder)
        client = Client(arguments.target, modules, arguments.api_key, arguments.admin_key)
        print(f"grpcio {grpc.__version__} at {arguments.target}, protos from {arguments.protos}")
        for function in checks:
            try:
                function(client)
                print(f"ok      {function.__name__}")
            except Exception as error:
                failed += 1
                print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
