"""What runs leave behind, looked at; nothing here needs JAX."""

from typing import TYPE_CHECKING

from trellis.doors import door

if TYPE_CHECKING:
    from trellis.reports.ledger import (
        Curve as Curve,
        RunLedger as RunLedger,
        find_runs as find_runs,
        read_run as read_run,
    )
    from trellis.reports.page import build_page as build_page
else:
    __getattr__, __dir__, __all__ = door(__name__)
