"""Who may publish: Ed25519 signatures around manifests, and the keys they are made and checked with.

Owns the envelope and the key files (PEM, as `openssl genpkey -algorithm ed25519` writes them). A signed manifest is a
zstd *skippable* frame, which every zstd tool passes over, in front of the manifest's own:

    u32 0x184D2A5E   u32 97   u8 scheme (1: Ed25519)   32 bytes public key   64 bytes signature   the manifest's frame

all little endian. What is signed is `CONTEXT` and then the frame, to its last byte; so nothing of a manifest is
unpacked or parsed before its signature is known to be good. Never decides which version is wanted: a store that
withholds newer versions, or a fresh reader pointed at another chain of the same key, is not noticed here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etude.durable import write_new
from etude.errors import ConfigError, MissingDependency, WeightError
from etude.extras import install_command

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CONTEXT = b"etude-weights manifest\0"
"""In front of what is signed, so that no signature made for another purpose with the same key fits a manifest."""
_HEADER = struct.Struct("<IIB32s64s")
_MAGIC, _LENGTH, _ED25519 = 0x184D2A5E, _HEADER.size - 8, 1
_MAKE_ONE = "`etude weights keygen PATH` makes one"


@dataclass(frozen=True)
class Keys:
    """The key that signs, if any, and the public keys whose signatures are good.

    With `trusted`, whatever is unsigned is refused; without, signatures are passed over.
    """

    signer: Ed25519PrivateKey | None = None
    trusted: tuple[bytes, ...] = ()

    def seal(self, frame: bytes) -> bytes:
        """The bytes of a manifest as they are stored: signed if there is a key for it."""
        if self.signer is None:
            return frame
        public, signature = _raw(self.signer.public_key()), self.signer.sign(CONTEXT + frame)
        return _HEADER.pack(_MAGIC, _LENGTH, _ED25519, public, signature) + frame

    def open(self, data: bytes, origin: str) -> bytes:
        """The manifest's frame. Raises WeightError, naming `origin`, unless a trusted key signed it."""
        public, signature, frame = _split(data, origin)
        if not self.trusted:
            return frame
        if public is None:
            raise WeightError(
                f"{origin}: not signed, and this reader trusts only what {_names(self.trusted)} signed: have its "
                "publisher sign (publisher.signing_key), or read without trusted_keys"
            )
        if public not in self.trusted:
            raise WeightError(
                f"{origin}: signed by key {name_of(public)}, which is none of {_names(self.trusted)}: if that "
                "publisher is to be trusted, add its public key to trusted_keys"
            )
        if not _verified(public, signature, CONTEXT + frame):
            raise WeightError(
                f"{origin}: the signature of key {name_of(public)} does not fit: it was damaged or forged after it was "
                "signed; restore the object, or rewind the chain below this version"
            )
        return frame


def load_keys(signing: Path | None = None, trusted: Sequence[Path] = ()) -> Keys:
    """Keys from PEM files: a private one that signs and is trusted, and public ones. ConfigError for a useless one."""
    if signing is None and not trusted:
        return Keys()
    signer = _load_private(signing) if signing is not None else None
    own = [_raw(signer.public_key())] if signer is not None else []
    return Keys(signer, tuple(dict.fromkeys([*own, *map(_load_public, trusted)])))


def make_keys(path: Path) -> Path:
    """Write a new private key to `path`, readable by its owner only, and its public half to `path`.pub; returns that.

    Raises ConfigError if either file is there already: a key that is lost cannot be made again.
    """
    ed25519, serialization = _library()
    public_path = path.with_name(path.name + ".pub")
    for taken in (path, public_path):
        if taken.exists():
            raise ConfigError(f"{taken} is there already: name another path, or move it away first")
    key, pem = ed25519.Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.parent.mkdir(parents=True, exist_ok=True)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_new(public_path, public, 0o644)  # first: where the second fails nothing was made that is lost
    try:
        write_new(path, private)
    except OSError:
        public_path.unlink()
        raise
    return public_path


def signer_of(data: bytes, origin: str) -> bytes | None:
    """The public key that a stored manifest says signed it, unchecked; None for an unsigned one."""
    return _split(data, origin)[0]


def name_of(public: bytes) -> str:
    """A public key as messages and reports show it."""
    return public.hex()[:16]


def _split(data: bytes, origin: str) -> tuple[bytes | None, bytes, bytes]:
    if data[:4] != struct.pack("<I", _MAGIC):
        return None, b"", data
    if len(data) < _HEADER.size:
        raise WeightError(f"{origin}: cut off in its signature, at {len(data)} bytes")
    _, length, scheme, public, signature = _HEADER.unpack_from(data)
    if length != _LENGTH or scheme != _ED25519:
        raise WeightError(f"{origin}: signed in a way unknown here (scheme {scheme}): update Etude")
    return public, signature, data[_HEADER.size :]


def _verified(public: bytes, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    ed25519, _ = _library()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _load_private(path: Path) -> Ed25519PrivateKey:
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"publisher.signing_key = {str(path)!r}: not a private key: {error}; {_MAKE_ONE}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigError(f"publisher.signing_key = {str(path)!r}: not an Ed25519 key; {_MAKE_ONE}")
    return key


def _load_public(path: Path) -> bytes:
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"trusted_keys: {path}: not a public key: {error}; {_MAKE_ONE}") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise ConfigError(f"trusted_keys: {path}: not an Ed25519 key; {_MAKE_ONE}")
    return _raw(key)


def _raw(public) -> bytes:
    return public.public_bytes_raw()


def _names(keys: Sequence[bytes]) -> str:
    return ", ".join(map(name_of, keys))


def _library():
    """Loaded only where there is a key, so that a chain without one costs no process its import."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingDependency(f"weights are to be signed or checked: {install_command('train')}") from None
    return ed25519, serialization
