"""Which URLs and addresses may be called: pure rules, tested with unusual input."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.errors import Problem
from worker.delivery.addresses import (
    AddressRules,
    UrlParts,
    UrlRefused,
    is_public,
    may_call,
    parse_target,
    rules_for,
)
from worker.delivery.outbound import Outbound, Unreachable, redact

PRODUCTION = rules_for("production")
TEST = rules_for("test")


class FixedResolver:
    """Returns scripted answers, one list per lookup, and records the lookups."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    def resolve(self, host: str, port: int, timeout: float) -> list[str]:
        self.asked.append((host, port))
        return self.answers.pop(0)


CLOSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.9",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::10.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "100:0:0:1::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:1ff::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fdff::1",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "fec0::1",
    "feff::1",
    "ff02::1",
    "ff0e::1",
]

OPEN = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "168.63.129.15",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.1",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:200::1",
    "2001:4860:4860::8888",
    "2003::1",
    "2606:4700:4700::1111",
    "2a00:1450::1",
    "3ffe::1",
]


class TestAddresses:
    """Addresses that host names may resolve to."""

    @pytest.mark.parametrize("address", CLOSED)
    def test_non_public_addresses_are_refused(self, address: str) -> None:
        """Private, local, shared, reserved, multicast and embedding addresses are never called."""
        assert not may_call(address, PRODUCTION)

    @pytest.mark.parametrize("address", OPEN)
    def test_public_addresses_are_allowed(self, address: str) -> None:
        """Ordinary addresses pass, even right next to a refused range."""
        assert may_call(address, PRODUCTION)

    @pytest.mark.parametrize(
        "address",
        [
            "",
            "localhost",
            "127.1",
            "0177.0.0.1",
            "2130706433",
            "0x7f000001",
            "8.8.8.8/32",
            "8.8.8.8 ",
            "[::1]",
        ],
    )
    def test_invalid_addresses_are_refused(self, address: str) -> None:
        """An invalid address from a resolver is refused."""
        assert not may_call(address, PRODUCTION) and not may_call(address, TEST)

    @given(st.integers(0, 2**32 - 1))
    def test_ipv4_embedded_in_ipv6_is_checked(self, number: int) -> None:
        """Mapped, compatible, translated, 6to4 and NAT64 forms of any IPv4 address are refused."""
        high = number >> 16
        low = number & 0xFFFF
        for form in (
            f"::ffff:{high:x}:{low:x}",
            f"::{high:x}:{low:x}",
            f"::ffff:0:{high:x}:{low:x}",
            f"2002:{high:x}:{low:x}::1",
            f"64:ff9b::{high:x}:{low:x}",
            f"2001::{high:x}:{low:x}",
        ):
            assert not may_call(form, PRODUCTION), form

    @given(st.one_of(st.integers(0, 2**32 - 1).map(IPv4Address), st.integers(0, 2**128 - 1).map(IPv6Address)))
    def test_never_more_permissive_than_ipaddress(self, address: IPv4Address | IPv6Address) -> None:
        """Every address that Python calls private is refused here too."""
        if not address.is_global or address.is_loopback or address.is_link_local or address.is_multicast:
            assert not is_public(address)

    def test_loopback_is_allowed_only_locally(self) -> None:
        """`local` and `test` may call loopback and no other private address."""
        for env, allowed in (("local", True), ("test", True), ("production", False), ("", False)):
            rules = rules_for(env)
            assert may_call("127.0.0.1", rules) is allowed and may_call("::1", rules) is allowed
            assert not may_call("10.0.0.1", rules) and not may_call("169.254.169.254", rules)

    def test_mapped_loopback_is_always_refused(self) -> None:
        """A permitted network is not permitted in another notation."""
        assert not may_call("::ffff:127.0.0.1", TEST) and not may_call("::127.0.0.1", TEST)

    def test_operator_can_allow_networks(self) -> None:
        """Networks from the settings are allowed, their neighbours are not."""
        rules = rules_for("production", networks=["10.1.0.0/16", "fd00:1::/32"])
        assert may_call("10.1.2.3", rules) and may_call("fd00:1::5", rules)
        assert (
            not may_call("10.2.0.1", rules)
            and not may_call("fd00:2::5", rules)
            and not may_call("127.0.0.1", rules)
        )
        with pytest.raises(ValueError, match="host bits"):
            rules_for("production", networks=["10.1.2.3/16"])


