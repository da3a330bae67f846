"""The parts of a quarter of an hour, the most valuable first: what runs, for how long at the most."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """A part of `lockstep bench device`, over one shape."""

    name: str
    shape: str
    # Deadline of one run, seconds. A run that keeps it is much shorter.
    seconds: float
    options: list[str] = field(default_factory=list)
    # Runs of each program; programs alternate.
    rounds: int = 1
    # Whether it compares the program under SWITCHES, instead of programs.
    switched: bool = False


# Ways in which kernels overlap, by variables of the environment, the most valuable first.
SWITCHES = {
    "no overlap": {"LOCKSTEP_CUDA_PDL": "0"},
    "prefetch": {"LOCKSTEP_CUDA_PREFETCH": "1"},
    "half trigger": {"LOCKSTEP_CUDA_PDL_TRIGGER": "half"},
    "prefetch, half trigger": {"LOCKSTEP_CUDA_PREFETCH": "1", "LOCKSTEP_CUDA_PDL_TRIGGER": "half"},
}


# What decides first: is a guess about the device right, and do steps become faster?
PARTS = [
    Part("latency,bits", "8b", 40),
    Part("elementwise", "8b", 60),
    Part("steps,prompt", "8b", 60, ["--decode", "1x1024,64x1024", "--prefill", "8192"], rounds=2),
    Part("steps,prompt", "1b", 40, ["--decode", "1x1024,32x1024", "--prefill", "1024"], rounds=2),
    Part("steps", "8b", 40, ["--decode", "1x1024,64x1024"], rounds=2, switched=True),
    Part("steps", "1b", 30, ["--decode", "1x1024,32x1024"], rounds=2, switched=True),
    Part("attention", "8b", 60),
    Part("choosing", "8b", 30),
    Part("products", "8b", 60),
    Part("experts", "moe", 60),
    Part("experts", "oss", 60),
    Part("recurrent", "delta", 60),
    Part("elementwise", "1b", 40, ["--elementwise", "1,32"]),
    Part("attention", "1b", 30, ["--attention", "1x1024,64x1024", "--prefill", "1024"]),
]

# The same on a GPU that does not exist, whose times mean nothing: small enough for a host.
TINY = ["--peak", "64", "--working-set", "1", "--repeat", "1", "--steps", "1"]
TINY_SIZES = ["--rows", "1,80", "--elementwise", "1,80", "--attention", "2x20", "--sampled", "2"]
REHEARSAL = [
    Part(part.name, tiny, part.seconds, ["--decode", "1x8,2x8", "--prefill", "16", *TINY_SIZES, *TINY], 1, part.switched)
    for part in PARTS
    for tiny in [{"8b": "tiny", "moe": "tiny-moe"}.get(part.shape)]
    if tiny
]


def command(program: str, folder: str, part: Part, lines: str, kept: str, repeat: int) -> list[str]:
    """The command line of a part."""
    model = ["--model-path", folder, "--load-format", "dummy", "--device", "cuda", "--weight-cache", kept]
    tiny = part.shape.startswith("tiny")
    return [
        program,
        *("bench", "device", "--only", part.name, "--lines", lines, *model),
        *([] if tiny else ["--repeat", str(repeat)]),
        *part.options,
    ]


def whole(program: str, folder: str, part: Part, output: str, repeat: int) -> list[str]:
    """The command line for a program of before there were parts: everything at once."""
    model = ["--model-path", folder, "--load-format", "dummy", "--device", "cuda"]
    sizes = [
        word
        for option, value in zip(part.options[::2], part.options[1::2])
        if option in ("--decode", "--prefill", "--attention")
        for word in (option, value)
    ]
    return [program, "bench", "device", *model, "--repeat", str(repeat), *sizes, "--output", output]
