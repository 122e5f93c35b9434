"""TLS in front of a server that has none, with certificates of our own making."""

import datetime as dt
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """Two PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A CA that signs for 127.0.0.1."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        basic = x509.BasicConstraints(ca=True, path_length=None)
        own = self._build(self._name, self._key.public_key()).add_extension(basic, critical=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str) -> Certificate:
        """A certificate with a key of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        signed = self._build(subject, key.public_key()).add_extension(addresses, critical=False)
        made = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        body = signed.sign(self._key, hashes.SHA256())
        made.certificate.write_bytes(body.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return made

    def _build(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        return (
            builder.serial_number(x509.random_serial_number()).not_valid_before(now - _DAY).not_valid_after(now + _DAY)
        )


class TlsProxy:
    """Takes TLS connections on a port of loopback and passes them on in the clear. To be used as a context."""

    def __init__(self, port: int, server: Certificate, client_authority: Path) -> None:
        self._target = port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(client_authority))
        self._context.load_cert_chain(server.certificate, server.key)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        # Wakes the thread that accepts, which close alone would not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with (
            suppress(OSError),
            accepted,
            self._context.wrap_socket(accepted, server_side=True) as outer,
            socket.create_connection(("127.0.0.1", self._target)) as inner,
        ):
            back = threading.Thread(target=_pump, args=(inner, outer), daemon=True)
            back.start()
            _pump(outer, inner)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while body := source.recv(1 << 16):
            sink.sendall(body)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
