"""`worker listing`: each capability's status in catalogs, and what a crawler would find now."""

from __future__ import annotations

import argparse
import os

from worker.cli.listing_checks import check_endpoint, holds
from worker.cli.target import add_state, settings_for
from worker.engine.events import iso
from worker.parts import Parts
from worker.payments.listings import ListingStatus
from worker.seeker.http import HttpTransport
from worker.seeker.problems import plain

_STATUS = {"success": "listed", "processing": "being listed", "rejected": "REJECTED", "": "nothing said yet"}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    listing = commands.add_parser("listing", help="how catalogs list what is sold here")
    add_state(listing)
    listing.add_argument(
        "--check",
        action="store_true",
        help="ask each capability's address as crawlers do, and apply the rules of public validators",
    )
    listing.set_defaults(handler=run_listing)


def run_listing(args: argparse.Namespace) -> int:
    parts = Parts(settings_for(args.state, os.environ), "cli")
    known, now = parts.listings.all(), parts.store.now()
    transport = HttpTransport()
    sound = True
    for name in parts.manifest.for_sale():
        listing = known.get(name, ListingStatus(name))
        url = parts.discovery.address(name)
        print(f"{name}  {url}")
        print(f"  {_status(listing)}; {_settled(listing)}")
        if warning := listing.warning(now):
            print(f"  WARNING {plain(warning, 400)}")
            sound = False
        if args.check:
            sound = holds(check_endpoint(transport, url), lambda line: print(plain(line, 400))) and sound
    return 0 if sound else 1


def _status(listing: ListingStatus) -> str:
    when = f" at {iso(listing.at)}" if listing.at else ""
    return _STATUS.get(listing.status, listing.status) + when


def _settled(listing: ListingStatus) -> str:
    return f"last paid for at {iso(listing.settled)}" if listing.settled else "never paid for"
