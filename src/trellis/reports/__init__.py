"""What runs leave behind, looked at; nothing here needs JAX."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.reports.curve import Curve as Curve, Point as Point
    from trellis.reports.ledger import (
        EVENTS as EVENTS,
        RunLedger as RunLedger,
        RunReader as RunReader,
        find_runs as find_runs,
        read_run as read_run,
    )
    from trellis.reports.live import PORT as PORT, LiveReport as LiveReport
    from trellis.reports.page import build_content as build_content, build_page as build_page
else:
    __getattr__, __dir__, __all__ = door(__name__)
