"""Files to examples to batches."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.data.feed import Feed as Feed
    from trellis.data.feed import build_feed as build_feed
    from trellis.data.replay import Replay as Replay
    from trellis.data.stream import ExampleStream as ExampleStream
    from trellis.data.stream import Stream as Stream

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "ExampleStream": "stream",
        "Feed": "feed",
        "Replay": "replay",
        "Stream": "stream",
        "build_feed": "feed",
    },
)
