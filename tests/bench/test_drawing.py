"""Pictures that can be read: ticks that differ, numbers beside their bars; and the files that they become."""

from pathlib import Path

import pytest

from octavo.bench import drawing
from octavo.config import ConfigError


@pytest.mark.parametrize("top", [0.018, 0.3, 1.0, 1.6])
def test_ticks_in_percent_differ(top: float) -> None:
    picture, (axes,) = drawing.sheet(1)
    drawing.frame(axes, title="t", x="x", y="y", percent=True)
    axes.set_ylim(0, top)
    picture.canvas.draw()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(set(labels)) == len(labels) > 3 and all(len(label) <= 5 and label.endswith("%") for label in labels)


def test_the_number_of_a_bar_is_at_its_end() -> None:
    picture, (axes,) = drawing.sheet(1)
    drawing.bars(axes, ["up", "down"], [drawing.Bars("", [0.02, -0.002], drawing.INK)], numbers="{:.1%}")
    picture.canvas.draw()
    up, down = axes.patches
    above, below = (number.get_window_extent() for number in axes.texts)
    assert above.y0 >= up.get_window_extent().y1 and below.y1 <= down.get_window_extent().y0


@pytest.mark.parametrize("suffix", drawing.SUFFIXES)
def test_a_picture_is_the_same_bytes_each_time(suffix: str, tmp_path: Path) -> None:
    files = []
    for name in "ab":
        picture, (axes,) = drawing.sheet(1)
        drawing.frame(axes, title="t", x="x", y="y")
        drawing.curves(axes, [drawing.Curve("c", [0, 1], [0, 2], drawing.INK)], top=1)  # cut off: files name what cuts
        files.append(tmp_path / f"{name}{suffix}")
        drawing.write(picture, files[-1])
    assert files[0].read_bytes() == files[1].read_bytes()


def test_other_files_are_refused_by_their_flag() -> None:
    drawing.check_file(None, "--plot")
    drawing.check_file("x.png", "--plot")
    with pytest.raises(ConfigError, match=r"--plot x\.pdf: the file's name must end in \.svg or \.png"):
        drawing.check_file("x.pdf", "--plot")
