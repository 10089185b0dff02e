"""The line in front of a pipeline: bounded, in turns, so that no client holds it.

Pipelines are not thread-safe, and all encoders of one base share its UNet, VAE and memory: one picture at a time.
Whoever has more to draw than fits a turn goes behind the others and waits for the next one. The turns go round the
addresses, in an address round its sessions, in a session by arrival: many tickets of one client take the turns of that
client, not those of others. Nor do they take all places: the last ones are for addresses that have none.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Hashable, Iterable, Iterator

from app.settings import WAITING


class LineFullError(ValueError):
    """The line has no room: one sentence for the person who came."""


@dataclasses.dataclass(frozen=True)
class Client:
    """Who a ticket belongs to: a network address and a session there; equal strings where only one is known."""

    address: str = ""
    session: str = ""


class Ticket:
    """A place in a line; `leave` may be called from any thread, and more than once."""

    def __init__(self, line: Line, number: int) -> None:
        self._line, self._number = line, number

    @property
    def before(self) -> int:
        """How many have their turn before this one's next; 0 when it is its turn."""
        return self._line.before(self._number)

    def pass_on(self) -> None:
        """End the turn and keep the place: the others' turns come first."""
        self._line.pass_on(self._number)

    def leave(self) -> None:
        """Give the place up."""
        self._line.leave(self._number)


class Line:
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
        """Take the last place; raises LineFullError past `waiting`, and past the places that one address may have."""
        with self._lock:
            there = len(self._places)
            if there > self.waiting:
                raise LineFullError(f"{self.waiting} people wait already, no more can; try again in a minute.")
            held = sum(other.address == client.address != "" for other in self._places.values())
            if held and there > self.waiting - self.waiting // 4:
                raise LineFullError(
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
