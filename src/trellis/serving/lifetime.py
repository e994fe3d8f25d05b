"""How long a served model can be read, and what is told of that."""

from datetime import date
from importlib.metadata import version

from trellis.serving.manifest import Manifest

DAYS = 180
"""For how long JAX promises that its next versions read what one has exported."""
_DAYS_BEFORE = 30
"""How long before the end it is told."""


def lifetime_notice(manifest: Manifest, *, place: str, today: date | None = None, jaxlib: str = "") -> str:
    """What to tell whoever loads a model that JAX may soon not read, or no longer; empty if there is nothing to tell.

    The JAX that has written a model reads it for ever: only a newer one may refuse it.

    Args:
        place: The directory to refresh.
        today: The default is the day on which this is asked.
        jaxlib: The version that reads it; the default is the one that is here.
    """
    there, here = manifest.packages.get("jaxlib"), jaxlib or version("jaxlib")
    if not manifest.written or there == here:
        return ""
    age = ((today or date.today()) - date.fromisoformat(manifest.written)).days
    if age < DAYS - _DAYS_BEFORE:
        return ""
    promise = f"reads what is up to {DAYS} days old"
    tense = f"for {DAYS - age} more days" if age < DAYS else "and no longer promises to read it"
    promised = f"promises to read it {tense}" if age < DAYS else f"{promise}, {tense}"
    return (
        f"`{place}` was written on {manifest.written} by JAX {there}; JAX {here}, which is here, {promised}. "
        f"Make it new: {refresh_command(place)}"
    )


def written_line(manifest: Manifest) -> str:
    """When, and by what, a model was written."""
    packages = ", ".join(f"{name} {number}" for name, number in manifest.packages.items() if number)
    return f"Written on {manifest.written or 'an unknown day'} by {packages}."


def refresh_command(place: str) -> str:
    """What to type to have a model made new."""
    return f"trellis export --refresh={place}"
