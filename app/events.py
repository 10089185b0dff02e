"""What happens when a person does something on the page: each method is one event, and returns what changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr

from app.keep import downloads_html, gallery_html
from app.live_run import Picture, Run, compare, start_run
from app.models import Models
from app.prompt_box import examples, move_sentence, sentences_html, surprise
from app.reading_tab import read_all, reading_html
from app.request import Request, check_request, read_json, read_query
from app.session import Ballot, Session, tally_html
from app.settings import PROMPT_CHARACTERS, Settings
from app.stage import (
    blind_panel_html,
    blind_progress_html,
    blind_strip_html,
    panel_html,
    status_html,
    status_of,
    strip_html,
)
from debias_sd.comparison import TITLES

OWN_SIDE = 0  # in the list of sizes: the pipeline's own; gradio shows nothing for None
_FIELDS = ("prompt", "encoders", "negative", "seed", "seeds", "steps", "guidance", "side")


class Events:
    """The page's events; a fault of the person's becomes a notice of one sentence."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models, self.settings = models, settings
        self.example: Run | None = None
        self.examples = examples(settings)
        self._title_of = {prompt: title for title, prompt in self.examples.items()}

    def choose(self, title: str | None) -> Any:
        """The prompt of the chosen example."""
        return self.examples.get(title, gr.skip())

    def show_prompt(self, prompt: str | None) -> tuple[str, str | None]:
        """The list of sentences for the text in the box, and the title of the example that it is, if it is one."""
        prompt = prompt or ""
        sentences = sentences_html(prompt) if len(prompt) <= PROMPT_CHARACTERS else ""
        return sentences, self._title_of.get(prompt)

    def move(self, prompt: str, event: gr.EventData) -> str:
        """The prompt after a sentence was moved, swapped or dropped."""
        return move_sentence(prompt, event._data) if isinstance(event._data, dict) else prompt

    def surprise(self, shown: str) -> str:
        """A prompt other than the one in the box."""
        return surprise(random.SystemRandom(), self.settings, shown=shown)

    def _checked(self, values: tuple[Any, ...]) -> Request:
        try:
            raw = dict(zip(_FIELDS, values, strict=True))
            return check_request(raw | {"side": raw["side"] or None}, self.settings)
        except ValueError as error:
            raise gr.Error(_capital(str(error)), print_exception=False) from None

    async def draw(
        self, session: Session, blind: bool, request: gr.Request, *values: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Draw, and show each panel as it changes; the last answer shows what is kept, too."""
        run = start_run(self._checked(values), self.models, request)
        session.run = run
        names = run.request.encoders
        is_blind = blind and len(names) > 1
        session.ballot = Ballot.shuffled(names, run.request.seeds, random.SystemRandom()) if is_blind else None
        shown: list[str] = []
        try:
            async for state in compare(run, self.models):
                shown, update = self._update(session, state, shown)
                yield *update, *_nothing_new()
        except ValueError as error:  # the queue is full
            session.ballot = None
            run.stop_all()
            yield *self._update(session, run, [], over=True)[1], *_nothing_new()
            raise gr.Error(_capital(str(error)), print_exception=False) from None
        if session.ballot is None:
            session.keep(run)
        elif any(track.state == "stopped" for track in run.tracks):  # nothing to vote on
            session.ballot = None
        kept = await asyncio.to_thread(self.show_kept, session, request)
        yield *self._update(session, run, [], over=True)[1], *kept

    def _update(
        self, session: Session, run: Run, before: list[str], *, over: bool = False, words: str | None = None
    ) -> tuple[list[str], tuple[Any, ...]]:
        """New panels, and the updates of all outputs; a panel that is as before is skipped."""
        panels = self._panels(session, run, over=over)
        old = before or [None] * len(panels)
        updates = [
            gr.skip() if was == html else gr.update(value=html, visible=bool(html))
            for was, html in zip(old, panels, strict=True)
        ]
        voting = over and session.is_blind
        status = self._blind_status(session, run, over=over) if session.is_blind else words or status_of(run)
        return panels, (
            status_html(status, blind=session.is_blind, prompt=run.request.prompt if over else None)
            + (blind_strip_html(self._round(session, run, over=over)) if session.is_blind else strip_html(run)),
            *updates,
            gr.update(interactive=over),
            gr.update(interactive=not over),
            gr.update(visible=voting),
            tally_html(session.tally, self._titles()) if session.tally.rounds and not session.is_blind else "",
        )

    def _panels(self, session: Session, run: Run, *, over: bool) -> list[str]:
        """One string a panel of the page; empty ones are hidden."""
        if not session.is_blind:
            panels = {track.name: panel_html(run, track) for track in run.tracks}
            return [panels.get(name, "") for name in self.models.rulers]
        if over:
            panels = [blind_panel_html(picture, i) for i, picture in enumerate(self._round(session, run, over=True))]
        else:
            panels = [blind_progress_html(track, place) for place, track in enumerate(run.tracks)]
        return panels + [""] * (len(self.models.rulers) - len(panels))

    @staticmethod
    def _round(session: Session, run: Run, *, over: bool) -> list[Picture | None]:
        """The pictures of a blind round in its order; none while they are drawn, and of an encoder that failed."""
        tracks, number = {track.name: track for track in run.tracks}, session.ballot.round
        seed = run.request.seed + number if over else None
        return [
            next((picture for picture in tracks[name].pictures if picture.seed == seed), None)
            for name in session.ballot.orders[number]
        ]

    def _blind_status(self, session: Session, run: Run, *, over: bool) -> str:
        if over:
            return (
                f"Round {session.ballot.round + 1} of {len(session.ballot.orders)}: which picture fits the prompt best?"
            )
        if run.before is not None:
            return f"{run.before} before you"
        done = sum(len(track.pictures) for track in run.tracks)
        return f"Drawing: {done} of {len(run.tracks) * run.request.seeds} pictures"

    def _titles(self) -> dict[str, str]:
        return {name: TITLES.get(name, name) for name in self.models.rulers}

    async def show_example(self, session: Session, request: gr.Request) -> AsyncIterator[tuple[Any, ...]]:
        """The example that was drawn when the app started, unless the page's link or its person wants something."""
        run = self.example
        wants_other = run is None or "prompt" in request.query_params
        while not wants_other and not run.is_over and session.run is None:
            await asyncio.sleep(0.3)
        if wants_other or session.run is not None or any(track.state != "done" for track in run.tracks):
            yield *(gr.skip() for _ in range(len(self.models.rulers) + 5)), *_nothing_new()
            return
        session.keep(run)
        words = status_of(run).replace("Done in", "The example above, drawn when the app started, in")
        kept = await asyncio.to_thread(self.show_kept, session, request)
        yield *self._update(session, run, [], over=True, words=words)[1], *kept

    def cancel(self, session: Session) -> None:
        """Stop the run; its own event shows that it has."""
        session.cancel()

    def voter(self, place: int | None) -> Callable[[Session, gr.Request], tuple[Any, ...]]:
        """The event of one vote button; the answer to the last vote shows what is kept, too."""

        def vote(session: Session, request: gr.Request) -> tuple[Any, ...]:
            if session.run is None or not session.is_blind:
                raise gr.Error("There is nothing to vote on; start a blind comparison.", print_exception=False)
            order = session.ballot.orders[session.ballot.round]
            session.ballot.vote(place if place is None or place < len(order) else None)
            session.tally.add(order, session.ballot.votes[-1])
            kept = _nothing_new()
            if session.ballot.is_over:
                session.keep(session.run)
                kept = self.show_kept(session, request)
            return *self._update(session, session.run, [], over=True)[1], *kept

        return vote

    async def read(self, prompt: str, names: list[str]) -> str:
        """The plots of the Reading tab."""
        request = self._checked((prompt, names, "", 0, 1, 1, 1.0, None))
        readings = await asyncio.to_thread(read_all, self.models, request.encoders, prompt)
        return await asyncio.to_thread(reading_html, readings, prompt)

    def show_kept(self, session: Session, request: gr.Request) -> tuple[str, ...]:
        """Gallery, downloads, command, link and JSON of the chosen comparison."""
        run = session.kept[session.chosen] if 0 <= session.chosen < len(session.kept) else None
        gallery = gallery_html(session.kept, session.chosen)
        if run is None:
            return gallery, downloads_html(None, self.settings), "", "", ""
        query = run.request.as_query()
        address = str(request.request.base_url).rstrip("/") if request.request is not None else ""
        link = f"{address}/?{query}" if query else "too long for a link; use the JSON below"
        return (
            gallery,
            downloads_html(run, self.settings),
            run.request.as_command(self.settings),
            link,
            run.request.as_json(),
        )

    def pick(self, session: Session, request: gr.Request, event: gr.EventData) -> tuple[str, ...]:
        """Choose a comparison of the gallery."""
        index = event._data.get("index") if isinstance(event._data, dict) else None
        if isinstance(index, int) and 0 <= index < len(session.kept):
            session.chosen = index
        return self.show_kept(session, request)

    def use_json(self, text: str) -> tuple[Any, ...]:
        """Fill the page with pasted settings."""
        try:
            return self._fields(check_request(read_json(text), self.settings))
        except ValueError as error:
            raise gr.Error(_capital(str(error)), print_exception=False) from None

    def use_link(self, request: gr.Request) -> tuple[Any, ...]:
        """Fill the page with the settings in its own address, if there are any."""
        raw = read_query(str(request.query_params))
        if "prompt" not in raw:
            return tuple(gr.skip() for _ in _FIELDS)
        try:
            return self._fields(check_request(raw, self.settings))
        except ValueError as error:
            raise gr.Error(_capital(str(error)), print_exception=False) from None

    @staticmethod
    def _fields(request: Request) -> tuple[Any, ...]:
        values = request.as_dict()
        values["side"] = values["side"] or OWN_SIDE
        return tuple(values[name] for name in _FIELDS)


def _nothing_new() -> tuple[Any, ...]:
    """The kept part of an answer, as it is: gallery, downloads, command, link and JSON."""
    return tuple(gr.skip() for _ in range(5))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
