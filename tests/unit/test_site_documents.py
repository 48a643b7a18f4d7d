"""The public documents are generated from the declarations and match them."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest

from worker.capabilities.declare import Capability
from worker.core.settings import Settings
from worker.doors.openapi.documents import Publisher, seeker_document
from worker.doors.openapi.purchases import rebased
from worker.doors.site import icon
from worker.doors.site_documents import SiteDocuments
from worker.hiring.discovery import Discovery
from worker.x402.networks import resolve_network
from worker.x402.offer import Offer
from worker.x402.signed_offers import OfferSigner

KEY = "0x" + "11" * 32
REGISTRY = "eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"
SIGNER = "0x1563915e194D8CfBA1943570603F7606A3115508"
WORDS = Capability(
    "word-count",
    description="Counts the words\nof a text.",
    title="Count [all] words",
    price="0.02",
    tags=("text",),
    input_schema={"type": "object", "properties": {"text": {"$ref": "#/$defs/t"}}, "$defs": {"t": {}}},
    example_input={"text": "to be"},
    icon="https://shop.example/words.png",
)
SOLD = {"word-count": WORDS}


def documents(signer: str | None = None, **environ: str) -> SiteDocuments:
    settings = Settings.load(
        {"WORKER_ENV": "test", "PUBLIC_URL": "https://worker.example", "WORKER_KEY": KEY} | environ
    )
    return SiteDocuments(settings, Discovery(settings, None), "eip155:8453", signer or settings.worker_wallet)


def test_llms_txt_lists_each_capability_on_one_line() -> None:
    """Title, URL, description, price: one bullet each, whatever the author's text contains."""
    text = documents(GUIDANCE="Send English.", CONTACT_EMAIL="shop@example.com").llms(SOLD)
    bullets = [line for line in text.splitlines() if line.startswith("- ")]
    assert bullets == [
        "- [Count (all) words](https://worker.example/buy/word-count): Counts the words of a text. "
        "0.02 USDC. [Schema](https://worker.example/openapi.json)"
    ]
    assert text.startswith("# agent_worker\n\n> ") and "Send English." in text
    assert text.endswith("shop@example.com\n")


def test_registration_names_only_what_is_served() -> None:
    """Registrations come from the settings; a worker that sells nothing is not active."""
    registered = documents(AGENT_REGISTRATIONS=f"{REGISTRY}:22").registration(SOLD)
    assert registered["registrations"] == [{"agentId": 22, "agentRegistry": REGISTRY}]
    assert (registered["active"], registered["supportedTrust"]) == (True, ["reputation"])
    assert {each["name"] for each in registered["services"]} == {"x402", "HIRE", "DID"}
    bare = documents().registration({})
    assert (bare["active"], bare["registrations"], bare["supportedTrust"]) == (False, [], [])


def test_did_document_names_the_signing_key_and_the_wallet() -> None:
    """A separate signing key is listed first; without one only the wallet's key is listed."""
    apart = documents(SIGNER).did_document()
    accounts = [each["blockchainAccountId"] for each in apart["verificationMethod"]]
    wallet = documents().settings.worker_wallet
    assert accounts == [f"eip155:8453:{SIGNER}", f"eip155:8453:{wallet}"]
    assert apart["assertionMethod"] == [each["id"] for each in apart["verificationMethod"]]
    alone = documents().did_document()
    assert [each["blockchainAccountId"] for each in alone["verificationMethod"]] == [f"eip155:8453:{wallet}"]
    assert documents(PUBLIC_URL="http://127.0.0.1:8000").did() == "did:web:127.0.0.1%3A8000"


def test_agent_card_promises_no_operation_that_is_missing() -> None:
    """The card has what A2A requires, and its only interface is HTTP with x402."""
    card = documents().agent_card(SOLD)
    wanted = "name description supportedInterfaces version capabilities defaultInputModes defaultOutputModes"
    assert {*wanted.split(), "skills"} <= set(card)
    assert not any(card["capabilities"].values())
    bindings = {each["protocolBinding"] for each in card["supportedInterfaces"]}
    assert not bindings & {"JSONRPC", "HTTP+JSON", "GRPC"}
    assert [skill["id"] for skill in card["skills"]] == ["word-count"]


def offer(capability: Capability, price: str = "0.02") -> Offer:
    return Offer(
        network=resolve_network("eip155:8453"),
        price=price,
        pay_to=SIGNER,
        payer="",
        max_timeout_s=300,
        needed_s=10,
        resource_url=f"https://worker.example/buy/{capability.name}",
        extensions={"other": {"info": {}}},
    )


