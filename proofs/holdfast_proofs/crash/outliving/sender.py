"""A vendor's command line client: waits, then sends one request. Started as FILE HOW WAIT_S HOST PORT HEAD BODY MARK.

With HOW `detached` the one that sends has left its parent, its group and its session; the one that was started only
waits for its answer. MARK is there to be seen in the list of processes. Small on purpose: the suites start it thousands
of times.
"""

import os
import socket
import sys
import time

_, how, wait_s, host, port, head, body, _mark = sys.argv


def send() -> bytes:
    time.sleep(float(wait_s))
    with socket.create_connection((host, int(port)), timeout=10) as far_end:
        far_end.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        answer = b""
        while part := far_end.recv(65_536):
            answer += part
    return answer.partition(b"\r\n\r\n")[2]


def detach(answers: int) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(answers, send())
        os._exit(0)


if how == "detached":
    reader, writer = os.pipe()
    detach(writer)
    os.close(writer)
    sys.stdout.buffer.write(os.read(reader, 65_536))
else:
    sys.stdout.buffer.write(send())
