"""The page: its parts and which event does what. Everything that it shows is made elsewhere."""

from __future__ import annotations

import asyncio
import threading
from html import escape
from urllib.parse import urlsplit

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware

from app import look
from app.events import OWN_SIDE, Events
from app.gate import BodyLimit, Gate, Hosts, Preview
from app.keep import Session, share_html
from app.live_run import Run, draw_unseen, finish
from app.models import Models
from app.prompts import MOVES
from app.request import GUIDANCE, NEGATIVE_CHARACTERS, PROMPT_CHARACTERS, SEED, SEEDS, SIDES, STEPS, Settings
from app.result import scores_html, status_html
from app.routes import Page, Posted, check_posted, compare_endpoint, refused
from app.table import table_route
from debias_sd.commands.arguments import EMBEDDED, REAL
from debias_sd.commands.terminal import say

TITLE = "Which text encoder reads the end of your prompt?"
_DESCRIPTION = (
    "One prompt, one seed, several text encoders of Stable Diffusion side by side: which sentences did CLIP, Long-CLIP "
    "and DeBias-CLIP draw?"
)
_WHAT = (
    "Stable Diffusion's text encoder, CLIP, reads 77 tokens of a prompt and drops the rest; Long-CLIP and DeBias-CLIP "
    "read 248. Each picture is drawn from the same prompt and the same noise, only the encoder differs. "
)
_WORLD = (
    "The models that come with the app draw coloured shapes in nine places, so that a checker can read every picture "
    "back and say which sentences are in it."
)
_REAL = "The table says which sentences are in it, if whoever started the app named a judge."
_START = "Press Compare: each encoder draws this prompt."
_MARKS = (
    "✓ drawn, ◐ in part, ✕ missing, ? unsure, – not read (after the window), · not judged. Late details: what the "
    "second half of the sentences adds to the first one. In brackets: 95 % interval over seeds."
)
_PICK = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-pick]");
  if (button) trigger("pick", { index: Number(button.dataset.pick) });
});"""
_VOTE = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-place]");
  if (button) trigger("vote", { place: Number(button.dataset.place), round: Number(button.dataset.round) });
});"""
_TO_STAGE = """(prompt) => { if (prompt.trim()) window.toStage(); }"""
_NEXT_ROUND = "() => { window.nextRound(); }"
_DRAW_LINK = "() => { if (new URLSearchParams(location.search).has('prompt')) document.querySelector('#go').click(); }"
_REMEMBERED = "(session) => [session, window.tabKey(), window.typed()]"
_QUICK = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
_TOLD = _QUICK | {"queue": True}  # events that may refuse: only a queued one's sentence reaches the page


def build_demo(models: Models, settings: Settings, *, ahead: bool = False) -> Page:
    """The whole page. `ahead`: draw the first example now, so that the page begins with it."""
    with Page(title=TITLE, analytics_enabled=False) as demo:
        session, events = gr.State(Session()), Events(models, settings)
        demo.events = events
        if ahead:
            asyncio.run(finish(events.draw_ahead()[0], models))
        run = events.drawn_ahead(next(iter(events.examples.values())))
        gr.HTML(_title_html(settings), elem_classes="title")
        parts = {"session": session}
        with gr.Column(elem_id="stage"):
            parts |= _stage_part(models, settings, events, run)
        parts |= _folds_part(models, run)
        _connect(demo, parts, events)
        gr.api(compare_endpoint(models, settings), api_name="compare", concurrency_limit=None)
    return demo


def _title_html(settings: Settings) -> str:
    what = _WHAT + (_WORLD if settings.is_embedded else _REAL)
    return (
        f'<p class="project">debias_sd · long prompts for Stable Diffusion</p><h1>{TITLE}</h1>'
        f"<details><summary>What am I looking at?</summary><p>{what}</p></details>"
    )


def _stage_part(models: Models, settings: Settings, events: Events, run: Run | None) -> dict[str, object]:
    """Result, pictures, prompt and table; all of the first example, where it is drawn."""
    first = next(iter(events.examples.values()))
    empty, live = events.empty(first)
    status, *panels, table = events.shown(run) if run else [status_html(_START), *empty, ""]
    parts: dict[str, object] = {"status": gr.HTML(status, elem_id="status")}
    with gr.Row(elem_id="top", equal_height=False):
        with gr.Row(elem_classes="panels", elem_id="panels", equal_height=False):
            parts["panels"] = [gr.HTML(panel, visible=bool(panel)) for panel in panels]
        with gr.Column(elem_id="ask", min_width=200):
            parts |= _ask_part(models, settings, events)
    parts["votes"] = gr.HTML("", elem_id="votes", js_on_load=_VOTE)
    parts["encoders"] = gr.CheckboxGroup(
        [(ruler.title, name) for name, ruler in models.rulers.items()],
        value=list(settings.chosen), label="Compare", show_label=False, elem_id="encoders",
    )  # fmt: skip
    with gr.Row(elem_id="moves"):
        gr.HTML('<span class="hint">Move it, and compare before with after:</span>', elem_id="moves-note")
        parts["moves"] = {
            kind: gr.Button(words, size="sm", min_width=100, elem_id=f"move-{kind}") for kind, words in MOVES.items()
        }
    rows = look.read_asset("sentences.js")
    parts["table"] = gr.HTML(table, visible=bool(table), elem_id="table", js_on_load=rows)
    parts["live"] = gr.HTML(f'<div class="live-box">{live}</div>', elem_id="live", js_on_load=rows)
    parts["share"] = gr.HTML(share_html(run, models, settings), elem_id="share")
    parts["tally"] = gr.HTML("", elem_id="tally")
    return parts