class TestUrls:
    """Parsing URLs."""

    @pytest.mark.parametrize(
        ("url", "target"),
        [
            ("https://example.com", UrlParts("https", "example.com", 443, "/")),
            ("HTTPS://Example.COM/A?b=C#frag", UrlParts("https", "example.com", 443, "/A?b=C")),
            ("https://example.com./x", UrlParts("https", "example.com", 443, "/x")),
            ("https://example.com:443?q", UrlParts("https", "example.com", 443, "/?q")),
            ("https://example.com:/", UrlParts("https", "example.com", 443, "/")),
            (
                "https://my_host.xn--bcher-kva.example/%20",
                UrlParts("https", "my_host.xn--bcher-kva.example", 443, "/%20"),
            ),
            ("https://1.1.1.1/", UrlParts("https", "1.1.1.1", 443, "/")),
            ("https://[2606:4700:4700:0::1111]/", UrlParts("https", "2606:4700:4700::1111", 443, "/")),
            ("https://3com.example//a//b", UrlParts("https", "3com.example", 443, "//a//b")),
        ],
    )
    def test_valid_urls_are_accepted(self, url: str, target: UrlParts) -> None:
        """Scheme, host, port and path become canonical, and the fragment is dropped."""
        assert parse_target(url, PRODUCTION) == target

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("", "url"),
            ("https://example.com/ x", "url"),
            ("https://example.com/\r\nHost: evil", "url"),
            ("https://exa\tmple.com/", "url"),
            (" https://example.com/", "url"),
            ("https://example.com\\@127.0.0.1/", "url"),
            ("https://example.com/日本", "url"),
            ("https://①②⑦.0.0.1/", "url"),
            ("https://example.com/" + "x" * 2100, "url"),
            ("https://[::1/", "url"),
            ("https://example.com:port/", "url"),
            ("https://example.com:99999/", "url"),
            ("https://example.com:-1/", "url"),
            ("http://example.com/", "scheme"),
            ("ftp://example.com/", "scheme"),
            ("file:///etc/passwd", "scheme"),
            ("gopher://example.com/", "scheme"),
            ("javascript:alert(1)", "scheme"),
            ("//example.com/", "scheme"),
            ("example.com/hook", "scheme"),
            ("https://user@example.com/", "userinfo"),
            ("https://user:pass@example.com/", "userinfo"),
            ("https://@example.com/", "userinfo"),
            ("https://example.com@127.0.0.1/", "userinfo"),
            ("https://example.com:80/", "port"),
            ("https://example.com:22/", "port"),
            ("https://example.com:6379/", "port"),
            ("https://example.com:0/", "port"),
            ("https:///path", "host"),
            ("https://", "host"),
            ("https:example.com", "host"),
            ("https://.example.com/", "host"),
            ("https://exa..mple.com/", "host"),
            ("https://-a.example/", "host"),
            ("https://a-.example/", "host"),
            ("https://%31%32%37.0.0.1/", "host"),
            ("https://" + "a" * 64 + ".example/", "host"),
            ("https://" + "a." * 130 + "example/", "host"),
            ("https://exam,ple.com/", "host"),
        ],
    )
    def test_invalid_urls_are_refused_with_a_reason(self, url: str, reason: str) -> None:
        """Each kind of trick has its reason; the refusal is a 400 and repeats nothing of the URL."""
        with pytest.raises(UrlRefused) as refusal:
            parse_target(url, PRODUCTION)
        assert (refusal.value.reason, refusal.value.code, refusal.value.status) == (
            reason,
            "URL_REFUSED",
            400,
        )
        assert refusal.value.details == {"reason": reason}

    @pytest.mark.parametrize(
        "host",
        [
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "0x7f.1",
            "0177.0.0.1",
            "017700000001",
            "0",
            "0x",
            "127.0.0.01",
            "1.2.3",
            "127.0.0.1.2",
            "256.0.0.1",
            "foo.1",
            "foo.0x1",
            "1.1.1.1..",
            "999999999999",
            "[::1%25lo]",
            "[fe80::1%eth0]",
            "[1.1.1.1]",
            "[::ffff:1.2.3]",
            "[v1.fe80]",
        ],
    )
    @pytest.mark.parametrize("rules", [PRODUCTION, TEST], ids=["production", "test"])
    def test_unusual_number_forms_are_refused(self, host: str, rules: AddressRules) -> None:
        """Short, octal, hexadecimal and decimal addresses never reach a resolver that might accept them."""
        with pytest.raises(UrlRefused) as refusal:
            parse_target(f"https://{host}/", rules)
        assert refusal.value.reason in ("host", "url")

    def test_local_mode_allows_http_and_any_port(self) -> None:
        """`local` and `test` allow http and every port, for receivers on this machine."""
        assert parse_target("http://localhost:5001/x", TEST) == UrlParts("http", "localhost", 5001, "/x")
        assert parse_target("http://localhost", TEST).port == 80

    def test_operator_can_allow_ports(self) -> None:
        """Ports from the settings are allowed in addition to 443."""
        rules = rules_for("production", ports=[8443])
        assert parse_target("https://example.com:8443/", rules).port == 8443
        assert parse_target("https://example.com/", rules).port == 443
        with pytest.raises(UrlRefused):
            parse_target("https://example.com:8444/", rules)

    @given(st.text(max_size=60))
    def test_parser_survives_any_text(self, text: str) -> None:
        """Any text is a target or a refusal, without another exception; hosts are canonical."""
        for url in (text, f"https://{text}", f"https://example.com{text}"):
            try:
                target = parse_target(url, PRODUCTION)
            except UrlRefused:
                continue
            assert target.scheme == "https" and target.port == 443 and target.path.startswith("/")
            assert target.host == target.host.lower() and not set(target.host) & set("@/\\? #%")


