"""A worker that agents and people hire over HTTPS and pay per task in USDC."""

__version__ = "0.1.0"
