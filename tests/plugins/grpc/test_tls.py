"""TLS, and certificates of clients."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_kit import grpc_box

from appliance_plugins.grpc import inference_pb2 as pb

PEM = serialization.Encoding.PEM


def certificate(folder: Path, name: str) -> tuple[bytes, bytes]:
    """A self-signed certificate for localhost and its key, also as ``name.pem`` and ``name.key``."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = made.public_bytes(PEM)
    secret = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.pem").write_bytes(chain)
    (folder / f"{name}.key").write_bytes(secret)
    return chain, secret


async def test_calls_come_over_tls(tmp_path) -> None:
    chain, _ = certificate(tmp_path, "server")
    settings = {"tls_certificate": "server.pem", "tls_key": "server.key"}
    async with grpc_box(tmp_path, settings=settings, credentials=grpc.ssl_channel_credentials(chain)) as box:
        assert (await box.call("ListModels", pb.ListModelsRequest())).data


async def test_only_clients_with_a_certificate_of_the_authority_get_in(tmp_path) -> None:
    chain, _ = certificate(tmp_path, "server")
    ours, key = certificate(tmp_path, "client")
    settings = {"tls_certificate": "server.pem", "tls_key": "server.key", "tls_client_ca": "client.pem"}
    with_certificate = grpc.ssl_channel_credentials(chain, private_key=key, certificate_chain=ours)
    async with grpc_box(tmp_path, settings=settings, credentials=with_certificate) as box:
        assert (await box.call("ListModels", pb.ListModelsRequest())).data
        bare = grpc.aio.secure_channel(box.address, grpc.ssl_channel_credentials(chain))
        async with bare as box.channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await box.call("ListModels", pb.ListModelsRequest())
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
