"""Finds weak secrets: reused, guessable or published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from worker.core.values import address_of

# Of 16 random hex digits, fewer distinct ones than this are a matter of one in two million.
_FEWEST_DISTINCT = 5
# A key below this was counted, not drawn.
_SMALL_KEY = 1 << 128
_PLACEHOLDERS = ("changeme", "change-me", "change_me", "your-", "your_", "example", "insecure", "password")
# Accounts of development chains (Anvil, Hardhat, Ganache, Truffle), whose keys are public.
_PUBLISHED = frozenset(
    address.lower()
    for address in [
        "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
        "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
        "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
        "0x90F79bf6EB2c4f870365E785982E1f101E93b906",
        "0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65",
        "0x9965507D1a55bcC2695C58ba16FB37d819B0A4dc",
        "0x976EA74026E726554dB657fA54763abd0C3a0aa9",
        "0x14dC79964da2C08b23698B3D3cc7Ca32193d9955",
        "0x23618e81E3f5cdF7f54C3d65f7FBc0aBf5B21E8f",
        "0xa0Ee7A142d267C1f36714E4a8F75612F20a79720",
        "0xBcd4042DE499D14e55001CcbB24a551F3b954096",
        "0x71bE63f3384f5fb98995898A86B02Fb2426c5788",
        "0xFABB0ac9d68B0B445fB7357272Ff202C5651694a",
        "0x1CBd3b2770909D4e10f157cABC84C7264073C9Ec",
        "0xdF3e18d64BC6A983f673Ab319CCaE4f1a57C7097",
        "0xcd3B766CCDd6AE721141F452C550Ca635964ce71",
        "0x2546BcD3c84621e976D8185a91A922aE77ECEc30",
        "0xbDA5747bFD65F08deb54cb465eB87D40e51B197E",
        "0xdD2FD4581271e230360230F9337D5c0430Bf44C0",
        "0x8626f6940E2eb28930eFb4CeF49B2d1F2C9C1199",
        "0x90F8bf6A479f320ead074411a4B0e7944Ea8c9C1",
        "0xFFcf8FDEE72ac11b5c542428B35EEF5769C409f0",
        "0x22d491Bde2303f2f43325b2108D26f1eAbA1e32b",
        "0xE11BA2b4D45Eaed5996Cd0823791E0C93114882d",
        "0xd03ea8624C8C5987235048901fB614fDcA89b117",
        "0x95cED938F7991cd0dFcb48F0a06a40FA1aF46EBC",
        "0x3E5e9111Ae8eB78Fe1CC3bb8915d5D461F3Ef9A9",
        "0x28a8746e75304c0780E011BEd21C72cD78cd535E",
        "0xACa94ef8bD5ffEE41947b4585a84BdA5a3d3DA6E",
        "0x1dF62f291b2E969fB0849d99D9Ce41e2F137006e",
        "0x627306090abaB3A6e1400e9345bC60c78a8BEf57",
        "0xf17f52151EbEF6C7334FAD080c5704D77216b732",
        "0xC5fdf4076b8F3A5357c5E395ab970B5B54098Fef",
        "0x821aEa9a577a9b44299B9c15c88cf3087F3b5544",
        "0x0d1d4e623D10F9FBA5Db95830F7d3839406C6AF2",
        "0x2932b7A2355D6fecc4b5c0B6BD44cC31df247a2e",
        "0x2191eF87E392377ec08E7c08Eb105Ef5448eCED5",
        "0x0F4F2Ac550A1b4e2280d04c21cEa7EBD822934b5",
        "0x6330A553Fc93768F612722BB8c2eC78aC90B3bbc",
        "0x5AEDA56215b167893e80B4fE645BA6d5Bab767DE",
    ]
)


def weak_secrets(secrets: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Names of settings with a weak secret, each with what is expected instead.

    `secrets`: texts by setting, keys as hex digits.
    """
    first_use: dict[str, str] = {}
    for name, texts in secrets.items():
        for text in texts:
            other = first_use.setdefault(_bare(text), name)
            if other != name:
                yield name, f"another value than {other}"
            if is_guessable(text):
                yield name, "a random value, such as that of `openssl rand -hex 32`"
            elif is_published(text):
                yield name, "a key of your own: this one is published with a development chain"


def is_guessable(text: str) -> bool:
    """Whether a secret is repetition, counts up or down, is a small number or a placeholder."""
    bare = _bare(text)
    if len(set(bare)) < _FEWEST_DISTINCT or bare in (bare + bare)[1:-1]:
        return True
    steps = Counter(ord(b) - ord(a) for a, b in zip(bare, bare[1:], strict=False))
    if 2 * steps.most_common(1)[0][1] > len(bare):
        return True
    if _is_key(bare) and int(bare, 16) < _SMALL_KEY:
        return True
    return bare.startswith(_PLACEHOLDERS)


def is_published(text: str) -> bool:
    """Whether a secret is the key of a development chain's account."""
    bare = _bare(text)
    return _is_key(bare) and address_of(bare).lower() in _PUBLISHED


def _bare(text: str) -> str:
    return text.lower().removeprefix("0x")


def _is_key(bare: str) -> bool:
    return len(bare) == 64 and all(digit in "0123456789abcdef" for digit in bare)
