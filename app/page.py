"""The page: its parts and which event does what. Everything that it shows is made elsewhere."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware

from app import look
from app.events import OWN_SIDE, Events
from app.gate import BodyLimit, Gate, Hosts
from app.keep import downloads_html
from app.live_run import draw_unseen, start_run
from app.models import Models, examples_note, judged_by, rulers_note
from app.prompt_box import sentences_html
from app.request import check_request
from app.routes import Page, Posted, check_posted, compare_endpoint, refused
from app.rulers import ruler_route, rulers_html
from app.session import Session
from app.settings import GUIDANCE, NEGATIVE_CHARACTERS, PROMPT_CHARACTERS, SEED, SEEDS, SIDES, STEPS, Settings
from app.stage import empty_html, status_html
from debias_sd.commands.arguments import EMBEDDED, REAL
from debias_sd.commands.terminal import say

_INTRO = (
    "<h1>What does the end of a prompt do?</h1><p>CLIP, Stable Diffusion's text encoder, reads 77 tokens and drops the "
    "rest. Same prompt, same noise, several encoders: what gets drawn?</p>"
)
_WORLD = (
    '<p class="hint">The models that come with the app draw coloured shapes in nine places: seconds on a CPU, and a '
    "checker can read every picture back.</p>"
)
_PICK = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-pick]");
  if (button) trigger("pick", { index: Number(button.dataset.pick) });
});"""
_TO_STAGE = """(prompt) => {
  if (prompt.trim()) document.querySelector('#status').scrollIntoView({ behavior: 'smooth', block: 'start' });
}"""
_NEXT_ROUND = "() => { window.nextRound(); }"
_START = "Press Compare: each encoder draws this prompt."
_QUICK = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
_TOLD = _QUICK | {"queue": True}  # events that may refuse: only a queued one's sentence reaches the page


def build_demo(models: Models, settings: Settings) -> Page:
    """The whole page."""
    with Page(title="What does the end of a prompt do?", analytics_enabled=False) as demo:
        session, events = gr.State(Session()), Events(models, settings)
        demo.events = events
        gr.HTML(_INTRO + (_WORLD if settings.is_embedded else ""), elem_classes="title")
        parts = {"session": session} | _prompt_part(models, settings, events)
        with gr.Tabs():
            with gr.Tab("Side by side"):
                parts |= _stage_part(models)
            with gr.Tab("Reading"):
                parts |= _reading_part()
            with gr.Tab("Keep"):
                parts |= _keep_part(settings)
        _connect(demo, parts, events)
        gr.api(compare_endpoint(models, settings), api_name="compare", concurrency_limit=None)
    return demo


def _prompt_part(models: Models, settings: Settings, events: Events) -> dict[str, object]:
    titles = list(events.examples)
    first = events.examples[titles[0]]
    parts: dict[str, object] = {}
    with gr.Row(equal_height=False):
        with gr.Column(scale=3, min_width=300):
            parts["prompt"] = gr.Textbox(
                first, label="Prompt", lines=9, max_lines=16, max_length=PROMPT_CHARACTERS, elem_id="prompt"
            )
        with gr.Column(scale=2, min_width=300, elem_classes="controls"):
            parts["example"] = gr.Dropdown(
                titles, value=titles[0], label="Examples", info=examples_note(settings), elem_id="example"
            )
            with gr.Row():
                parts["seed"] = gr.Number(0, label="Seed", precision=0, minimum=SEED[0], maximum=SEED[1], min_width=110)
                parts["seeds"] = gr.Slider(*SEEDS, value=1, step=1, label="Number of seeds", min_width=140, scale=2)
            with gr.Row():
                parts["go"] = gr.Button("Compare", variant="primary", elem_id="go", min_width=110, scale=2)
                parts["cancel"] = gr.Button("Cancel", interactive=False, elem_id="cancel", min_width=80)
                parts["surprise"] = gr.Button("Surprise me", elem_id="surprise", min_width=120, scale=2)
            parts["blind"] = gr.Checkbox(
                False, label="Blind vote: names stay hidden until you have chosen", container=False, elem_id="blind"
            )
    with gr.Row(equal_height=False, elem_classes="folds"):
        with gr.Accordion("Sentences: move, drop, swap with the first", open=False, elem_id="sentences-part"):
            parts["sentences"] = gr.HTML(
                sentences_html(first), elem_id="sentences", js_on_load=look.read_asset("sentences.js")
            )
        with gr.Accordion("More settings", open=False, elem_id="more"):
            parts |= _more_part(models, settings)
    gr.HTML(f'<p class="hint">{rulers_note(models)}</p>', elem_id="rulers-note")
    parts["rulers"] = gr.HTML(f'<div class="rulers-box">{rulers_html(first, models)}</div>', elem_id="rulers")
    return parts


def _more_part(models: Models, settings: Settings) -> dict[str, object]:
    """Settings that most comparisons leave as they are."""
    defaults = EMBEDDED if settings.is_embedded else REAL
    sizes = [("the pipeline's own", OWN_SIDE), *((f"{side} x {side}", side) for side in SIDES)]
    return {
        "encoders": gr.CheckboxGroup(
            [(ruler.title, name) for name, ruler in models.rulers.items()],
            value=list(models.rulers), label="Encoders", elem_id="encoders",
        ),
        "steps": gr.Slider(*STEPS, value=defaults["steps"], step=1, label="Steps", elem_id="steps"),
        "guidance": gr.Slider(
            *GUIDANCE, value=defaults["guidance_scale"], step=0.5, label="Guidance", elem_id="guidance"
        ),
        "negative": gr.Textbox(
            label="Negative prompt", max_length=NEGATIVE_CHARACTERS, lines=1, elem_id="negative"
        ),
        "side": gr.Dropdown(sizes, value=OWN_SIDE, label="Size", visible=not settings.is_embedded, elem_id="side"),
    }  # fmt: skip