def test_402_metadata_comes_from_the_declaration() -> None:
    """Title, tags and the capability's own icon; otherwise the operator's icon, otherwise ours."""

    def shown(capability: Capability, **environ: str) -> Any:
        return documents(**environ).discovery.advertise(capability, offer(capability)).about

    assert shown(WORDS) == {"serviceName": "Count [all] words", "tags": ["text"], "iconUrl": WORDS.icon}
    plain = Capability("plain", price="0.02")
    icon_url = "https://shop.example/i.png"
    assert shown(plain, ICON_URL=icon_url) == {"serviceName": "plain", "iconUrl": icon_url}
    assert shown(plain)["iconUrl"] == "https://worker.example/favicon.ico"
    assert "iconUrl" not in shown(plain, PUBLIC_URL="http://127.0.0.1:8000")


def test_only_listed_prices_are_signed() -> None:
    """A price computed from a buyer's input is not signed; other extensions stay."""
    digests: list[bytes] = []
    signer = OfferSigner(lambda digest: digests.append(digest) or bytes(65), lambda: 1_800_000_000)
    discovery = Discovery(documents().settings, signer)
    listed = discovery.advertise(WORDS, offer(WORDS)).extensions
    assert set(listed) == {"other", "bazaar", "offer-receipt"} and len(digests) == 1
    quoted = discovery.advertise(WORDS, offer(WORDS, "0.01")).extensions
    assert set(quoted) == {"other", "bazaar"} and len(digests) == 1


def test_icon_is_a_readable_image() -> None:
    """The built-in icon is an ICO with one PNG of the stated size."""
    data = icon()
    assert struct.unpack("<HHH", data[:6]) == (0, 1, 1)
    size, offset = struct.unpack("<II", data[14:22])
    png = data[offset:]
    assert len(png) == size and png.startswith(b"\x89PNG\r\n\x1a\n")
    body = png[png.index(b"IDAT") + 4 : png.index(b"IEND") - 8]
    assert len(zlib.decompress(body)) == 32 * (32 * 4 + 1)


def test_openapi_has_a_path_with_price_and_schema_for_each_capability() -> None:
    """Each capability has its own path; references inside its schema resolve within it."""
    publisher = Publisher("https://worker.example", "0x" + "ab" * 20, "Send English.", "shop@example.com")
    whole = json.loads(seeker_document(publisher, [WORDS]))
    operation = whole["paths"]["/buy/word-count"]["post"]
    assert operation["summary"] == WORDS.title and operation["security"] == []
    assert operation["x-payment-info"]["price"] == {"mode": "fixed", "currency": "USD", "amount": "0.02"}
    assert operation["x-payment-info"]["offers"][0]["amount"] == "20000"
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert resolve(whole, schema["properties"]["text"]["$ref"]) == {}
    assert whole["info"]["contact"] == {"email": "shop@example.com"}
    assert whole["info"]["x-guidance"] == "Send English."
    for path, verbs in whole["paths"].items():
        assert all(isinstance(each.get("security"), list) for each in verbs.values()), path


def test_the_chat_door_is_shown_where_chat_is_on_sale() -> None:
    """Its path has the price of `chat` and llms.txt its base URL; without `chat` neither names it."""
    chat = Capability("chat", price="0.05", model="m-1")
    publisher = Publisher("https://worker.example")
    shown = json.loads(seeker_document(publisher, [WORDS, chat]))["paths"]
    offer = shown["/v1/chat/completions"]["post"]["x-payment-info"]["offers"][0]
    assert offer["amount"] == "50000"
    text = documents().llms({**SOLD, "chat": chat})
    assert "The base URL is https://worker.example/v1, the model `m-1`" in text
    hidden = seeker_document(publisher, [WORDS]).decode() + documents().llms(SOLD)
    assert "/v1" not in hidden and "ChatRequest" not in hidden


def test_a_price_by_input_is_shown_with_its_bound() -> None:
    """Agents that budget in advance see the maximum, and no fixed price is shown."""
    priced = replace(WORDS, prices_input=True)
    whole = json.loads(seeker_document(Publisher("https://worker.example"), [priced]))
    info = whole["paths"]["/buy/word-count"]["post"]["x-payment-info"]
    assert (info["price"]["mode"], info["price"]["max"]) == ("dynamic", "0.02")
    assert info["offers"][0]["amount"] is None
    assert "At most 0.02 USDC." in documents().llms({"word-count": priced})


def resolve(whole: Any, reference: str) -> Any:
    found = whole
    for step in reference.removeprefix("#/").split("/"):
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found


@pytest.mark.parametrize(
    ("schema", "moved"),
    [
        ({"$ref": "#"}, {"$ref": "#/at"}),
        ({"$ref": "#/$defs/a"}, {"$ref": "#/at/$defs/a"}),
        ({"items": [{"$ref": "#/items"}]}, {"items": [{"$ref": "#/at/items"}]}),
        ({"$ref": "other.json"}, {"$ref": "other.json"}),
    ],
)
def test_references_are_moved_with_their_schema(schema: dict[str, Any], moved: dict[str, Any]) -> None:
    """References into the schema itself are rebased; others stay."""
    assert rebased(schema, "#/at") == moved
