"""Where a lake lies: a local folder, or a prefix of a bucket on an object store.

Credentials and endpoints of object stores come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY, …): the storage libraries read it themselves, so no key
passes through geofix.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from schemas.errors import LakeError

SCHEMES = ("s3", "gs", "az", "abfss")
REFUSED = "[]|\\^%?"  # in a path the storage libraries read them as something else, or end in a panic
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
# What a person has to give for each kind of store; the libraries also take what a cloud machine is given by its host.
VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
    "abfss": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}


@dataclass(frozen=True)
class Location:
    """The address of a lake. `folder` is set for local lakes only."""

    uri: str
    folder: Path | None = None

    @classmethod
    def parse(cls, place: "str | Path | Location") -> "Location":
        """The location of a path or URI."""
        if isinstance(place, Location):
            return place
        text = str(place)
        if not text.strip():
            raise LakeError(
                "the lake's name is empty; give a folder such as ./lake or a URI such as s3://bucket/prefix"
            )
        scheme, separator, _ = text.partition("://")
        if not separator:
            folder = Path(text).expanduser().absolute()
            if odd := {letter for letter in str(folder) if letter in REFUSED or not letter.isprintable()}:
                named = " ".join(sorted(repr(letter) for letter in odd))
                raise LakeError(f"lake '{folder}': a lake's path must not hold {named}; give another folder")
            return cls(str(folder), folder)
        parts = urlsplit(text)
        if scheme == "file":
            return cls.parse(unquote(parts.path))
        if scheme not in SCHEMES:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise LakeError(f"lake '{_shown(text)}': give a folder such as ./lake, or a URI that begins with {known}")
        # The one '@' with a meaning is Azure's container@account; anything like a password is refused.
        if parts.password is not None or (parts.username is not None and scheme != "abfss"):
            raise LakeError(f"lake '{_shown(text)}' holds credentials; pass them as environment variables")
        if parts.query or parts.fragment or not parts.netloc:
            raise LakeError(f"lake '{_shown(text)}' must look like {scheme}://bucket/prefix")
        return cls(f"{scheme}://{parts.netloc}/{parts.path.strip('/')}".rstrip("/"))

    @property
    def is_local(self) -> bool:
        return self.folder is not None

    def child(self, key: str) -> str:
        """The URI (local: the path) of something inside the lake."""
        return f"{self.uri}/{key}"

    def needs(self) -> str:
        """What a remote lake needs, in words: its bucket, and environment variables with whether they are set."""
        parts = urlsplit(self.uri)
        bucket = parts.username or parts.netloc  # Azure: container@account
        named = [f"{name} ({'set' if os.environ.get(name) else 'not set'})" for name in VARIABLES.get(parts.scheme, ())]
        return f"check bucket '{bucket}' and the environment: {', '.join(named)}"

    def storage_options(self) -> dict[str, str]:
        """Options of deltalake and Polars that the environment does not give; never a secret."""
        return {} if self.is_local or not allows_http() else {"allow_http": "true"}


def allows_http() -> bool:
    """Whether the endpoint given by the environment is plain HTTP, which the clients refuse unless told."""
    return any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)


def _shown(text: str) -> str:
    """The URI without what may be a password."""
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"[:120]
