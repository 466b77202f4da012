"""The listening socket, taken before anything slow happens, so that a port in use is known in milliseconds."""

import errno
import os
import socket

from octavo.config import ConfigError

BACKLOG = 2048


class PortError(RuntimeError):
    """The address cannot be listened on; the message is one line and says what to do."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``ConfigError`` for a host that has no address here, ``PortError`` for one that is taken."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        raise ConfigError(f"--host {host}: no such address") from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortError(f"port {port} on {host} is in use: stop the other program or choose another --port") from None
        raise PortError(f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0).lower()}") from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Where clients find ``sock``; an address that means every interface is written as this host."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