def _ask_part(models: Models, settings: Settings, events: Events) -> dict[str, object]:
    """The prompt, what to compare, and settings that most comparisons leave as they are."""
    titles = list(events.examples)
    parts: dict[str, object] = {
        "prompt": gr.Textbox(
            events.examples[titles[0]], label="Prompt", lines=6, max_lines=6, max_length=PROMPT_CHARACTERS,
            elem_id="prompt",
        )
    }  # fmt: skip
    with gr.Row(elem_id="actions"):
        parts["go"] = gr.Button("Compare", variant="primary", elem_id="go", min_width=90)
        parts["cancel"] = gr.Button("Cancel", interactive=False, elem_id="cancel", min_width=70)
        parts["surprise"] = gr.Button("Surprise me", elem_id="surprise", min_width=100)
    note = "The long captions that come with the app have the form of the paper's figure, not its wording."
    parts["example"] = gr.Dropdown(
        titles, value=titles[0], label="Examples", info=None if settings.is_embedded else note, elem_id="example",
        container=not settings.is_embedded,
    )  # fmt: skip
    with gr.Accordion("Settings", open=False, elem_id="more"):
        parts |= _more_part(settings)
    return parts


def _more_part(settings: Settings) -> dict[str, object]:
    defaults = EMBEDDED if settings.is_embedded else REAL
    sizes = [("the pipeline's own", OWN_SIDE), *((f"{side} x {side}", side) for side in SIDES)]
    return {
        "seed": gr.Number(0, label="Seed", precision=0, minimum=SEED[0], maximum=SEED[1], min_width=110),
        "seeds": gr.Slider(*SEEDS, value=1, step=1, label="Number of seeds", min_width=140),
        "steps": gr.Slider(*STEPS, value=defaults["steps"], step=1, label="Steps", elem_id="steps"),
        "guidance": gr.Slider(
            *GUIDANCE, value=defaults["guidance_scale"], step=0.5, label="Guidance", elem_id="guidance"
        ),
        "negative": gr.Textbox(
            label="Negative prompt", max_length=NEGATIVE_CHARACTERS, lines=1, elem_id="negative"
        ),
        "side": gr.Dropdown(sizes, value=OWN_SIDE, label="Size", visible=not settings.is_embedded, elem_id="side"),
        "blind": gr.Checkbox(
            False, label="Blind vote: names stay hidden until you have chosen", container=False, elem_id="blind"
        ),
    }  # fmt: skip


def _folds_part(models: Models, run: Run | None) -> dict[str, object]:
    """What nobody needs at first sight."""
    parts: dict[str, object] = {}
    with gr.Accordion("Details: scores, quarters, seconds, who judges", open=False, elem_id="details"):
        parts["scores"] = gr.HTML(scores_html(run) if run else "", elem_id="scores")
        gr.HTML(f'<p class="hint">{judged_by(models)}</p>', elem_id="judged-by")
    with gr.Accordion("What each encoder looks at", open=False, elem_id="reading"):
        gr.HTML(
            '<p class="hint">Where each encoder looks in the prompt, and how much each sentence changes what it says '
            "to the picture. The first does not prove the second.</p>"
        )
        parts["read"] = gr.Button("Read this prompt", variant="primary", elem_id="read", min_width=200)
        parts["plots"] = gr.HTML("", elem_id="plots")
    with gr.Accordion("Earlier comparisons", open=False, elem_id="kept"):
        parts["gallery"] = gr.HTML("", elem_id="gallery", js_on_load=_PICK)
    return parts


def judged_by(models: Models) -> str:
    """Who says what is drawn, and what the marks mean; HTML."""
    if models.is_checked:
        return _MARKS
    about = models.about_judge
    if about is None:
        return (
            "Real pictures are not judged here; whoever starts the app can name a judge. Hover or focus a sentence to "
            "see where its words acted."
        )
    return (
        f"Judged by {escape(about['name'])}: {escape(about['meaning'])}; thresholds: "
        f"{escape(about['thresholds']['source'])}. {_MARKS}"
    )


