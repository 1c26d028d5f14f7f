"""Files are complete or absent, links and devices keep what they are, and nothing is left behind."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tpuflow.errors import FileError
from tpuflow.io.files import publication, replace_atomically, temporary_folder, write_json, write_text
from tpuflow.io.files import temporary as temporary_files

LEFT = ".tpuflow-1-0123456789abcdef.part"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def _first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test sees folders as a new process does."""
    monkeypatch.setattr(temporary_files, "_cleaned", set())


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "one").symlink_to("deep/target.json")
    (tmp_path / "two").symlink_to("one")
    for content in ("first", "second"):
        write_text(tmp_path / "two", content)
        assert (tmp_path / "deep" / "target.json").read_text() == content
    assert (tmp_path / "one").is_symlink()
    assert (tmp_path / "two").is_symlink()
    assert names(tmp_path / "deep") == ["target.json"]
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FileError, match="loop: cannot be written: too many levels"):
        write_text(tmp_path / "loop", "x")


def test_a_device_is_written_into(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="/dev/full: cannot be written: no space left"):
        write_text("/dev/full", "x")
    (tmp_path / "link").symlink_to("/dev/full")
    with pytest.raises(FileError, match="no space left"):
        write_json(tmp_path / "link", [1])
    write_text("/dev/null", "x")
    for device in ("/dev/full", "/dev/null"):
        assert stat.S_ISCHR(Path(device).stat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join()
    assert found == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("piped", [True, False])
def test_standard_output_is_written_into_after_what_was_printed(
    tmp_path: Path, name: str, *, piped: bool
) -> None:
    code = f"""print("before")
from tpuflow.io.files import write_text
write_text({name!r}, "text\\n")
print("after")"""
    target = tmp_path / "out"
    with target.open("w") as stream:
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, stdout=subprocess.PIPE if piped else stream, text=True, check=True)
    assert (done.stdout if piped else target.read_text()) == "before\ntext\nafter\n"


@pytest.mark.parametrize("name", [".", "", "/", "..", "folder", "a\0b", "missing/x", "file/x"])
def test_what_cannot_be_a_file_is_an_error(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="cannot be written: "):
        write_text(name, "x")
    assert names(tmp_path) == ["file", "folder"]


def test_long_names_and_long_suffixes_are_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "x." + "s" * 253, "é" * 127):
        write_text(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"
    assert len(names(tmp_path)) == 3


def test_permissions_are_those_of_the_file_replaced(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("old")
    secret.chmod(0o600)
    write_text(secret, "new")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_what_dead_writers_left_is_removed_and_nothing_of_live_ones(tmp_path: Path) -> None:
    (tmp_path / LEFT).write_text("half")
    (tmp_path / f"{LEFT}.json").write_text("half")
    (tmp_path / LEFT.replace("-1-", "-2-")).mkdir()
    (tmp_path / LEFT.replace("-1-", "-2-") / "held").write_text("half")
    (tmp_path / ".tpuflow-notes.part").write_text("a user's")
    target = tmp_path.parent / f"{tmp_path.name}.victim"
    target.write_text("precious")
    (tmp_path / LEFT.replace("-1-", "-3-")).symlink_to(target)
    live = tmp_path / f"{LEFT}.live"
    with live.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_text(tmp_path / "file", "x")
        left = [LEFT.replace("-1-", "-3-"), live.name, ".tpuflow-notes.part", "file"]
        assert names(tmp_path) == sorted(left)
    assert target.read_text() == "precious"


def test_a_killed_writer_leaves_what_the_next_process_removes(tmp_path: Path) -> None:
    code = f"""import os, signal, pathlib
from tpuflow.io.files import replace_atomically, temporary_folder
with replace_atomically({str(tmp_path / "file")!r}) as beside, temporary_folder({str(tmp_path)!r}):
    beside.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)"""
    (tmp_path / "file").write_text("old")
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(names(tmp_path)) == 3
    assert (tmp_path / "file").read_text() == "old"
    write_text(tmp_path / "other", "x")
    assert names(tmp_path) == ["file", "other"]


def test_a_failing_writer_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    def failing() -> None:
        with replace_atomically(tmp_path / "file") as beside:
            beside.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_library_may_replace_the_temporary_file(tmp_path: Path) -> None:
    with replace_atomically(tmp_path / "file") as beside:
        (tmp_path / "own").write_text("by rename")
        (tmp_path / "own").replace(beside)
    assert (tmp_path / "file").read_text() == "by rename"
    assert names(tmp_path) == ["file"]


def test_files_of_a_publication_appear_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def failing() -> None:
        with publication() as group:
            group.stage(tmp_path / "a").write_text("new")
            write_text(group.stage(tmp_path / "b"), "new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert names(tmp_path) == ["a"]
    with publication() as group:
        group.stage(tmp_path / "a").write_text("new")
        write_text(group.stage(tmp_path / "b"), "new")
        assert (tmp_path / "a").read_text() == "old"
        digests = group.digests()
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "new"
    assert digests["a"] == digests["b"]
    with publication() as group:
        write_text(group.stage("/dev/null"), "new")
        write_text(group.stage(tmp_path / "c"), "new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert names(tmp_path) == ["a", "b", "c"]


def test_writers_and_readers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path, errors = tmp_path / "file.json", list[BaseException]()
    write_json(path, list(range(2000)))

    def work(number: int) -> None:
        try:
            for _ in range(30):
                write_json(path, [number] * 2000)
                assert len(set(json.loads(path.read_text())[1:])) in (1, 1999)
        except BaseException as error:  # noqa: BLE001 - of a thread, told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert names(tmp_path) == ["file.json"]


def test_a_temporary_folder_is_private_and_goes(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "x").write_text("x")
    assert names(tmp_path) == []
