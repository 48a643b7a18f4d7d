"""Pins the store's certificate at the first connection (trust on first use).

Hosted stores often have self-signed certificates that are not published. With REDIS_TLS_VERIFY=ca and without
REDIS_TLS_CA the first certificate seen at an address is kept in the state directory, and no other is accepted
there. A man in the middle at that first connection goes unnoticed: REDIS_TLS_CA is safer.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
from contextlib import suppress
from pathlib import Path

# Length of the SHA-256 prefix shown for a person to compare.
_SHOWN = 16


class CertificateChanged(ssl.SSLCertVerificationError):
    """The server at a known address shows another certificate than the pinned one."""


class PinnedTls:
    """Wraps sockets like an `ssl.SSLContext`; accepts the pinned certificate, or the first one."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE  # compared below instead

    def wrap_socket(self, plain: socket.socket, server_hostname: str | None = None) -> ssl.SSLSocket:
        """Completes the handshake; sends nothing before the certificate is verified."""
        wrapped = self._context.wrap_socket(plain, server_hostname=server_hostname)
        try:
            found = wrapped.getpeercert(binary_form=True) or b""
            if self._pinned(found) != found:
                raise CertificateChanged("the store shows another certificate than the pinned one")
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def fingerprint(self) -> str | None:
        """The start of the pinned certificate's SHA-256; None before the first connection."""
        import hashlib

        pinned = self._read()
        return None if pinned is None else hashlib.sha256(pinned).hexdigest()[:_SHOWN]

    def _pinned(self, found: bytes) -> bytes | None:
        """Pins the first certificate. If processes start together, the first to write wins."""
        pinned = self._read()
        if pinned is not None or not found:
            return pinned
        self.file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.file.with_suffix(f".{secrets.token_hex(8)}")
        fresh.write_text(ssl.DER_cert_to_PEM_cert(found))
        try:
            with suppress(FileExistsError):
                os.link(fresh, self.file)
        finally:
            fresh.unlink()
        return self._read()

    def _read(self) -> bytes | None:
        try:
            return ssl.PEM_cert_to_DER_cert(self.file.read_text("ascii").strip())
        except FileNotFoundError:
            return None
        except ValueError as broken:
            raise CertificateChanged(f"{self.file} is no certificate; remove it to learn it anew") from broken


def pin_file(state_directory: str, host: str, port: int) -> Path:
    """Path of the pinned certificate of one address."""
    name = "".join(each if each.isalnum() or each in ".-" else "_" for each in host)
    return Path(state_directory) / f"store-certificate-{name}-{port}.pem"