def _stage_part(models: Models) -> dict[str, object]:
    parts: dict[str, object] = {"status": gr.HTML(status_html(_START), elem_id="status")}
    gr.HTML(f'<p class="hint">{judged_by(models)}</p>', elem_id="judged-by")
    with gr.Row(visible=False, elem_id="votes") as parts["votes"]:
        parts["choices"] = [
            gr.Button(f"{'ABCDEF'[place]} is best", elem_id=f"vote-{place}", min_width=100)
            for place in range(len(models.rulers))
        ]
        parts["choices"].append(gr.Button("No difference", elem_id="vote-none", min_width=120))
    with gr.Row(elem_classes="panels", elem_id="panels"):
        parts["panels"] = [gr.HTML(empty_html(ruler.title, ruler.reach)) for ruler in models.rulers.values()]
    parts["tally"] = gr.HTML("", elem_id="tally")
    return parts


def _reading_part() -> dict[str, object]:
    gr.HTML(
        '<p class="hint">Where each encoder looks in the prompt above, and how much each sentence changes what it says '
        "to the picture. The first does not prove the second.</p>"
    )
    return {
        "read": gr.Button("Read this prompt", variant="primary", elem_id="read", min_width=200),
        "plots": gr.HTML("", elem_id="plots"),
    }


def _keep_part(settings: Settings) -> dict[str, object]:
    parts: dict[str, object] = {"gallery": gr.HTML("", elem_id="gallery", js_on_load=_PICK)}
    parts["downloads"] = gr.HTML(downloads_html(None, settings), elem_id="downloads")
    parts["command"] = gr.Textbox(
        label="Command line", buttons=["copy"], interactive=False, lines=2, max_lines=6, elem_id="command"
    )
    parts["link"] = gr.Textbox(label="Link", buttons=["copy"], interactive=False, lines=1, max_lines=1, elem_id="link")
    parts["json"] = gr.Textbox(
        label="Settings", info="JSON; paste others here to use them", lines=4, max_lines=12, elem_id="settings"
    )
    parts["use"] = gr.Button("Use these settings", elem_id="use")
    return parts


def _connect(demo: gr.Blocks, parts: dict[str, object], events: Events) -> None:
    """Which event does what."""
    prompt, session = parts["prompt"], parts["session"]
    asked = [parts[name] for name in ("prompt", "encoders", "negative", "seed", "seeds", "steps", "guidance", "side")]
    shown = [parts["status"], *parts["panels"], parts["go"], parts["cancel"], parts["votes"], parts["tally"]]
    kept = [parts[name] for name in ("gallery", "downloads", "command", "link", "json")]
    # Typing goes straight to /rulers (rulers.js); this is for texts that an example, a link or a move puts in.
    changed = "(text) => { window.countTokens(text); window.markStale(); }"
    prompt.change(None, prompt, js=changed, api_visibility="private")
    told = [parts["sentences"], parts["example"]]
    prompt.change(events.show_prompt, prompt, told, trigger_mode="always_last", **_QUICK)
    parts["sentences"].act(events.move, prompt, prompt, **_QUICK)
    parts["example"].input(events.choose, parts["example"], prompt, **_QUICK)
    parts["surprise"].click(events.surprise, prompt, prompt, **_QUICK)
    parts["go"].click(None, prompt, js=_TO_STAGE, api_visibility="private")
    run = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
    # What is kept comes with the answer itself: gradio drops a following event while the one before is under way.
    parts["go"].click(events.draw, [session, parts["blind"], *asked], shown + kept, trigger_mode="once", **run)
    parts["cancel"].click(events.cancel, session, None, **_QUICK)
    for place, button in enumerate(parts["choices"]):
        chosen = place if place < len(parts["panels"]) else None
        voted = button.click(events.voter(chosen), session, shown + kept, **_TOLD)
        voted.then(None, None, None, js=_NEXT_ROUND, api_visibility="private")
    parts["read"].click(
        events.read, [prompt, parts["encoders"]], parts["plots"], concurrency_limit=1, api_visibility="private"
    )
    parts["gallery"].pick(events.pick, session, kept, **_QUICK)
    parts["use"].click(events.use_json, parts["json"], asked, **_TOLD)
    demo.load(None, js="() => { window.showCuts(); }", api_visibility="private")
    demo.load(events.use_link, None, asked, **_TOLD)
    demo.load(events.show_example, session, shown + kept, **run)


def launch(demo: Page, models: Models, settings: Settings) -> None:
    """Serve until interrupted. No files are served, none are taken, nothing is reported."""
    hosts = Hosts(settings)
    demo.queue(max_size=200, default_concurrency_limit=4, api_open=False)
    try:
        if settings.example and settings.is_embedded:
            first = next(iter(demo.events.examples.values()))
            demo.events.example = start_run(check_request({"prompt": first}, settings), models)
            draw_unseen(demo.events.example, models)
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
        Middleware(Gate, hosts=hosts),
        Middleware(BodyLimit),
        Middleware(Posted, check=check_posted(takes, settings)),
        Middleware(models.listeners.middleware, expected=has_unread),
    ]
    handlers = {RequestValidationError: refused}
    return {"middleware": middleware, "routes": [ruler_route(models)], "exception_handlers": handlers}
