"""Which failures to connect mean "not yet" while a machine boots. Pure but for the names of paramiko's exceptions."""

import socket

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

MOVES = "its address may have been given to another machine, or somebody is between it and us"


def may_pass(error: Exception) -> bool:
    """Everything that a machine does before it is ready: no route, a refusal, silence, half a banner, an unknown key.

    A host key that differs is told apart before (``connection.HostKeyError``) and never passes.
    """
    return isinstance(error, OSError | EOFError | paramiko.SSHException)


def in_words(error: Exception) -> str:
    """What was seen, for people."""
    match error:
        case paramiko.AuthenticationException():
            return "it does not know our key (yet)"
        case IncompatiblePeer():
            return f"no common way to speak: {error}"
        case EOFError():
            return "it ended the connection at once"
        case socket.gaierror():
            return f"its name is not known ({error.strerror})"
        case TimeoutError():
            return "nothing answers at its address"
        case OSError():
            return error.strerror or str(error) or type(error).__name__
    text = str(error)
    if "banner" in text or "No existing session" in text:
        return "no SSH banner came"
    return text or type(error).__name__
