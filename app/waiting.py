"""The queue in front of a pipeline, and who still reads the answers.

Pipelines are not thread-safe, and all encoders of one base share its UNet, VAE and memory: one picture at a time.
Whoever has more to draw than fits a turn goes to the end and waits for the next one. The turns go round the addresses,
in an address round its sessions, in a session by arrival: many tickets of one client take the turns of that client, not
those of others. Nor do they take all places: the last ones are for addresses that have none.

An answer is a stream of server-sent events: of a session of the page or of gradio's client, or of one call of the API.
Gradio ends a job when its open stream breaks off; a job whose stream nobody ever opens would be drawn to its end.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from app.gate import App, Receive, Send, refuse
from app.request import WAITING

if TYPE_CHECKING:
    import gradio as gr


class QueueFullError(ValueError):
    """The queue has no room: one sentence for the person who came."""


@dataclasses.dataclass(frozen=True)
class Client:
    """Who a ticket belongs to: a network address and a session there; equal strings where only one is known."""

    address: str = ""
    session: str = ""


class Ticket:
    """A place in a queue; `leave` may be called from any thread, and more than once."""

    def __init__(self, queue: Queue, number: int) -> None:
        self._queue, self._number = queue, number

    @property
    def before(self) -> int:
        """How many have their turn before this one's next; 0 when it is its turn."""
        return self._queue.before(self._number)

    def pass_on(self) -> None:
        """End the turn and keep the place: the others' turns come first."""
        self._queue.pass_on(self._number)

    def leave(self) -> None:
        """Give the place up."""
        self._queue.leave(self._number)


class Queue:
    """One is served, up to `waiting` wait, one more is refused; a known address leaves a quarter of them to others."""

    def __init__(self, waiting: int = WAITING) -> None:
        self.waiting = waiting
        self._ticks = itertools.count()
        self._places: dict[int, Client] = {}
        self._since: dict[Hashable, int] = {}
        """When an address, and a client, last ended a turn; or came, if it has had none."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._places)

    def join(self, client: Client = Client()) -> Ticket:
        """Take the last place; raises QueueFullError past `waiting`, and past the places that one address may have."""
        with self._lock:
            there = len(self._places)
            if there > self.waiting:
                raise QueueFullError(f"{self.waiting} people wait already, no more can; try again in a minute.")
            held = sum(other.address == client.address != "" for other in self._places.values())
            if held and there > self.waiting - self.waiting // 4:
                raise QueueFullError(
                    f"{held} jobs from your address wait already, and the last places are for others; try again when "
                    "one of yours is done."
                )
            number = next(self._ticks)
            self._places[number] = client
            for key in (client.address, client):
                self._since.setdefault(key, number)
        return Ticket(self, number)

    def before(self, number: int) -> int:
        """How many have their turn before the holder of `number` has its next one."""
        with self._lock:
            return list(self._turns()).index(number)

    def pass_on(self, number: int) -> None:
        """The holder of `number` has had a turn."""
        with self._lock:
            if (client := self._places.get(number)) is not None:
                self._since[client.address] = self._since[client] = next(self._ticks)

    def leave(self, number: int) -> None:
        """Free the place of `number`, if it is still held; if it was its turn, it is the next client's."""
        with self._lock:
            if number not in self._places:
                return
            had_turn = next(self._turns()) == number
            client = self._places.pop(number)
            here = {key for other in self._places.values() for key in (other.address, other)}
            for key in (client.address, client):
                if key not in here:
                    del self._since[key]
                elif had_turn:
                    self._since[key] = next(self._ticks)

    def _turns(self) -> Iterator[int]:
        """The numbers in the order of their next turns."""
        sessions: dict[Client, list[int]] = {}
        for number, client in self._places.items():
            sessions.setdefault(client, []).append(number)
        addresses: dict[str, list[list[int]]] = {}
        for client in sorted(sessions, key=self._since.__getitem__):
            addresses.setdefault(client.address, []).append(sessions[client])
        return _in_turn(list(_in_turn(addresses[key])) for key in sorted(addresses, key=self._since.__getitem__))


def _in_turn(rows: Iterable[list[int]]) -> Iterator[int]:
    """One of each row, then the next of each.

    >>> list(_in_turn([[1, 2, 3], [4], [5, 6]]))
    [1, 4, 5, 2, 6, 3]
    """
    return (number for layer in itertools.zip_longest(*rows) for number in layer if number is not None)


UNHEARD = 30.0  # seconds: long enough to type the second command of docs/app.md, short enough to wait for
_STREAM = re.compile(r"/gradio_api/(?:queue/data|call/(?:v2/)?compare/(\w+))/?")


class Listeners:
    """The open streams by session; a call of the API is a session of its own, named by its event."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def gone(self, session: str, *, patience: float = UNHEARD) -> Callable[[], bool]:
        """A question to ask now and then: has nobody listened to `session` for `patience` seconds?"""
        heard = time.monotonic()

        def is_gone() -> bool:
            nonlocal heard
            if self._open[session]:
                heard = time.monotonic()
            return time.monotonic() - heard > patience

        return is_gone

    def middleware(self, app: App, expected: Callable[[str], bool]) -> App:
        """ASGI middleware that counts the streams while they are open; 404 for one on which nothing will come."""

        async def counted(scope: dict[str, Any], receive: Receive, send: Send) -> None:
            session = _session_of(scope)
            if session is None:
                await app(scope, receive, send)
                return
            if not expected(session):
                await refuse(send, 404, "there is no such job, or its answer has been read; send the request again.")
                return
            self._open[session] += 1
            try:
                await app(scope, receive, send)
            finally:
                self._open[session] -= 1
                if not self._open[session]:
                    del self._open[session]

        return counted


def _session_of(scope: dict[str, Any]) -> str | None:
    """The session whose answers a request reads."""
    found = _STREAM.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
    if found is None:
        return None
    named = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])
    return found[1] or named[-1] or None


def client_of(request: gr.Request) -> Client:
    """Whose turn a request takes: its address and session. Behind this machine's own address all may stand, so that
    there each session counts as one."""
    host, session = request.client.host if request.client else "", request.session_hash or ""
    try:
        is_own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_own = True
    return Client(session if is_own else host, session)
