"""What is loaded on first use is loaded whole."""

import signal
import sys
from pathlib import Path

import pytest

from trellis.doors import import_whole


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where modules are found."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupt_is_followed_when_a_module_is_there(folder: Path) -> None:
    (folder / "inner_part.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    text = "from trellis.doors import import_whole\nimport_whole('inner_part')\nREST = 'is there'\n"
    (folder / "outer_part.py").write_text(text)
    with pytest.raises(KeyboardInterrupt):
        import_whole("outer_part")
    assert sys.modules["outer_part"].REST == "is there"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("heeds_interrupts")
def test_a_second_interrupt_is_followed_at_once(folder: Path) -> None:
    text = "import signal\nsignal.raise_signal(signal.SIGINT)\nsignal.raise_signal(signal.SIGINT)\n"
    (folder / "endless_part.py").write_text(text)
    with pytest.raises(KeyboardInterrupt):
        import_whole("endless_part")
    assert "endless_part" not in sys.modules
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
