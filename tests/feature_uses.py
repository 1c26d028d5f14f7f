"""Whether what a record of a feature tells to type exists.

Every span of code in a `use` is one of: a command line, a Python expression over this package or the
published names (`compat`), a field of a configuration as `[section] key = value` or as a key of a text file,
a word of `./start`, a function of the C library, or a variable of the environment.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from importlib import import_module
from typing import Any

from conftest import REPOSITORY
from tpuflow.cli.application import application
from tpuflow.config.registry import registry

PACKAGES = {"tpuflow", "tpu_framework", "pytpu", "tpu_compiler", "onnx_direct", "dnn_quant", "tpu_tlm_is"}
FIELD = re.compile(r"^(?:\[{1,2}(?P<section>\w+)\]{1,2} )?(?P<key>[a-z_0-9]+)(?: = .+)?$")


def spans(use: str) -> list[str]:
    """The spans of code in a text."""
    return re.findall(r"`([^`]+)`", use)


def problem(span: str) -> str:
    """What is wrong with a span of code; empty where all it names exists."""
    first = span.split(maxsplit=1)[0]
    if first == "tpuflow":
        return command_problem(shlex.split(span)[1:])
    if first == "./start":
        text = (REPOSITORY / "start").read_text(encoding="utf-8")
        return "" if f"\n  {span.split()[1]} " in text else "not a word of ./start"
    if span.startswith("python -m "):
        return "" if _resolved(span.split()[2]) is not None else "not a module"
    if re.match(r"tpuflow_\w+", span):
        text = (REPOSITORY / "crates" / "capi" / "include" / "tpuflow.h").read_text(encoding="utf-8")
        name = span.partition("(")[0]
        return "" if re.search(rf"\b{name}\(", text) else "not in the header for C"
    if re.fullmatch(r"[A-Z][A-Z_]+", span):
        sources = [*REPOSITORY.glob("python/**/*.py"), *REPOSITORY.glob("crates/**/*.rs")]
        known = any(f'"{span}"' in path.read_text(encoding="utf-8") for path in sources)
        return "" if known else "not a variable the sources read"
    if re.match(r"\w+", span) and span.partition(".")[0] in PACKAGES:
        return expression_problem(span)
    return field_problem(span)


def command_problem(words: list[str]) -> str:
    """What is wrong with the words behind `tpuflow`."""
    command: Any = application()
    for word in words:
        options = {name for each in command.params for name in each.opts + each.secondary_opts}
        options |= {"--help", "-h"}
        if word.startswith("-") and len(word) > 1:
            if word.partition("=")[0] not in options and not (word[:2] == "-O" and "-O" in options):
                return f"no option {word}"
        elif hasattr(command, "commands"):
            if word not in list(command.commands) and not word[0].isdigit():
                return f"no command {word}"
            command = command.commands[word] if not word[0].isdigit() else command
    return ""


def field_problem(span: str) -> str:
    """What is wrong with a field, `[section] key = value` or the key of a text file alone."""
    match = FIELD.match(span)
    if match is None:
        return "neither a command nor an expression nor a field"
    section, key = match["section"], match["key"]
    for entry in registry():
        if key in {entry.name, *entry.also} and section in {None, entry.section, "layers"}:
            return (
                "" if section != "layers" or entry.per_layer or entry.section == "layers" else "not by layer"
            )
    if section is None and key in published_keys():
        return ""
    return f"no field {key} in {section or 'any section'}"


def published_keys() -> set[str]:
    """Keys of other tools, which stand for several fields: those the documentation lists."""
    text = (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")
    return {"quant_type", *re.findall(r"^- `(\w+)`$", text, re.MULTILINE)}


def expression_problem(span: str) -> str:
    """What is wrong with a Python expression: names that are not there, keywords a function lacks."""
    for node in ast.walk(ast.parse(span, mode="eval")):
        if isinstance(node, ast.Attribute) and _rooted(node) and _resolved(ast.unparse(node)) is None:
            return f"no {ast.unparse(node)}"
        if isinstance(node, ast.Call) and _rooted(node.func):
            function = _resolved(ast.unparse(node.func))
            if function is not None and (lacking := _lacking(function, [each.arg for each in node.keywords])):
                return f"{ast.unparse(node.func)} takes no {', '.join(lacking)}"
    return ""


def _rooted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in PACKAGES


def _resolved(dotted: str) -> Any:
    """The object of a dotted name, None where there is none."""
    first, *rest = dotted.split(".")
    found: Any = import_module(first)
    path = first
    for name in rest:
        path += f".{name}"
        try:
            found = getattr(found, name)
        except AttributeError:
            try:
                found = import_module(path)
            except ImportError:
                return None
    return found


def _lacking(function: Any, keywords: list[str | None]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # what the extension defines need not state a signature
        return []
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return []
    return [name for name in keywords if name is not None and name not in parameters]


def settings(use: str) -> list[str]:
    """Text files with the fields of a use that hold for the whole network, one for each alternative."""
    files: list[dict[str, str]] = [{}]
    for span in spans(use):
        match = FIELD.match(span)
        if match is None or " = " not in span or match["section"] == "layers":
            continue
        key = next(
            (each.name for each in registry() if match["key"] in {each.name, *each.also}), match["key"]
        )
        if key in files[-1]:
            files.append({})
        files[-1][key] = f"{match['section']}.{span.partition('] ')[2]}" if match["section"] else span
    return ["[Common]\n" + "\n".join(lines.values()) for lines in files]
