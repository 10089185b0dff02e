"""One comparison while it runs: one track per encoder, filled by the drawing thread and read by the page.

`compare` is what both the page and the API call: an async generator that waits in the queue for each of its turns, and
reports until all pictures are there. Closing it, as a cancelled event and a closed tab do, stops the drawing after the
current step.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from app.look import preview_of
from app.models import Models, names_only
from app.reading import Maps, overlay_url, watch_attention
from app.request import Request
from app.waiting import Client, client_of
from debias_sd.comparison import TITLES, Sentence, draw_prompt, judge_sentences, sentences_for
from debias_sd.measure.judges import Verdict, unjudged
from debias_sd.measure.reports.pictures import says_drawn
from debias_sd.measure.shares import Score, score_of

if TYPE_CHECKING:
    import gradio as gr

_LOG = logging.getLogger("app")
_LOOK = 0.15  # seconds between two looks at the drawing thread
_TURN = 5.0  # seconds, to the end of a picture: most comparisons are drawn in one, long ones let others in
_BEAT = 1.0  # seconds: how long the page hears nothing at most; gradio sees a closed tab at the next word


class StoppedError(Exception):
    """The person cancelled, or left."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """One finished picture, uint8 [height, width, 3], and what became of the prompt in it."""

    seed: int
    image: np.ndarray
    seconds: float
    verdicts: tuple[Verdict, ...]
    score: Score
    maps: tuple[str | None, ...] = ()
    """Of a real pipeline: a heatmap per sentence as a data address; empty for the embedded world."""


@dataclasses.dataclass
class Track:
    """One encoder's side of a run. `state`: waiting, drawing, done, failed or stopped."""

    name: str
    window: int | None  # tokens that are read in all, None: every one
    wanted: int
    steps: int
    state: str = "waiting"
    pictures: list[Picture] = dataclasses.field(default_factory=list)
    step: int = 0
    started: float = 0.0
    preview: np.ndarray | None = None
    fault: str = ""
    is_judged: bool = False
    """While a judge looks at a picture that is drawn."""

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    @property
    def left(self) -> float | None:
        """Seconds to the end of this encoder's pictures, by the pace so far; None before the first step."""
        done = self.steps * len(self.pictures) + self.step
        spent = sum(picture.seconds for picture in self.pictures) + (time.monotonic() - self.started)
        return spent / done * (self.steps * self.wanted - done) if done and self.state == "drawing" else None


@dataclasses.dataclass
class Run:
    """A request on its way to pictures. `before`: people in the queue before it; None while it is drawn."""

    request: Request
    tracks: list[Track]
    sentences: tuple[Sentence, ...] = ()
    before: int | None = None
    judge: dict[str, Any] | None = None
    """Who judges real pictures: name, meaning, thresholds; None where the checker does, or nobody."""
    earlier: Run | None = None
    """The run of the prompt before a sentence of it was moved, to show beside this one."""
    version: int = 0
    client: Client = Client()
    """Whose turns it takes in the queue."""
    is_gone: Callable[[], bool] = lambda: False
    """Whether nobody reads the answer any more."""
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    """Set by whoever cancels: the run ends after its current step."""

    def must_stop(self) -> bool:
        """Whether somebody has cancelled, or nobody reads the answer any more, which cancels it."""
        if self.is_gone():
            self.stop.set()
        return self.stop.is_set()

    def stop_all(self) -> None:
        """Mark what has not ended as stopped."""
        self.before = None
        for track in self.tracks:
            track.state = track.state if track.state in ("done", "failed") else "stopped"

    @property
    def is_over(self) -> bool:
        return all(track.state in ("done", "failed", "stopped") for track in self.tracks)


def start_run(request: Request, models: Models, whose: gr.Request | None = None) -> Run:
    """A run that has not begun; it ends when nobody reads what `whose` asked for; without it, never."""
    tracks = [Track(name, models.rulers[name].reach, request.seeds, request.steps) for name in request.encoders]
    run = Run(request, tracks, judge=models.about_judge)
    if whose is not None:
        run.client, run.is_gone = client_of(whose), models.listeners.gone(whose.session_hash)
    return run


async def compare(run: Run, models: Models) -> AsyncIterator[Run]:
    """Wait in the queue for each turn and draw; yields `run` whenever it has changed, and about once a second when not.

    Raises QueueFullError at once when the queue is full. Closing the generator frees the place, once the current step
    is done; so do `run.stop` and a listener who is gone.
    """
    ticket, drawing = models.queue.join(run.client), None
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drawing")
    models.stops.add(run.stop)
    left = deque((run.request.seed + number, track) for number in range(run.request.seeds) for track in run.tracks)
    try:
        while left:
            while not run.must_stop() and (before := ticket.before):
                run.before = before
                yield run
                for _ in range(3):  # the turn may come before the page has to hear something
                    await asyncio.sleep(_LOOK if ticket.before else 0)
            run.before = None
            if run.must_stop():
                break
            drawing = pool.submit(_draw, run, models, left)
            turn, seen, spoke = asyncio.wrap_future(drawing), -1, 0.0
            while not turn.done():
                if run.version != seen or time.monotonic() - spoke > _BEAT:
                    seen, spoke = run.version, time.monotonic()
                    yield run
                run.must_stop()
                await asyncio.wait({turn}, timeout=_LOOK)
            await turn
            ticket.pass_on()
        run.stop_all()
        yield run
    finally:
        run.stop.set()
        models.stops.discard(run.stop)
        if drawing is None:
            ticket.leave()
        else:  # the next in the queue begins when this one has really stopped
            drawing.add_done_callback(lambda _: ticket.leave())
        pool.shutdown(wait=False)


