"""A problem with a value of a config, told with its place and with what to write instead."""

from trellis.config import Config, Edit, Problem, origin_of


def problem_at(path: str, *, config: Config, said: str, advice: str = "", value: object = None) -> Problem:
    """Returns the problem that the value at a dotted path is.

    Args:
        said: What is wrong, after the path.
        value: What to write instead, if that is known.
    """
    origin = origin_of(config, path)
    problem = Problem(f"{path} {said}", origin, path, advice)
    if value is None:
        return problem
    if origin.form == "flag":
        start = origin.column - 1
        # What a pipeline gives has no text to be edited.
        edits = (Edit(start, start + origin.width, str(value)),) if origin.text else ()
        return Problem(problem.message, origin, path, advice, f"{path}={value}", edits)
    is_in_file = origin.form == "file"
    fix = f"{path.rpartition('.')[2]}: {value}" if is_in_file else f"--set={path}={value}"
    return Problem(problem.message, origin, path, advice, fix)