def _connect(demo: gr.Blocks, parts: dict[str, object], events: Events) -> None:
    """Which event does what."""
    prompt, session = parts["prompt"], parts["session"]
    asked = [parts[name] for name in ("prompt", "encoders", "negative", "seed", "seeds", "steps", "guidance", "side")]
    moves = parts["moves"]
    shown = [parts["status"], *parts["panels"], parts["table"], parts["scores"], parts["votes"], parts["tally"]]
    shown += [parts["go"], *moves.values(), parts["cancel"]]
    kept = [parts["gallery"], parts["share"]]
    # Typing goes straight to /rulers (page.js); this is for texts that an example, a link or a move puts in.
    prompt.change(None, prompt, js="(text) => { window.promptChanged(text); }", api_visibility="private")
    prompt.change(events.title_of, prompt, parts["example"], trigger_mode="always_last", **_QUICK)
    for table in (parts["table"], parts["live"]):
        table.act(events.move, prompt, prompt, **_QUICK)
    parts["example"].input(events.choose, [session, parts["example"]], [prompt, *shown, *kept], **_QUICK)
    parts["surprise"].click(events.surprise, prompt, prompt, **_QUICK)
    parts["go"].click(None, prompt, js=_TO_STAGE, api_visibility="private")
    run = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
    # What is kept comes with the answer itself: gradio drops a following event while the one before is under way.
    parts["go"].click(events.draw, [session, parts["blind"], *asked], shown + kept, trigger_mode="once", **run)
    for kind, button in moves.items():
        button.click(events.mover(kind), [session, *asked], [prompt, *shown, *kept], trigger_mode="once", **run)
    parts["cancel"].click(events.cancel, session, None, **_QUICK)
    voted = parts["votes"].vote(events.vote, session, shown + kept, **_TOLD)
    voted.then(None, None, None, js=_NEXT_ROUND, api_visibility="private")
    parts["read"].click(
        events.read, [prompt, parts["encoders"]], parts["plots"], concurrency_limit=1, api_visibility="private"
    )
    parts["gallery"].pick(events.pick, session, asked + shown + kept, **_QUICK)
    linked = demo.load(events.use_link, None, asked, **_TOLD)
    linked.success(None, None, None, js=_DRAW_LINK, api_visibility="private")
    remembered = [gr.Textbox(visible=False), gr.Textbox(visible=False)]  # by the browser's tab, see page.js
    begun = [session, *asked, *shown, *kept]
    demo.load(events.begin, [session, *remembered], begun, js=_REMEMBERED, **_QUICK)


def launch(demo: Page, models: Models, settings: Settings) -> None:
    """Serve until interrupted. No files are served, none are taken, nothing is reported."""
    hosts = Hosts(settings)
    demo.queue(max_size=200, default_concurrency_limit=4, api_open=False)
    try:
        _, address, public = demo.launch(
            prevent_thread_lock=True,
            quiet=True,
            server_name=settings.host,
            server_port=settings.port,
            share=settings.share,
            allowed_paths=[],
            max_file_size=1,
            run_history=False,
            enable_monitoring=False,
            footer_links=["api"],
            mcp_server=False,
            app_kwargs=_server_parts(demo, models, settings, hosts),
            state_session_capacity=100,
            show_error=False,
            ssr_mode=False,
            theme=look.theme(),
            css=look.style_sheet(),
            head=look.head(),
        )
        draw_unseen([run for run in demo.events.ahead.values() if not run.is_over], models)
        if public:
            hosts.named.add(urlsplit(public).hostname)
        also = f", or {public} from anywhere" if public else ""
        say(f"app: open {address} in a browser{also}; Ctrl-C ends it")
        threading.Event().wait()
    finally:  # also where no port is free: Python waits for the drawing thread
        models.stop()
        demo.close(verbose=False)


def _server_parts(demo: Page, models: Models, settings: Settings, hosts: Hosts) -> dict[str, object]:
    """What stands in front of gradio's routes, in this order, and the page's own route."""
    queue = demo._queue
    takes = {number: len(event.inputs) for number, event in demo.fns.items() if event.fn is not None}

    def has_unread(session: str) -> bool:
        return session in queue.pending_messages_per_session and bool(queue.pending_event_ids_session.get(session))

    middleware = [
        Middleware(Gate, hosts=hosts, framed_by=settings.framed_by),
        Middleware(Preview, title=TITLE, description=_DESCRIPTION),
        Middleware(BodyLimit),
        Middleware(Posted, check=check_posted(takes, settings)),
        Middleware(models.listeners.middleware, expected=has_unread),
    ]
    handlers = {RequestValidationError: refused}
    return {"middleware": middleware, "routes": [table_route(models, settings.chosen)], "exception_handlers": handlers}
