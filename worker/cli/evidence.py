"""`worker evidence verify`: check a task's evidence without the worker and without a network."""

from __future__ import annotations

import argparse
from pathlib import Path

from worker.cli.documents import read_file
from worker.cli.inputs import read_document
from worker.core.errors import BadRequest
from worker.hiring.evidence_check import check_evidence, check_input
from worker.seeker.checks import check_bytes
from worker.seeker.problems import plain


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evidence = commands.add_parser("evidence", help="check what a worker delivered and was paid for")
    actions = evidence.add_subparsers(dest="action", required=True, metavar="ACTION")
    verify = actions.add_parser("verify", help="check every signature and digest of a file of evidence")
    verify.add_argument("file", metavar="FILE", help="from GET /tasks/ID/evidence, or - for standard input")
    verify.add_argument("--input", metavar="@FILE", help="the task's input, to compare with its digest")
    verify.add_argument("--files", metavar="DIR", help="delivered files, to compare with their checksums")
    verify.set_defaults(handler=run_verify)


def run_verify(args: argparse.Namespace) -> int:
    document = read_file(args.file, name="FILE")
    findings = check_evidence(document)
    if args.input is not None:
        check_input(document, read_document(args.input, name="--input"))
        findings.append("the input is the one that the evidence names")
    if args.files is not None:
        findings.append(_check_files(document["outputs"], Path(args.files)))
    for finding in findings:
        print(f"- {plain(finding, 400)}")
    return 0


def _check_files(outputs: list[dict[str, object]], directory: Path) -> str:
    """Compare the delivered files with the evidence; its file names must not leave the directory."""
    for each in outputs:
        name = Path(str(each["name"])).name
        try:
            data = (directory / name).read_bytes()
        except OSError as fault:
            raise BadRequest(f"{name!r} cannot be read", field="--files") from fault
        check_bytes(data, name=name, checksum=each["checksum"], size=each["size"])
    return f"{len(outputs)} files have the sizes and checksums that the evidence names"
