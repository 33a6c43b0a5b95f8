"""A remote shell whose command is no descendant of convoy, as with ssh. The end of the shell ends the command's
standard input, and nothing else. `serve` plays sshd in the test; as a program this file is the shell:
  detached_shell.py SOCKET HOST COMMAND..."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading

END = b"\0ended with "  # and the exit code, after the command's output


def answer(connection, shell):
    request = b""
    while not request.endswith(b"\n"):  # what follows is the command's input
        request += connection.recv(1)
    command = subprocess.Popen([*shell, *json.loads(request)], stdin=connection, stdout=connection, stderr=connection)
    code = command.wait()
    try:
        connection.sendall(END + str(code if code >= 0 else 255).encode())
    except OSError:
        pass  # the shell was killed
    connection.close()


def serve(path, shell):
    """Runs the command of each connection to `path` by `shell`, in threads. Returns the value of
    launch.remote_shell."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def accept():
        while True:
            threading.Thread(target=answer, args=(listener.accept()[0], shell), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"[{sys.executable}, {pathlib.Path(__file__).resolve()}, {path}]"


def forward(connection):
    while data := os.read(0, 65536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    server.sendall(json.dumps(sys.argv[2:]).encode() + b"\n")
    threading.Thread(target=forward, args=(server,), daemon=True).start()
    while data := server.recv(65536):
        output, ended, code = data.partition(END)
        os.write(1, output)
        if ended:
            os._exit(int(code))
    os._exit(255)
