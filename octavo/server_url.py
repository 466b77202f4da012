"""The URL of a server, as a user gives it: taken apart and checked once, so that no later use of a part finds it wanting.

Nothing is looked up: whether anybody answers there is not known here.
"""

import re
from urllib.parse import SplitResult, urlsplit

from octavo.config import ConfigError


def server_url(url: str, *, flag: str, wanted: str) -> SplitResult:
    """The parts of an HTTP URL with a host. Raises ``ConfigError``, which names the flag and says what is wanted."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        fine = fine and re.search(r"[\x00-\x20\x7f]", parts.netloc + parts.path) is None
        (parts.hostname or "").encode("idna")
        parts.path.encode("ascii")
    except ValueError:
        fine = False
    if not fine:
        raise ConfigError(f"{flag} {url}: {wanted}")
    return parts