async def finish(run: Run, models: Models) -> None:
    """Draw a run that no page waits for, through the queue as everybody."""
    try:
        async for _ in compare(run, models):
            pass
    finally:
        run.stop_all()  # changes nothing when all is drawn


def draw_unseen(runs: Sequence[Run], models: Models) -> None:
    """Draw runs that no page waits for in a thread, one after the other; returns at once."""

    async def draw() -> None:
        for run in runs:
            if not models.is_ending:
                await finish(run, models)

    threading.Thread(target=lambda: asyncio.run(draw()), name="examples", daemon=True).start()


def _draw(run: Run, models: Models, left: deque[tuple[int, Track]]) -> None:
    """The drawing thread's turn: the next of the pictures that are `left`; a fault ends its own encoder only."""
    run.sentences = run.sentences or sentences_for(run.request.prompt, models.base)
    began = time.monotonic()
    while left and not run.stop.is_set() and time.monotonic() - began < _TURN:
        seed, track = left.popleft()
        if track.state != "failed":
            _draw_one(run, track, models, seed=seed)
        run.version += 1


def _draw_one(run: Run, track: Track, models: Models, *, seed: int) -> None:
    request, variant = run.request, models.variants[track.name]
    track.state, track.step, track.started, track.preview = "drawing", 0, time.monotonic(), None
    run.version += 1

    def on_step(done: int, latents: torch.Tensor) -> None:
        if run.stop.is_set():
            raise StoppedError
        track.step = done
        if done < request.steps:
            track.preview = preview_of(variant.pipe, latents)
        run.version += 1

    try:
        with contextlib.nullcontext() if models.is_checked else watch_attention(variant.pipe) as maps:
            image = draw_prompt(
                variant, request.prompt, seed=seed, steps=request.steps, guidance=request.guidance,
                negative=request.negative, side=request.side, on_step=on_step,
            )  # fmt: skip
        seconds = time.monotonic() - track.started
        verdicts, score = _judged(run, track, models, image)
        heatmaps = _heatmaps_of(run.sentences, maps, track.window)
        track.pictures.append(Picture(seed, image, seconds, verdicts, score, heatmaps))
        track.state = "done" if len(track.pictures) == track.wanted else "waiting"
    except StoppedError:
        track.state = "stopped"
    except Exception as error:  # whatever one encoder does, the others go on
        track.state, track.fault = "failed", _sentence_for(error, request, models)
    track.step, track.preview = 0, None


def _judged(run: Run, track: Track, models: Models, image: np.ndarray) -> tuple[tuple[Verdict, ...], Score]:
    """Judge a picture; a judge that fails leaves it without verdicts."""
    track.is_judged, run.version = True, run.version + 1
    try:
        verdicts = judge_sentences(models.judge, image, run.sentences, window=track.window)
    except Exception as error:  # whatever it is, the picture is drawn
        fault = _sentence_for(error, run.request, models, who="the judge")
        verdicts = tuple(unjudged(sentence.text, fault) for sentence in run.sentences)
    finally:
        track.is_judged = False
    return verdicts, score_of(verdicts, can_say_drawn=run.judge is None or says_drawn(run.judge))


def _heatmaps_of(sentences: tuple[Sentence, ...], maps: Maps | None, window: int | None) -> tuple[str | None, ...]:
    """A heatmap per sentence; None for those after the window. None at all where a prompt is read in parts."""
    if maps is None or window is None:
        return ()
    found = [maps.of(s.first, s.last) if s.first < window - 1 else None for s in sentences]
    return tuple(None if values is None else overlay_url(values) for values in found)


def _sentence_for(error: Exception, request: Request, models: Models, *, who: str = "this encoder") -> str:
    """What the panel says; details of a fault that is not the person's go to the operator's terminal."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        smaller = "choose a smaller size" if request.side else "choose fewer encoders"
        return f"out of memory; what this picture took is free again: {smaller}, or start the app with --dtype float16."
    if isinstance(error, ValueError):
        return names_only(str(error), models.sources)
    _LOG.exception("drawing failed", exc_info=error)
    return f"{who} failed ({type(error).__name__}); the terminal of the app has the details."
