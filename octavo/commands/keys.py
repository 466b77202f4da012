"""``octavo keys new NAME``: makes an API key, shows it once, and writes its digest, role and limits into a keys file."""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from octavo.commands import flags, silence_output
from octavo.config import ConfigError
from octavo.server.keys import Key, Limit, Role, add_key, digest_of, new_key


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """``description`` is the help text of the flag of the same name."""

    file: Annotated[str, Meta(description="the keys file, which octavo serve reads as --api-keys-file; made if need be")]
    role: Annotated[Role, Meta(description="user: the API; metrics: /metrics, /load and /version alone; admin: all")] = "user"
    max_concurrency: Annotated[Limit | None, Meta(description="requests at once")] = None
    requests_per_minute: Annotated[Limit | None, Meta(description="requests a minute")] = None
    tokens_per_minute: Annotated[Limit | None, Meta(description="tokens of prompts and outputs a minute")] = None
    cache_scope: Annotated[
        str | None, Meta(description="share the prefix cache with keys of the same scope, '' with all without; default: NAME")
    ] = None
    priority: Annotated[int, Meta(description="lower is served first, with --scheduling-policy priority")] = 0


OPTIONS: flags.Options = (NewKey,)


def parser() -> flags.Parser:
    made = flags.Parser(
        prog="octavo keys",
        usage="octavo keys new NAME --file FILE [flags]",
        description="Make an API key. It is printed once and kept nowhere; the file has its SHA-256. To take a key away, take "
        "its entry out of the file and send the server SIGHUP.",
    )
    made.add_argument("action", choices=["new"], help="what to do")
    made.add_argument("name", metavar="NAME", help="whose key it is, in logs: letters, digits, and . _ -")
    flags.add_flags(made, NewKey, title="the key")
    return made


def run(arguments: Sequence[str], *, environment: Mapping[str, str], started: float) -> int:
    parsed, (wanted,) = flags.read(parser(), OPTIONS, arguments, environment)
    secret = new_key()
    fields = {name: value for name, value in msgspec.structs.asdict(wanted).items() if name != "file"}
    try:
        key = msgspec.convert({"name": parsed.name, "sha256": digest_of(secret.encode()).hex(), **fields}, Key)
    except msgspec.ValidationError as error:
        if "regex" not in str(error):
            raise ConfigError(f"octavo keys new: {error}") from None
        raise ConfigError("octavo keys new: a name, and a cache scope, has letters, digits and . _ - (64 at most)") from None

    def show() -> None:
        try:
            if sys.stdout is None:
                raise OSError(errno.EBADF, "")
            print(secret, flush=True)
        except OSError as error:
            silence_output()
            reason = os.strerror(error.errno or 0).lower()
            raise ConfigError(f"octavo keys new: the key cannot be shown ({reason}); {wanted.file} stays as it was") from None

    add_key(wanted.file, key, show=show)
    print(f"key {key.name} ({key.role}) is in {wanted.file}; this is the only time it is shown", file=sys.stderr)
    return 0
