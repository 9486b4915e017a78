"""Remove logins and queries from server and database addresses, and these and other secrets from texts.

A password may hold any character, also those that end a password elsewhere. So an address that can be read in more than
one way is not shown at all.
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from itertools import chain
from urllib.parse import quote, unquote, unquote_plus

HIDDEN = "…"
"""Stands for what is not shown."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[\w.~*-]*)(?::\d{0,5})?")
_AUTHORITY = re.compile(r"[^/?#\\]*")
_FILE = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?:[/.~]|[A-Za-z]:\\)")
"""Prefix of an address without a login."""
_ON_DISK = ("sqlite", "file")
"""Schemes whose addresses have no host where their path begins at once."""
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://\S+")
_AFTER = ".,;:!?)]}>'\"…"
"""Punctuation after an address in a sentence."""
_QUERY = re.compile(r"(?<=url: )(/[^\s?]*)\?\S*")
"""Form in which libraries quote the path of an address."""
_SHORTEST, _LONG = 3, 8
"""Characters of a secret that is looked for in a text, and of one that is looked for within words, too."""


def shown(address: str) -> str:
    """Remove user, password and query; of an ambiguous address only the scheme stays."""
    scheme, there, rest = address.partition("://")
    if not there:
        return address if "@" not in address or _FILE.match(address) else HIDDEN
    if not _SCHEME.fullmatch(scheme):
        return HIDDEN
    if _is_on_disk(scheme, rest):
        return f"{scheme}://{rest.partition('?')[0]}"
    authority, tail = _divided(rest)
    host = authority.rpartition("@")[2]
    # An @ further on may belong to a path, or end a password that holds a slash.
    if "@" in tail or not _HOST.fullmatch(host):
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{host}{re.split('[?#]', tail, maxsplit=1)[0]}"


def redacted(text: str, *addresses: str, secrets: Iterable[str] = ()) -> str:
    """Remove the secrets of all addresses in a text, and other secrets."""
    for address in sorted(addresses, key=len, reverse=True):
        for form in (address, address.rstrip("/")):
            if "://" in form:
                text = text.replace(form, shown(form))
    known = {spelt for part in (*secrets, *chain(*map(_secrets, addresses))) for spelt in _spellings(part)}
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= _SHORTEST and secret in text:
            whole = secret.isalnum() and len(secret) < _LONG
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)" if whole else re.escape(secret), HIDDEN, text)
    return _QUERY.sub(r"\1", _IN_TEXT.sub(_shown_in_text, text))


def _is_on_disk(scheme: str, rest: str) -> bool:
    return rest.startswith("/") and scheme.partition("+")[0] in _ON_DISK


def _divided(rest: str) -> tuple[str, str]:
    """Split at the first character that may end a host."""
    match = _AUTHORITY.match(rest)
    end = match.end() if match else 0
    return rest[:end], rest[end:]


def _shown_in_text(match: re.Match[str]) -> str:
    address = match[0].rstrip(_AFTER)
    return shown(address) + match[0][len(address) :]


def _secrets(address: str) -> Iterator[str]:
    """User, password and query in every reading of an address."""
    scheme, there, rest = address.partition("://")
    if not there:
        return
    if "@" in rest and not _is_on_disk(scheme, rest):
        login = rest.rpartition("@")[0]
        yield from (login, *login.split(":", 1), *re.split("[@/?#:]", login))
    query = rest.partition("?")[2]
    if query:
        yield from (query, *(pair.partition("=")[2] for pair in query.split("&")))


def _spellings(secret: str) -> Iterator[str]:
    """Spellings of a secret by libraries, also in Base64 with and without padding, where it is encoded by itself."""
    content = secret.encode(errors="surrogateescape")
    yield from (
        secret,
        unquote(secret),
        unquote_plus(secret),
        repr(secret)[1:-1],
        quote(content),
        quote(content, safe=""),
    )
    for encode in (b64encode, urlsafe_b64encode):
        encoded = encode(content).decode()
        yield from (encoded, encoded.rstrip("="))
