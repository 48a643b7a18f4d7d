"""Field names in the hash of an execution's steps, and how a step is named in the store's lists.

Fields of a step start with the step's id. Signals, files, keys and stored values share the hash, each with
its own prefix, because their names are chosen by others.
"""

from __future__ import annotations

_KEY, _SIGNAL, _FILE, _ONCE, _CAUSE = "key ", "signal ", "file:", "once:", "cause:"
_JOB = " job"
# Values that may be too long for the store, and are then a reference to a file.
_PACKED_PREFIXES, _PACKED_SUFFIXES = (_ONCE, _SIGNAL), (" value", " args")


def step_field(step: str, name: str) -> str:
    """Field for one fact about a step: its status, tool, value and the like."""
    return f"{step} {name}"


def file_field(name: str) -> str:
    """Field in which a job records a file that it wrote."""
    return f"{_FILE}{name}"


def once_field(name: str) -> str:
    """Field in which a job records a value of `once`."""
    return f"{_ONCE}{name}"


def signal_field(sequence: int) -> str:
    """Field for the payload of a signal that was too long for its event."""
    return f"{_SIGNAL}{sequence}"


def cause_field(fence: int) -> str:
    """Field in which the run under this fence records why it failed."""
    return f"{_CAUSE}{fence}"


def is_cause(field: str) -> bool:
    return field.startswith(_CAUSE)


def is_file(field: str) -> bool:
    return field.startswith(_FILE)


def is_packed(field: str) -> bool:
    """Whether the field's value may be a reference to a file."""
    return field.startswith(_PACKED_PREFIXES) or field.endswith(_PACKED_SUFFIXES)


def key_in(field: str) -> str | None:
    """The key under which a step was begun; None for any other field."""
    return field.removeprefix(_KEY) if field.startswith(_KEY) else None


def step_with_job(field: str) -> str | None:
    """The step that was sent to runners; None for other fields. The name may be chosen by others."""
    return field.removesuffix(_JOB) if field.endswith(_JOB) else None


def step_member(id: str, step: str) -> str:
    """Member of a step in the lists of deadlines, retries and jobs."""
    return f"{id} {step}"


def read_step_member(member: str) -> tuple[str, str]:
    """Parses a member to (execution, step)."""
    id, _, step = member.partition(" ")
    return id, step
