"""Read and write safetensors files with numpy alone, bfloat16 included, one tensor at a time.

A file is an eight-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, and the tensors'
bytes (https://huggingface.co/docs/safetensors). Values cross this module as float32, int64 or bool arrays.
"""

import json
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

ITEM_SIZE = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1}
STORED_AS = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "I64": np.int64, "BOOL": np.bool_}


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 (nearest, ties to even), as the upper halves of the words in uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(halves: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 halves."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of a file; floating-point ones as float32."""
    data = np.memmap(path, np.uint8, "r")
    header_length = int(data[:8].view("<u8")[0])
    header = json.loads(data[8 : 8 + header_length].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_length + offset for offset in entry["data_offsets"])
        stored = np.frombuffer(data[begin:end].tobytes(), STORED_AS[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            stored = from_bf16(stored)
        tensors[name] = stored.astype(np.float32) if entry["dtype"] == "F16" else stored
    return tensors


@dataclass
class Lazy:
    """A tensor that is made when it is written: its shape, its type on disk, and how to make it."""

    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]
    dtype: str = "BF16"

    def size(self) -> int:
        return int(np.prod(self.shape))


def write(path: pathlib.Path, tensors: Mapping[str, Lazy]) -> None:
    """Write tensors in order, making each only when its turn comes, so that memory holds one at a time."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.size() * ITEM_SIZE[tensor.dtype]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, tensor in tensors.items():
            values = tensor.make()
            assert values.shape == tuple(tensor.shape), (name, values.shape, tensor.shape)
            stored = to_bf16(values) if tensor.dtype == "BF16" else values.astype(STORED_AS[tensor.dtype])
            np.ascontiguousarray(stored).tofile(file)
