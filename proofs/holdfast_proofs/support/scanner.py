"""A printed page as a poor scan sees it, read by programs that nobody here wrote."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from PIL import Image, ImageDraw, ImageFilter

from holdfast.identity.paper import pages

MM_PER_INCH = 25.4


@dataclass(frozen=True)
class Box:
    """Where the code is on the page, its margin included, in millimetres."""

    x: float
    y: float
    size: float


def printed(make: Callable[[], bytes]) -> tuple[bytes, Box]:
    """A page, and where its code is."""
    boxes: list[Box] = []
    page = pages.PdfPage
    original = page.code

    def code(self: Any, text: str, **at: Any) -> float:
        boxes.append(Box(at["x"], at["y"], at["size"]))
        return original(self, text, **at)

    with patch.object(page, "code", code):
        made = make()
    return made, boxes[0]


def rendered(pdf: bytes, *, dpi: int) -> Image.Image:
    done = subprocess.run(
        ["pdftoppm", "-r", str(dpi), "-png", "-singlefile", "-"], input=pdf, capture_output=True, check=True
    )
    return Image.open(io.BytesIO(done.stdout))


def worn(page: Image.Image, box: Box, *, dpi: int, place: tuple[float, float]) -> Image.Image:
    """Grey paper and weak ink, a tenth of the code black, turned by three degrees, blurred."""
    image, scale = page.convert("L"), dpi / MM_PER_INCH
    side = box.size * scale
    left, top = box.x * scale + side * place[0], box.y * scale + side * place[1]
    blot = side * 0.1**0.5
    ImageDraw.Draw(image).rectangle((left, top, left + blot, top + blot), fill=0)
    image = levels(image, [70 + value * 130 // 255 for value in range(256)])
    image = image.rotate(3, resample=Image.Resampling.BICUBIC, expand=True, fillcolor=200)
    return image.filter(ImageFilter.GaussianBlur(0.8 * dpi / 100))


def levels(image: Image.Image, table: list[int]) -> Image.Image:
    """The image with each grey replaced by that of the table."""
    return image.point(table)  # pyright: ignore[reportUnknownMemberType]


def dark_box(page: Image.Image) -> tuple[int, int, int, int]:
    """The smallest box around everything that is printed."""
    dark = levels(page.convert("L"), [255 if value < 128 else 0 for value in range(256)])
    return dark.getbbox() or (0, 0, 0, 0)


def scanned(image: Image.Image) -> str:
    raw = io.BytesIO()
    image.save(raw, "PNG")
    done = subprocess.run(
        ["zbarimg", "--nodbus", "-q", "--raw", "-Sdisable", "-Sqrcode.enable", "-"],
        input=raw.getvalue(),
        capture_output=True,
        check=False,
    )
    return done.stdout.decode().strip()
