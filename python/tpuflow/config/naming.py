"""The section `output`: where what a build makes is written, and under which names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import field_validator

from tpuflow.config.section import Aliases, Section

__all__ = ["OutputConfig"]


class OutputConfig(Section):
    """Names of the files a build writes; `--output` overrides them all."""

    folder: Annotated[str, Aliases("output_dir")] = ""
    """Folder of the files, made where it is missing; unset: the current one."""
    model_name: str = ""
    """Name of the network in names of files; unset: that of its own file."""
    program: Annotated[str, Aliases("out_ir_name")] = ""
    """Name of the program, `.tpu` or without suffix. Unset: MODEL_o where `model_name` is set, else
    MODEL_bBATCH_oLEVEL_MACHINE."""

    layer_settings: Literal["changes", "values"] = "changes"
    """The file of settings by layer: what differs from the network's, in own names; or every value that
    holds, under the names and in the convention of scales that text files go with."""
    dump: bool = False
    """A build writes every tensor of a sample, as floats and as codes."""
    dump_dir: str = "dump"
    """Folder of these, within `folder`."""

    @field_validator("folder", "model_name", "program")
    @classmethod
    def _is_one_line(cls, text: str) -> str:
        if any(ord(each) < 32 or 127 <= ord(each) < 160 for each in text):
            raise ValueError(f"{text!a} has control characters, which no name may have")
        return text

    @field_validator("model_name", "program")
    @classmethod
    def _is_a_name(cls, text: str) -> str:
        if text != text.strip() or "/" in text or "\\" in text or text.startswith("."):
            raise ValueError(f'"{text}" is not a file name: folders go to "folder"')
        return text

    @field_validator("program")
    @classmethod
    def _is_a_program(cls, text: str) -> str:
        if text.endswith((".tpuq", ".json", ".onnx")):
            raise ValueError(f'"{text}" has the suffix of another kind of file, name the program .tpu')
        return text

    def path(self, otherwise: str) -> str:
        """The program's file, relative to where the build runs.

        Args:
            otherwise: Its name, without suffix, where nothing is said of it.
        """
        name = self.program or (f"{self.model_name}_o" if self.model_name else otherwise)
        name = name if name.endswith(".tpu") else f"{name}.tpu"
        return f"{self.folder}/{name}" if self.folder else name
