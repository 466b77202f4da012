"""Pictures that can be read: ticks that differ, numbers beside their bars."""

import pytest

from octavo.bench.paper import drawing


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
