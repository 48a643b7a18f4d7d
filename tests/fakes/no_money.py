"""An engine without payments."""

from pathlib import Path

# Replaces the payment hooks.
NO_MONEY = (Path(__file__).parent / "no_money.lua",)
