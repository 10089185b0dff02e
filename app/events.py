"""What happens when a person does something on the page: each method is one event, and returns what changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr

from app.keep import Ballot, Session, Sessions, gallery_html, share_html, tally_html
from app.live_run import Picture, Run, compare, start_run
from app.models import Models
from app.prompts import examples, move_sentence, moved, surprise
from app.reading import read_all, reading_html
from app.request import Request, Settings, check_request, read_query
from app.result import mean_of_many, result_of, room_of, scores_html, status_html, status_of
from app.stage import blind_panel_html, blind_progress_html, empty_html, panel_html, votes_html
from app.table import fault_of, live_table, run_table

OWN_SIDE = 0  # in the list of sizes: the pipeline's own; gradio shows nothing for None
_FIELDS = ("prompt", "encoders", "negative", "seed", "seeds", "steps", "guidance", "side")
_KEPT = 2  # outputs of what is kept: gallery and share


class Events:
    """The page's events; a fault of the person's becomes a notice of one sentence."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models, self.settings = models, settings
        self.examples = examples(settings)
        self.sessions = Sessions()
        self.ahead: dict[str, Run] = {}
        """Examples that are drawn when the app starts, by prompt; the first one is what a page begins with."""
        self._title_of = {prompt: title for title, prompt in self.examples.items()}

    def draw_ahead(self) -> list[Run]:
        """Runs of the embedded world's examples, to be drawn before anybody asks; they are shown once they are over."""
        runs = [
            start_run(check_request({"prompt": text}, self.settings), self.models) for text in self.examples.values()
        ]
        self.ahead = {run.request.prompt: run for run in runs}
        return runs

    def drawn_ahead(self, prompt: str) -> Run | None:
        """The example of this prompt, if all its pictures are there."""
        run = self.ahead.get(prompt)
        return run if run is not None and all(track.state == "done" for track in run.tracks) else None

    def choose(self, session: Session, title: str | None) -> tuple[Any, ...]:
        """The prompt of the chosen example, and its comparison where it was drawn ahead."""
        prompt = self.examples.get(title or "")
        run = self.drawn_ahead(prompt) if prompt is not None and not session.is_busy else None
        if run is None:
            return gr.skip() if prompt is None else prompt, *self._nothing_new()
        session.ballot = None
        session.keep(run)
        return prompt, *self._update(session, run, [], over=True)[1], *self.show_kept(session)

    def title_of(self, prompt: str | None) -> str | None:
        """The title of the example that the text in the box is, if it is one."""
        return self._title_of.get(prompt or "")

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
            raise _notice(error) from None

    async def draw(
        self, session: Session, blind: bool, request: gr.Request, *values: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Draw, and show each panel as it changes; the last answer shows what is kept, too."""
        run = start_run(self._checked(values), self.models, request)
        async for answer in self._drawn(session, run, blind=blind):
            yield answer

    def mover(self, kind: str) -> Callable[..., AsyncIterator[tuple[Any, ...]]]:
        """The event of a button that moves a sentence, draws the changed prompt and shows both side by side."""

        async def move_and_draw(
            session: Session, request: gr.Request, prompt: str, *rest: Any
        ) -> AsyncIterator[tuple[Any, ...]]:
            before = self._checked((prompt, *rest))
            try:
                after = self._checked((moved(prompt, kind), *rest))
            except ValueError as error:
                raise _notice(error) from None
            earlier = session.run if session.shows(before) else self.drawn_ahead(prompt)
            if earlier is None or earlier.request != before:
                earlier = start_run(before, self.models, request)
                async for answer in self._drawn(session, earlier, blind=False):
                    yield gr.skip(), *answer
            if any(track.state == "stopped" for track in earlier.tracks):
                return
            run = start_run(after, self.models, request)
            run.earlier = earlier
            async for answer in self._drawn(session, run, blind=False):
                yield after.prompt, *answer

        return move_and_draw

    async def _drawn(self, session: Session, run: Run, *, blind: bool) -> AsyncIterator[tuple[Any, ...]]:
        session.cancel()
        session.run = run
        names = run.request.encoders
        is_blind = blind and len(names) > 1
        session.ballot = Ballot.shuffled(names, run.request.seeds, random.SystemRandom()) if is_blind else None
        shown: list[str] = []
        try:
            async for state in compare(run, self.models):
                shown, update = self._update(session, state, shown)
                yield *update, gr.skip(), ""
        except ValueError as error:  # the queue is full
            session.ballot = None
            run.stop_all()
            yield *self._update(session, run, [], over=True)[1], gr.skip(), ""
            raise _notice(error) from None
        if session.ballot is None:
            session.keep(run)
        elif any(track.state == "stopped" for track in run.tracks):  # nothing to vote on
            session.ballot = None
        kept = await asyncio.to_thread(self.show_kept, session)
        yield *self._update(session, run, [], over=True)[1], *kept

    def shown(self, run: Run) -> list[str]:
        """What a page shows of a run that is over: status, panels and table."""
        return [self._status(run), *self._panels(Session(), run, over=True), run_table(run, self.models)]

    def empty(self, prompt: str) -> tuple[list[str], str]:
        """What a page shows before the first run: panels of the chosen encoders, and the table of its prompt."""
        chosen = [name for name in self.settings.chosen if name in self.models.rulers]
        panels = [empty_html(r.title, r.reach) if name in chosen else "" for name, r in self.models.rulers.items()]
        return panels, live_table(prompt, self.models, chosen)

    def _status(self, run: Run) -> str:
        return status_html(
            result_of(run), state="done", prompt=run.request.prompt, mean=mean_of_many(run, self.models.measured)
        )

    def _update(
        self, session: Session, run: Run, before: list[str], *, over: bool = False
    ) -> tuple[list[str], tuple[Any, ...]]:
        """New panels and table, and the updates of all outputs; what is as before is skipped."""
        is_blind = session.is_blind
        parts = [*self._panels(session, run, over=over), "" if is_blind else run_table(run, self.models)]
        old = before or [None] * len(parts)
        updates = [
            gr.skip() if was == html else gr.update(value=html, visible=bool(html))
            for was, html in zip(old, parts, strict=True)
        ]
        if is_blind:
            status = status_html(self._blind_status(session, run, over=over), state="blind", blind=True)
        elif over:
            status = self._status(run)
        else:
            state = "waiting" if run.before is not None else "drawing"
            mean = mean_of_many(run, self.models.measured)
            status = status_html(status_of(run), state=state, mean=mean, room=room_of(run))
        tally = (
            tally_html(session.tally, {name: r.title for name, r in self.models.rulers.items()})
            if session.tally.rounds and not is_blind
            else ""
        )
        return parts, (
            status,
            *updates,
            scores_html(run) if over and not is_blind else "",
            votes_html(len(run.tracks), session.ballot.round) if over and is_blind else "",
            tally,
            *(gr.update(interactive=over) for _ in range(4)),  # Compare and the moves
            gr.update(interactive=not over),
        )

    def _panels(self, session: Session, run: Run, *, over: bool) -> list[str]:
        """One string a panel of the page; empty ones are hidden."""
        if not session.is_blind:
            panels = {track.name: panel_html(run, track) for track in run.tracks}
            return [panels.get(name, "") for name in self.models.rulers]
        if over:
            panels = [blind_panel_html(picture, i) for i, picture in enumerate(self._round(session, run))]
        else:
            panels = [blind_progress_html(track, place) for place, track in enumerate(run.tracks)]
        return panels + [""] * (len(self.models.rulers) - len(panels))

    @staticmethod
    def _round(session: Session, run: Run) -> list[Picture | None]:
        """The pictures of a blind round in its order; none of an encoder that failed."""
        tracks, number = {track.name: track for track in run.tracks}, session.ballot.round
        seed = run.request.seed + number
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

    def begin(self, fresh: Session, key: str, typed: str, request: gr.Request) -> tuple[Any, ...]:
        """A page that was just opened: with what it held before a reload, or the first example in its gallery.

        `key` and `typed` are what its tab remembers: its session, and the text in the box. A link says otherwise.
        """
        session = self.sessions.resume(key, fresh)
        is_back, is_linked = session is not fresh, "prompt" in request.query_params
        if not session.kept and not is_linked and (example := self.drawn_ahead(next(iter(self.examples.values())))):
            session.run = example
            session.keep(example)
        fields, shown = [gr.skip() for _ in _FIELDS], self._nothing_new()[:-_KEPT]
        gallery, share = self.show_kept(session)
        if is_back and not is_linked and session.kept and not session.is_busy:
            run = session.run = session.kept[session.chosen]
            session.ballot, fields = None, list(self._fields(run.request))
            shown = self._update(session, run, [], over=True)[1]
        if typed and not is_linked and fault_of(typed) is None:
            fields[0] = typed
        return session, *fields, *shown, gallery, share

    def cancel(self, session: Session) -> None:
        """Stop the run; its own event shows that it has."""
        session.cancel()

    def vote(self, session: Session, event: gr.EventData) -> tuple[Any, ...]:
        """One vote of a blind round; the answer to the last one shows what is kept, too."""
        if session.run is None or not session.is_blind or not session.run.is_over:
            raise _notice(ValueError("there is nothing to vote on; start a blind comparison."))
        vote = event._data if isinstance(event._data, dict) else {}
        if vote.get("round") != session.ballot.round:  # a second click, on pictures that nobody has seen
            return self._nothing_new()
        place = vote.get("place")
        order = session.ballot.orders[session.ballot.round]
        session.ballot.vote(place if isinstance(place, int) and 0 <= place < len(order) else None)
        session.tally.add(order, session.ballot.votes[-1])
        kept: tuple[Any, ...] = (gr.skip(), "")
        if session.ballot.is_over:
            session.keep(session.run)
            kept = self.show_kept(session)
        return *self._update(session, session.run, [], over=True)[1], *kept

    async def read(self, prompt: str, names: list[str]) -> str:
        """The plots of what each encoder looks at."""
        request = self._checked((prompt, names, "", 0, 1, 1, 1.0, None))
        readings = await asyncio.to_thread(read_all, self.models, request.encoders, prompt)
        return await asyncio.to_thread(reading_html, readings, prompt)

    def show_kept(self, session: Session) -> tuple[str, ...]:
        """The gallery, and what can be taken along of the chosen comparison."""
        run = session.kept[session.chosen] if 0 <= session.chosen < len(session.kept) else None
        return gallery_html(session.kept, session.chosen), share_html(run, self.models, self.settings)

    def pick(self, session: Session, event: gr.EventData) -> tuple[Any, ...]:
        """Show a comparison of the gallery again, with its settings."""
        index = event._data.get("index") if isinstance(event._data, dict) else None
        if not isinstance(index, int) or not 0 <= index < len(session.kept) or session.is_busy:
            return *(gr.skip() for _ in _FIELDS), *self._nothing_new()
        session.chosen, session.ballot = index, None
        run = session.run = session.kept[index]
        return *self._fields(run.request), *self._update(session, run, [], over=True)[1], *self.show_kept(session)

    def use_link(self, request: gr.Request) -> tuple[Any, ...]:
        """Fill the page with the settings in its own address, if there are any."""
        raw = read_query(str(request.query_params))
        if "prompt" not in raw:
            return tuple(gr.skip() for _ in _FIELDS)
        try:
            return self._fields(check_request(raw, self.settings))
        except ValueError as error:
            raise _notice(error) from None

    def _nothing_new(self) -> tuple[Any, ...]:
        """All outputs of a run as they are."""
        return tuple(gr.skip() for _ in range(len(self.models.rulers) + 10 + _KEPT))

    @staticmethod
    def _fields(request: Request) -> tuple[Any, ...]:
        values = request.as_dict()
        values["side"] = values["side"] or OWN_SIDE
        return tuple(values[name] for name in _FIELDS)


def _notice(error: ValueError) -> gr.Error:
    text = str(error)
    return gr.Error(text[:1].upper() + text[1:], print_exception=False)
