"""``qbserver verify`` and ``qbserver keys``: signed provenance, checked without a server."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.attestation import NotVerified, load_public_key, open_envelope, statement_signer
from service.settings import Settings

__all__ = ["add_parsers"]


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser], epilog: str) -> None:
    """Add the commands to ``qbserver``'s."""
    verify = commands.add_parser(
        "verify",
        help="check files against a signed provenance",
        description="Check that an envelope is signed by the key, and that each file has the "
        "digest of one of its subjects. Exit code 0: all do; 1: one does not.",
        epilog=epilog,
    )
    verify.add_argument(
        "--envelope", metavar="FILE", required=True,
        help="the envelope, from GET /v1/jobs/JOB/provenance?format=dsse",
    )  # fmt: skip
    verify.add_argument(
        "--key", metavar="PEM", help="public key; by default this server's own (its settings)"
    )
    verify.add_argument("file", nargs="+", help="an MXQ or MBLT")
    verify.set_defaults(run=_verify)
    keys = commands.add_parser(
        "keys", help="print the public key that provenance is signed with", epilog=epilog
    )
    keys.add_argument(
        "--new", metavar="FILE", help="first make a private key there, for QB_PROVENANCE_KEY_FILE"
    )
    keys.set_defaults(run=_keys)


def _verify(settings: Settings, args: argparse.Namespace) -> int:
    try:
        statement = open_envelope(Path(args.envelope).read_bytes(), _key(settings, args.key))
    except OSError as exc:
        sys.stderr.write(f"ERROR: {args.envelope}: {exc.strerror}\n")
        return 2
    except NotVerified as exc:
        sys.stderr.write(f"NOT VERIFIED: {args.envelope}: {exc}\n")
        return 1
    subjects = {str(s["digest"]["sha256"]): str(s["name"]) for s in statement.get("subject") or ()}
    code = 0
    for name in args.file:
        try:
            with Path(name).open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as exc:
            sys.stderr.write(f"ERROR: {name}: {exc.strerror}\n")
            return 2
        if digest in subjects:
            sys.stdout.write(f"verified: {name} is {subjects[digest]}, SHA-256 {digest}\n")
        else:
            sys.stdout.write(f"NOT VERIFIED: {name}: SHA-256 {digest} is no subject of it\n")
            code = 1
    if code == 0:
        made = statement["predicate"]["buildDefinition"]
        sys.stdout.write(json.dumps(made["externalParameters"], indent=2, sort_keys=True) + "\n")
    return code


def _key(settings: Settings, path: str | None) -> Ed25519PublicKey:
    if path is not None:
        return load_public_key(Path(path))
    signer = statement_signer(settings)
    if signer is None:
        raise NotVerified("these settings have no key; give --key")
    key = serialization.load_pem_public_key(signer.public_pem().encode())
    assert isinstance(key, Ed25519PublicKey)
    return key


def _keys(settings: Settings, args: argparse.Namespace) -> int:
    if args.new is not None:
        path = Path(args.new)
        pem = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        try:
            path.touch(mode=0o600, exist_ok=False)
            path.write_bytes(pem)
        except OSError as exc:
            sys.stderr.write(f"ERROR: {path}: {exc.strerror}\n")
            return 2
        sys.stderr.write(f"set QB_PROVENANCE_KEY_FILE={path.absolute()}\n")
        settings = settings.model_copy(update={"provenance_key_file": path})
    signer = statement_signer(settings)
    if signer is None:
        sys.stderr.write("these settings have no key: statements are not signed\n")
        return 1
    sys.stderr.write(f"keyid {signer.key_id}\n")
    sys.stdout.write(signer.public_pem())
    return 0
