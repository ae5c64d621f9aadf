"""A server of the tests' own that speaks S3 (moto), and buckets on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import obstore
from endings import ending_with_the_tests
from obstore.store import S3Store

from appliance.source_config import S3Config

PROGRAM = Path(__file__).parent / "s3" / "server.py"
PACKAGES = Path(sys.prefix) / "s3"
KEYS = {"access_key": "tests", "secret_key": "tests", "region": "us-east-1"}
_SIGNED = {"authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"}


class S3Server:
    """``with S3Server() as server:`` one that runs, with no buckets."""

    def __enter__(self) -> S3Server:
        assert PACKAGES.is_dir(), "the packages of the S3 server are not installed; run make test"
        self.process = subprocess.Popen(
            ending_with_the_tests([sys.executable, str(PROGRAM)]),
            env={**os.environ, "PYTHONPATH": str(PACKAGES)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def bucket(self, name: str) -> Bucket:
        """A new bucket."""
        httpx.put(f"{self.url}/{name}", headers=_SIGNED, timeout=20).raise_for_status()
        return Bucket(self.url, name)


class Bucket:
    """Objects are put and deleted by another client than the appliance's settings make."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self._store = S3Store(
            name,
            config={"endpoint": url, "access_key_id": "tests", "secret_access_key": "tests", "region": "us-east-1"},
            client_options={"allow_http": True},
        )

    def config(self, prefix: str = "") -> S3Config:
        """How the appliance reaches it."""
        return S3Config(url=f"s3://{self.name}/{prefix}", endpoint=self.url, **KEYS)

    def put(self, **texts: str) -> None:
        """Objects by their names, of which ``__`` stands for a slash; all end in ``.md``."""
        for name, text in texts.items():
            obstore.put(self._store, f"{name.replace('__', '/')}.md", text.encode())

    def delete(self, *keys: str) -> None:
        obstore.delete(self._store, list(keys))
