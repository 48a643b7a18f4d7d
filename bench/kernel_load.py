"""Callers and their agent: `python -m bench.kernel_load PORT full|create CONNECTIONS COUNT`.

`full` is a whole execution each: created, assigned over a stream, a tool call, its result, completed.
"""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import json
import socket
import sys
import time
from typing import Any

import gevent
from gevent.event import AsyncResult

from bench.rounds import latencies

AGENT = "bench"


class Link:
    """One kept-alive connection to the kernel door."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: Any, status: bytes = b"200") -> bytes:
        raw = json.dumps(body).encode()
        head = f"POST /v0{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        self._socket.sendall(head + raw)
        answer = b""
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._more()
        at = answer.lower().index(b"content-length: ") + 16
        length = int(answer[at : answer.index(b"\r\n", at)])
        while len(answer) < end + 4 + length:
            answer += self._more()
        if answer[9:12] != status:
            raise ValueError(answer.decode())
        return answer[end + 4 :]

    def _more(self) -> bytes:
        part = self._socket.recv(65536)
        if not part:
            raise ConnectionError("the server closed a connection")
        return part


class Agent:
    """The stream on which executions are assigned, and the callers waiting for them."""

    def __init__(self, port: int) -> None:
        self._waiting: dict[str, AsyncResult] = {}
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        path = f"/v0/agents/stream?agent_id={AGENT}&consumer_id=bench"
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        gevent.spawn(self._read)

    def session(self, id: str) -> str:
        """The session of an execution, once it has been assigned."""
        waiting = self._waiting.setdefault(id, AsyncResult())
        found = str(waiting.get(timeout=60))
        del self._waiting[id]
        return found

    def _read(self) -> None:
        buffer = b""
        while part := self._socket.recv(65536):
            *frames, buffer = (buffer + part).split(b"\n\n")
            for frame in frames:
                if b"event: execution.assigned" in frame:
                    told = json.loads(frame[frame.index(b"data: ") + 6 :])
                    self._waiting.setdefault(told["execution_id"], AsyncResult()).set(told["session_id"])


def whole(link: Link, agent: Agent) -> None:
    """One execution from creation to end."""
    created = json.loads(link.post("/executions", {"agent_id": AGENT, "input": {"n": 1}}, b"201"))
    id = created["id"]
    who = {"execution_id": id, "session_id": agent.session(id)}
    call = {"type": "invoke_tool", "tool_id": "tool", "arguments": {"a": 1}}
    step = json.loads(link.post("/agents/intent", {**who, "intent": call}))["step_id"]
    link.post("/agents/step-result", {**who, "step_id": step, "success": True, "data": {"b": 2}})
    link.post("/agents/intent", {**who, "intent": {"type": "complete", "output": {"c": 3}}})


def main(port: int, kind: str, connections: int, count: int) -> None:
    """Each connection starts its next execution when the last has ended, until all are made."""
    agent = Agent(port) if kind == "full" else None
    links = [Link(port) for _ in range(connections)]
    times: list[float] = []

    def work(link: Link, left: Any) -> None:
        for _ in left:
            began = time.perf_counter()
            if agent is not None:
                whole(link, agent)
            else:
                link.post("/executions", {"agent_id": "nobody", "input": {"n": 1}}, b"201")
            times.append(time.perf_counter() - began)

    def run(most: int) -> float:
        left, began = iter(range(most)), time.perf_counter()
        gevent.joinall([gevent.spawn(work, link, left) for link in links], raise_error=True)
        return time.perf_counter() - began

    run(max(connections, count // 20))
    times.clear()
    cpu, took = time.process_time(), run(count)
    print(json.dumps({"seconds": took, "client_cpu": time.process_time() - cpu, **latencies(times)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
