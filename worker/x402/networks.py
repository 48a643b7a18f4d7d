"""The supported chains and their USDC, under each name in use."""

from __future__ import annotations

from dataclasses import dataclass

from worker.x402.typed_data import Domain


@dataclass(frozen=True, slots=True)
class Network:
    """One chain with its USDC; `name` is what HIRE and x402 V1 call it, `caip2` what V2 does."""

    name: str
    caip2: str
    chain_id: int
    asset: str
    asset_name: str
    asset_version: str
    facilitator_url: str

    @property
    def domain(self) -> Domain:
        """Return the EIP-712 domain of this network's USDC."""
        return Domain(self.asset_name, self.asset_version, self.chain_id, self.asset)


BASE = Network(
    name="base",
    caip2="eip155:8453",
    chain_id=8453,
    asset="0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
    asset_name="USD Coin",
    asset_version="2",
    facilitator_url="https://api.cdp.coinbase.com/platform/v2/x402",
)

# The same coin calls itself "USDC" here, and the name is part of what a payer signs.
BASE_SEPOLIA = Network(
    name="base-sepolia",
    caip2="eip155:84532",
    chain_id=84532,
    asset="0x036CbD53842c5426634e7929541eC2318f3dCF7e",
    asset_name="USDC",
    asset_version="2",
    facilitator_url="https://x402.org/facilitator",
)

NETWORKS = (BASE, BASE_SEPOLIA)


def find_network(name: str) -> Network | None:
    """Return the network of this name or CAIP-2 id, or None."""
    wanted = name.strip().lower()
    return next((network for network in NETWORKS if wanted in (network.name, network.caip2)), None)


def resolve_network(name: str) -> Network:
    """Return the network of this name or CAIP-2 id; an unknown one raises a ValueError."""
    network = find_network(name)
    if network is None:
        known = ", ".join(f"{known.name} ({known.caip2})" for known in NETWORKS)
        raise ValueError(f"unknown network; known are {known}")
    return network
