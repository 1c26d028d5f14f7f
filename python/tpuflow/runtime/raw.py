"""Raw mode: programs that know cache words only, and the codec that turns arrays into such words and back.

    codec = convert_to_raw("digits.tpu", "digits.raw.tpu")
    words = codec.encode({"image": image})                 # packing: scale, cast, pad, Tensor2Words
    ... run digits.raw.tpu on the words ...
    outputs = codec.decode(words_of_outputs)               # unpacking: Words2Tensor, unmask, scale, cast

Words are flat arrays `[words, cache_word_length]` of uint8, as they lie in the device's memory. Packing and
running can so happen in different places: whoever feeds the device needs the codec, the device the program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpuflow.errors import FileError, ProgramError, SampleError, TpuflowError
from tpuflow.io.files import read_text, write_text
from tpuflow.partitioning import Partitioned
from tpuflow.partitioning.storage import load_program
from tpuflow.runtime.core import Packer
from tpuflow.runtime.tensors import descriptions, ordered_arrays

__all__ = ["Codec", "convert_to_raw"]

Array = NDArray[Any]
Words = NDArray[np.uint8]
FORMAT = 1


class Codec:
    """Packs what a program takes and unpacks what it gives.

    Attributes:
        inputs: What it takes, in the model's order.
        outputs: What it gives.
        cache_word_length: Bytes of a cache word.
    """

    def __init__(self, metadata: str) -> None:
        content = json.loads(metadata)
        # Only ports matter, and the word; the rest of a program's description may be long.
        content |= {"layers": [], "allocations": []}
        self._metadata = json.dumps(content, separators=(",", ":"))
        self._packer = Packer(self._metadata)
        self.inputs, self.outputs = descriptions(self._metadata)
        self.cache_word_length: int = content["machine"]["cache"]["word_bytes"]

    def encode(self, arrays: Mapping[str, Array]) -> dict[str, Words]:
        """Cache words of every input, under the names a raw program has for them: `input0`, `input1`, ...

        Args:
            arrays: By the model's names, in the model's shapes and types.

        Raises:
            SampleError: Arrays that do not fit.
        """
        ordered = ordered_arrays(arrays, self.inputs, "input")
        return {
            f"input{number}": self._packer.pack(number, array).reshape(-1, self.cache_word_length)
            for number, array in enumerate(ordered)
        }

    def decode(self, words: Mapping[str, Words]) -> dict[str, Array]:
        """The model's arrays in the cache words a raw program gave: `output0`, `output1`, ...

        Raises:
            SampleError: Words that do not fit.
        """
        names = {f"output{number}": tensor for number, tensor in enumerate(self.outputs)}
        if words.keys() != names.keys():
            raise SampleError(
                f"the words of {', '.join(names)} are needed, there are {', '.join(words) or 'none'}"
            )
        found = {}
        for number, (name, tensor) in enumerate(names.items()):
            array = np.asarray(words[name])
            wanted = (tensor.words, tensor.cache_word_length)
            if array.dtype != np.uint8 or array.shape != wanted:
                raise SampleError(
                    f"{name}: {array.dtype} {list(array.shape)}, its words are uint8 {list(wanted)}"
                )
            unpacked = self._packer.unpack(number, array)
            found[tensor.name] = unpacked.view(tensor.dtype).reshape(tensor.shape)
        return found

    def save(self, path: str | Path) -> None:
        """Writes the codec as JSON, for where the program is not.

        Raises:
            FileError: The file cannot be written.
        """
        write_text(path, json.dumps({"format": FORMAT, "metadata": self._metadata}) + "\n")

    @staticmethod
    def load(path: str | Path) -> Codec:
        """Reads what `save` wrote.

        Raises:
            FileError: It cannot be read, or is no codec.
        """
        text = read_text(path, FileError)
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise FileError(f"{path}: format {content['format']} of a codec, this build reads {FORMAT}")
            return Codec(content["metadata"])
        except TpuflowError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise FileError(f"{path}: not a codec, or cut short") from None


def convert_to_raw(program: str | Path, raw: str | Path) -> Codec:
    """Writes a program without its metadata: it takes and gives cache words.

    Args:
        program: The program's file; one that is whole on the device.
        raw: Where the raw program goes.

    Returns:
        The codec for it.

    Raises:
        FileError: A file cannot be read or written.
        ProgramError: The program is raw already, or in segments of device and host.
    """
    loaded = load_program(Path(program))
    if isinstance(loaded, Partitioned):
        raise ProgramError(
            f"{program}: parts of it run on the host, which takes arrays, not words: cut the model so that "
            "all of it runs on the device (--cut-outputs)"
        )
    if loaded.is_raw:
        raise ProgramError(f"{program}: is raw already")
    loaded.to_raw().save(raw)
    return Codec(loaded.metadata())
