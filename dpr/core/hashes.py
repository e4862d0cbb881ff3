"""Hashes of texts, the same in every process. Half a character (lone surrogate) of a JSON file is hashed like
any other."""

from __future__ import annotations

import hashlib


def text_hash(text: str) -> int:
    """64 bits of a text."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little"
    )


def text_sha256(text: str) -> str:
    """SHA-256 of a text in UTF-8, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
