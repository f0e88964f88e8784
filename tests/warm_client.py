"""Hands a command to the server of ``warm_process``, with its streams; real Python runs what is no module and no file.

Arguments: the server's socket, the checkout whose package the server has imported, the folder of the package that is
installed, or nothing, the name it was called by (``python``, ``fairseq-train`` ...), and that program's own.
"""

import json
import os
import socket
import sys


def main(server: str, checkout: str, installed: str, name: str, *arguments: str) -> int:
    """Returns the exit status."""
    words = list(arguments)
    if name == "fairseq-plugins":
        words = ["-m", "fairseq_plugins", *words]
    elif name.startswith("fairseq-"):
        words = ["-m", "fairseq_cli." + name.removeprefix("fairseq-").replace("-", "_"), *words]
    if not (_is_known(words) and _imports_package_of(checkout, installed)):
        os.execv(sys.executable, [sys.executable, *words])
    request = {"words": words, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server)
        socket.send_fds(connection, [b"."], [0, 1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answer:
            status = int(answer.readline() or b"1")
    return status if status >= 0 else 128 - status


def _is_known(words: list) -> bool:
    """Whether Python is asked for a module of fairseq or the package, or for a file."""
    if words[:1] == ["-m"]:
        return words[1].startswith("fairseq")
    return bool(words) and words[0].endswith(".py")


def _imports_package_of(checkout: str, installed: str) -> bool:
    """Whether all folders of the working directory and PYTHONPATH that have the package have that of the checkout.

    If none has it, it is what is installed. A folder with a stand-in for fairseq's programs takes real Python.
    """
    places = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if any(os.path.isdir(os.path.join(place, "fairseq_cli")) for place in places):
        return False
    found = [place for place in (os.path.join(place, "fairseq_plugins") for place in places) if os.path.isdir(place)]
    found = found or list(filter(None, [installed]))
    return bool(found) and all(os.path.samefile(place, os.path.join(checkout, "fairseq_plugins")) for place in found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
