"""A certificate authority for tests, and certificates from it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign("Test authority", self.key, None)
        self.file = str(folder / "ca.pem")
        Path(self.file).write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, host: str | None) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject if host else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
            # Python 3.13 verifies strictly (RFC 5280): certificates name their keys.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if not host:
            unused = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
            usage = dict.fromkeys(unused.split(), False)
            signs = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage)
            builder = builder.add_extension(signs, critical=True)
        else:
            try:
                other: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
            except ValueError:
                other = x509.DNSName(host)
            builder = builder.add_extension(x509.SubjectAlternativeName([other]), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def server(self, host: str) -> ssl.SSLContext:
        """What a server for `host` needs; it would speak h2 too, were it asked."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = self.folder / f"{host}.pem"
        pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + self._sign(host, key, host).public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context
