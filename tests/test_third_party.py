"""What is distributed names the licence of everything it contains."""

from __future__ import annotations

import tomllib

import pytest

from conftest import REPOSITORY
from third_party import TARGET, shipped


def test_the_licenses_of_every_shipped_crate_are_listed() -> None:
    listed = [line for line in TARGET.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    expected = [f"- {crate.name} {crate.version}: {crate.license}" for crate in shipped()]
    assert listed[: len(expected)] == expected, "run ./start licenses"


def test_every_shipped_crate_states_a_license() -> None:
    assert not [crate.name for crate in shipped() if not crate.license]


def test_the_wheel_takes_the_license_files_along() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"LICENSE", TARGET.name} <= set(project["license-files"])
    assert project["authors"] == [{"name": "The tpuflow developers"}]
    assert "urls" not in project, "only addresses that exist"


@pytest.mark.parametrize(
    "crate", sorted(path.parent.name for path in (REPOSITORY / "crates").glob("*/Cargo.toml"))
)
def test_every_crate_introduces_itself(crate: str) -> None:
    folder = REPOSITORY / "crates" / crate
    package = tomllib.loads((folder / "Cargo.toml").read_text(encoding="utf-8"))["package"]
    assert package["readme"] == "README.md"
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# tpuflow-{crate}\n")
