"""Static analysis of Python source: bounded reading, scopes, and a register of small rules."""

from worker.shipped.review import danger, habits, lines, names, structure

__all__ = ["danger", "habits", "lines", "names", "structure"]
