"""Which web pages may post to a server that asks for no key.

Browsers let no page of another site post JSON unasked. But a site whose name is made to point at this machine once its page is
loaded (DNS rebinding) is in the browser's eyes the server's own, and can read the answers. Its name, which browsers send with
whatever is posted, tells it; a name that always means this machine, or an address, cannot be pointed elsewhere.
"""

import ipaddress
from urllib.parse import urlsplit


def may_post(origin: bytes, allowed: tuple[str, ...]) -> bool:
    """``origin``: an Origin header's value. What is no page from the web, as an extension or a program, may."""
    text = origin.decode("latin-1").strip()
    if "*" in allowed or text in allowed:
        return True
    try:
        parts = urlsplit(text)
        name = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return True
    return name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
