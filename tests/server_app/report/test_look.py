"""How the page looks: contrast, and a picture by a browser."""

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from server_app.report.style import STYLE
from tests.server_app.report.ledgers import RECORDS
from tests.server_app.report.pages import report


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_have_enough_contrast_on_light_and_dark() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
    for scheme in (light, dark):
        colour = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for name in ("text", "muted", "good", "warn", "bad", "calm"):
            assert contrast(colour[name], colour["page"]) >= 4.5, name
            assert contrast(colour[name], colour["card"]) >= 4.5, name
        for line in (f"s{index}" for index in range(8)):
            assert contrast(colour[line], colour["page"]) >= 3, line


def bytes_of(png: Path) -> tuple[int, int, bytes]:
    """Width, height and the unpacked scan lines of a PNG."""
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    packed, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    return width, height, zlib.decompress(packed)


@pytest.mark.browser
def test_chromium_shows_the_page(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    assert browser, "this test needs Chromium: apt-get install -y chromium"
    report(tmp_path, RECORDS)
    picture = tmp_path / "report.png"
    subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1160,2400",
            f"--screenshot={picture}",
            (tmp_path / "report.html").as_uri(),
        ],
        check=True,
        timeout=120,
        capture_output=True,
    )
    width, height, lines = bytes_of(picture)
    assert (width, height) == (1160, 2400)
    assert len(set(lines)) > 100  # a blank page has hardly more than one value