class TestCheck:
    """Checking a URL with its DNS lookup, before anything is stored."""

    def test_public_host_is_allowed(self) -> None:
        """The name is looked up once, with its port."""
        resolver = FixedResolver(["8.8.8.8", "2606:4700::1"])
        Outbound(PRODUCTION, resolver=resolver).check("https://hooks.example/x")
        assert resolver.asked == [("hooks.example", 443)]

    @pytest.mark.parametrize("address", CLOSED)
    def test_one_private_address_refuses_the_host(self, address: str) -> None:
        """A name that resolves to a public and a private address is refused, in either order."""
        for answer in ([address], ["8.8.8.8", address], [address, "8.8.8.8"], ["8.8.8.8"] * 9 + [address]):
            with pytest.raises(UrlRefused) as refusal:
                Outbound(PRODUCTION, resolver=FixedResolver(answer)).check("https://hooks.example/x")
            assert refusal.value.reason == "address"
            assert address not in str(refusal.value) + repr(refusal.value.details)

    @pytest.mark.parametrize(
        "url",
        [
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://[::127.0.0.1]/",
            "https://[fec0::1]/",
            "https://[::ffff:7f00:1]/",
        ],
    )
    def test_literal_addresses_need_no_dns(self, url: str) -> None:
        """An address in the URL is checked directly."""
        resolver = FixedResolver()
        with pytest.raises(UrlRefused) as refusal:
            Outbound(PRODUCTION, resolver=resolver).check(url)
        assert refusal.value.reason == "address" and resolver.asked == []
        Outbound(PRODUCTION, resolver=resolver).check("https://1.1.1.1/")
        assert resolver.asked == []

    def test_host_without_addresses_is_refused(self) -> None:
        """An empty lookup is Unreachable, not a pass."""
        with pytest.raises(Unreachable) as fault:
            Outbound(PRODUCTION, resolver=FixedResolver([])).check("https://hooks.example/")
        assert fault.value.reason == "name"

    def test_syntax_errors_make_no_dns_query(self) -> None:
        """A refused URL causes no traffic at all, not even a lookup."""
        resolver = FixedResolver()
        with pytest.raises(UrlRefused):
            Outbound(PRODUCTION, resolver=resolver).check("http://hooks.example/")
        assert resolver.asked == []

    def test_errors_share_a_base_class(self) -> None:
        """Refusals and faults are Problems with stable codes."""
        assert issubclass(UrlRefused, Problem) and Unreachable("name", "x").code == "UNREACHABLE"


class TestRedaction:
    """URLs in logs."""

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("https://hooks.example/T0/B1/secret?token=x#y", "https://hooks.example/..."),
            ("https://user:pass@hooks.example:8443/x", "https://hooks.example:8443/..."),
            ("http://[::1]:5/x", "http://[::1]:5/..."),
            ("https://hooks.example", "https://hooks.example/..."),
            ("https://h:port/secret", "(malformed URL)"),
            ("https://[secret", "(malformed URL)"),
            ("secret", "(malformed URL)"),
            ("ftp://secret/", "(malformed URL)"),
            ("https://h\x1b[31m/", "(malformed URL)"),
            ("", "(malformed URL)"),
        ],
    )
    def test_redacted_url_shows_only_the_host(self, url: str, shown: str) -> None:
        """Paths, queries, credentials and malformed URLs are never logged."""
        assert redact(url) == shown

    @given(st.text(max_size=50))
    def test_any_text_can_be_redacted(self, text: str) -> None:
        """Redaction never fails, and its result is printable."""
        for url in (text, f"https://{text}", f"https://h/{text}"):
            assert redact(url).isprintable()


def test_address_tables_have_no_duplicates() -> None:
    """The example addresses are valid, and none is listed as both open and closed."""
    assert not {ip_address(a) for a in CLOSED} & {ip_address(a) for a in OPEN}
