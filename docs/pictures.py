"""Makes the pictures of the documentation again: `./start pictures` (needs chromium and pillow)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).resolve().parent
DIGITS = DOCS.parent / "examples" / "digits"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1200, 3400
PICTURES = {"report": (0, 860), "report-time": (1500, 2300)}
"""By name: from which pixel of the page to which."""


def tpuflow(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "tpuflow", *words], cwd=DIGITS, check=True, stdout=subprocess.DEVNULL
    )


def main() -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, page = str(folder / "digits.tpu"), folder / "page.html"
        tpuflow("build", "digits.onnx", "-O5", "--calib", "calibration.npz", "-o", program)
        tpuflow("report", program, "-o", str(page))
        shot = folder / "page.png"
        subprocess.run(
            [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--virtual-time-budget=2000", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}",
                page.as_uri(),
            ],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120,
        )  # fmt: skip
        for picture, (top, bottom) in PICTURES.items():
            target = DOCS / "images" / f"{picture}.png"
            target.parent.mkdir(exist_ok=True)
            part = Image.open(shot).convert("RGB").crop((0, top, WIDTH, bottom))
            part.quantize(64).save(target, optimize=True)
            print(f"{target.relative_to(DOCS.parent)}: {target.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
