"""What the lists say of what they show."""

import pytest

from penstock.nsqadmin.metrics_store import Figures
from penstock.nsqadmin.views import ChannelRow


@pytest.mark.parametrize(
    ("channel", "published", "finished", "outlook"),
    [
        (ChannelRow("t", "c"), 5, 5, "up to date"),
        (ChannelRow("t", "c", depth=600, clients=1), 5, 15, "caught up in 1m"),
        (ChannelRow("t", "c", depth=600, clients=1), 15, 5, "falling behind"),
        (ChannelRow("t", "c", depth=600, clients=1), 5, 5, "standing"),
        (ChannelRow("t", "c", depth=10**9, clients=1), 0, 1, "standing"),
        (ChannelRow("t", "c", depth=600), 0, 0, "no consumer"),
        (ChannelRow("t", "c", depth=600, mode="commit"), 0, 10, "caught up in 1m"),
        (ChannelRow("t", "c", depth=600, is_paused=True), 5, 0, "paused"),
    ],
)
def test_a_channel_has_an_outlook(
    channel: ChannelRow, published: float, finished: float, outlook: str
) -> None:
    channel.figures = Figures(published=published, finished=finished)

    assert outlook == channel.outlook
