"""Hands a command to the server of ``warm_process``, with its streams; real Python runs what is no module and no file.

Arguments: the server's socket, the name it was called by (``python``, ``fairseq-train`` ...), and that program's own.
Needs no more than the standard library, for it is imported for every command.
"""

import json
import os
import socket
import sys


def main(server: str, name: str, *arguments: str) -> int:
    """Returns the exit status."""
    words = list(arguments)
    if name.startswith("fairseq-"):
        words = ["-m", "fairseq_cli." + name.removeprefix("fairseq-").replace("-", "_"), *words]
    elif not (words and (words[0] == "-m" or words[0].endswith(".py"))):
        os.execv(sys.executable, [sys.executable, *words])
    request = {"words": words, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server)
        socket.send_fds(connection, [b"."], [0, 1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answer:
            status = int(answer.readline() or b"1")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
