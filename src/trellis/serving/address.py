"""Where a server listens, and who may ask there."""

import ipaddress
import socket

from trellis.errors import ArgumentError


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that takes connections once the server listens; an error if the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ArgumentError(f"--host: `{host}` is no address of this machine ({error}).") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen()
    except OSError as error:
        bound.close()
        way_out = "--port=0 takes one that is free" if port else "choose another --host"
        raise ArgumentError(f"--port: {host}:{port} cannot be taken: {error.strerror}. {way_out}.") from None
    return bound


def check_access(host: str, token: str) -> None:
    """Raises an error if others than this machine could ask without a token."""
    if not token and not is_loopback(host):
        raise ArgumentError(
            f"--host: others could ask at {host}, so callers have to show a token. Set one of 16 characters or more in "
            f"the environment (TRELLIS_SERVE_TOKEN), or in a file: --token_file=FILE"
        )


def is_loopback(name: str) -> bool:
    """Whether a host can be reached from its own machine alone."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
