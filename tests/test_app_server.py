"""The running app with the embedded models: its API, its limits, and that it serves and takes nothing else."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from app_server import CHROMIUM, CHROMIUM_OPTIONS, NO_APP, NO_BROWSER, ROOT, running_app, started_app
from PIL import Image

from app import client
from app.__main__ import main
from debias_sd.comparison import compare_encoders
from debias_sd.datasets.world import prompt_set
from debias_sd.encoder import TextEncoder
from debias_sd.pipelines.load import load_debias_pipeline

pytestmark = pytest.mark.skipif(bool(NO_APP), reason=NO_APP or "never")
PROMPT = prompt_set(7, count=1).captions[0].text
STEPS = 2


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with running_app(tmp_path_factory.mktemp("app") / "log.txt") as address:
        yield address


@pytest.fixture(scope="module")
def expected():
    """What the command line draws for seeds 3 and 4, by seed and encoder."""
    base = load_debias_pipeline(None, "base")
    encoders = {name: TextEncoder.load(name) for name in ("base", "long-clip", "debias")}
    comparisons = {seed: compare_encoders(PROMPT, encoders, base=base, seed=seed, steps=STEPS) for seed in (3, 4)}
    return {seed: {panel.name: panel.image for panel in found.panels} for seed, found in comparisons.items()}


def post(url: str, prompt: str, **settings: object) -> str:
    """Send a comparison without waiting for it; returns its event."""
    body = json.dumps({"prompt": prompt, **settings}).encode()
    request = urllib.request.Request(f"{url}/gradio_api/call/v2/compare", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["event_id"]


def ask(url: str, prompt: str, **settings: object) -> dict:
    """The last answer of /compare, over plain HTTP as docs/app.md describes it."""
    try:
        event = post(url, prompt, **settings)
    except urllib.error.HTTPError as error:
        return {"error": json.load(error)["detail"]}
    with urllib.request.urlopen(f"{url}/gradio_api/call/compare/{event}", timeout=500) as stream:
        kind, content = stream.read().decode().strip().rsplit("\n\n", 1)[-1].split("\n", 1)
    content = json.loads(content.removeprefix("data: "))
    return content[0] if kind == "event: complete" else {"error": content}


def test_the_example_client_gets_the_command_lines_pictures(url, expected, tmp_path, capsys):
    command = [url, PROMPT, "--seed", "3", "--steps", str(STEPS), "--out", str(tmp_path)]
    assert client.main(command) == 0
    said = capsys.readouterr().out
    for name, image in expected[3].items():
        assert np.array_equal(np.asarray(Image.open(tmp_path / f"{name}-3.png")), image)
        assert re.search(rf"^{name}: (drawn|missing|unsure|not read|\d of \d)", said, re.MULTILINE)
    assert client.main([*command, "--steps", "101"]) == 2
    assert "the number of steps is 101; it must be a whole number from 1 to 100." in capsys.readouterr().err


def test_no_app_at_the_address_is_one_sentence(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        assert client.main([f"http://127.0.0.1:{free.getsockname()[1]}", "A red star."]) == 2
    error = capsys.readouterr().err
    assert error.startswith("no app answers at http://127.0.0.1:")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_twenty_clients_at_once_are_all_answered_alike(url, expected):
    def one(number: int) -> dict:
        return ask(url, PROMPT, seed=3 + number % 2, steps=STEPS)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(one, range(20)))
    for number, answer in enumerate(answers):
        assert answer["state"] == "done", answer
        for name, image in expected[3 + number % 2].items():
            (picture,) = answer["encoders"][name]["pictures"]
            with urllib.request.urlopen(picture["png"]) as content:
                assert np.array_equal(np.asarray(Image.open(content)), image)


def test_the_longest_prompt_is_drawn(url):
    answer = ask(url, "red " * 5000, steps=1, encoders=["debias"])
    assert answer["state"] == "done", answer
    assert len(answer["encoders"]["debias"]["pictures"]) == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"steps": 101}, "the number of steps is 101; it must be a whole number from 1 to 100."),
        ({"seeds": 9}, "the number of seeds is 9; it must be a whole number from 1 to 8."),
        ({"side": 512}, "the embedded pipeline draws 48 x 48 pixels only; leave the size out."),
        (
            {"encoders": ["/etc"]},
            "unknown encoder '/etc'; choose from base, chunked, ",
        ),
        ({"prompt": "a" * 20_001}, "the prompt has 20,001 characters and may have at most 20,000; shorten it."),
        ({"prompt": " "}, "the prompt is empty; write what the picture should show."),
    ],
)
def test_limits_hold_on_the_server(url, settings, sentence):
    assert sentence in json.dumps(ask(url, **{"prompt": "A star."} | settings))


def status_of(request: str | urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_the_comparison_is_offered(url):
    with urllib.request.urlopen(f"{url}/gradio_api/info") as answer:
        assert list(json.load(answer)["named_endpoints"]) == ["/compare"]


FILES = ("/etc/passwd", str(ROOT / "README.md"), "app/request.py", "../README.md", "..%2f..%2fetc%2fpasswd")


@pytest.mark.parametrize(
    "route", ["/gradio_api/file=", "/file=", "/gradio_api/file/", "/static/", "/assets/", "/svelte/", "/"]
)
def test_no_file_is_served(url, route):
    assert {status_of(f"{url}{route}{path}") for path in FILES} <= {403, 404}


def test_no_address_is_fetched_for_the_caller(url):
    """Not even one of this machine that would answer: the app itself."""
    for route in ("/gradio_api/file=", "/gradio_api/proxy=", "/file=", "/proxy="):
        for address in (f"{url}/robots.txt", "http://169.254.169.254/latest/meta-data", "file:///etc/passwd"):
            assert status_of(f"{url}{route}{address}") == 404
            assert status_of(f"{url}{route}{quote(address, safe='')}") == 404


@pytest.mark.parametrize("route", ["upload", "vibe-edit", "vibe-code", "process_recording", "component_server"])
def test_nothing_is_taken_and_nothing_is_edited(url, route):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nhello\r\n--x--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert status_of(urllib.request.Request(f"{url}/gradio_api/{route}", body, kind)) == 404


def test_a_file_or_an_address_in_place_of_a_prompt_is_refused_unread(url):
    """Gradio would open `path` and fetch `url` of such data where a component takes files; none does."""
    for prompt in (
        {"path": "/etc/passwd"},
        {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
        {"url": url},
    ):
        answer = ask(url, prompt)
        assert "root:" not in json.dumps(answer)
        assert "error" in answer


def test_the_table_is_the_text_that_was_sent(url):
    answer = urllib.request.urlopen(urllib.request.Request(f"{url}/rulers", "<b>A star</b> \u2028 🙂".encode()))
    with answer:
        page = answer.read().decode()
        assert answer.headers["content-type"].startswith("text/html")
    assert page.count("<col>") == 4
    assert "&lt;b&gt;A star&lt;/b&gt;" in page
    with urllib.request.urlopen(urllib.request.Request(f"{url}/rulers", b"\xff\xfe a" * 9000)) as answer:
        assert "The prompt has 36,000 characters and may have at most 20,000; shorten it." in answer.read().decode()
    assert status_of(f"{url}/rulers") == 405


def test_a_long_body_is_refused(url):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/gradio_api/call/v2/compare")
    connection.putheader("Content-Length", "2000001")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_the_page_loads_nothing_from_outside(url):
    with urllib.request.urlopen(url) as answer:
        page = answer.read().decode()
    loaded = re.findall(r"""<(?:script|link|img|iframe)[^>]*?(?:src|href)=["']([^"']+)""", page)
    assert loaded
    with urllib.request.urlopen(f"{url}/?examples=/etc/passwd") as answer:
        assert b"root:" not in answer.read()
    assert [address for address in loaded if re.match(r"(?:https?:)?//", address) and not address.startswith(url)] == []


def test_it_listens_on_this_machine_only(url):
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].is_file():
        pytest.skip("no /proc/net/tcp")
    port = f"{int(url.rsplit(':', 1)[1]):04X}"
    rows = [line.split() for table in tables if table.is_file() for line in table.read_text().splitlines()[1:]]
    listening = {row[1].split(":")[0] for row in rows if row[1].endswith(f":{port}") and row[3] == "0A"}
    assert listening == {"0100007F"}


@pytest.mark.slow  # an app of its own, whose queue is full
def test_the_thirty_fourth_is_refused_the_last_is_told_how_many_are_before_and_ctrl_c_ends_them_all(tmp_path):
    log = tmp_path / "log.txt"
    with started_app(log) as (address, process):
        first = post(address, "A star.", steps=100, seeds=8)  # 2,400 steps
        with urllib.request.urlopen(f"{address}/gradio_api/call/compare/{first}", timeout=60) as drawn:
            last = [post(address, "A star.", steps=1) for _ in range(32)][-1]
            with urllib.request.urlopen(f"{address}/gradio_api/call/compare/{last}", timeout=60) as stream:
                told = next(line for line in stream if line.startswith(b"data: [{"))
            answer = json.loads(told[6:])[0]
            assert answer["state"] == "waiting"
            assert answer["before"] in (31, 32)  # one less once the first has had a turn
            assert "32 people wait already, no more can; try again in a minute." in json.dumps(ask(address, "A star."))
            assert any(b'"state": "drawing"' in line and b'"step": 3' in line for line in drawn)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130  # a loaded machine takes 11 s, the drawing itself minutes
    assert log.read_text().splitlines()[2:] == ["app: ended"]


TAKEN = "app: error: cannot listen on 127.0.0.1, port {} (OSError); give another --port or --host.\n"


def test_a_port_that_is_taken_is_one_sentence_before_models_are_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["--port", str(port)]) == 2
    assert capsys.readouterr() == ("", TAKEN.format(port))


@pytest.mark.slow  # an app of its own
def test_a_port_that_is_taken_while_models_are_loaded_is_one_sentence_too(url):
    port = url.rsplit(":", 1)[1]
    code = "import sys, app.__main__ as app; app.check_address = lambda _: None; sys.exit(app.main())"
    command = [sys.executable, "-c", code, "--port", port]  # with the example, whose drawing must end too
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 2
    assert done.stderr == TAKEN.format(port)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--port", "70000"], "--port is 70000; it must be 1 to 65535."),
        (["--encoders", "a/x", "b/x"], "--encoders has the name 'x' twice"),
        (["--encoders", "<b>=base"], "--encoders has the name '<b>'"),
    ],
)
def test_an_operators_fault_ends_with_one_sentence(options, sentence, capsys):
    assert main(options) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER or "never")
def test_a_person_compares_and_reads_the_verdicts(url):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tool, tool.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS) as browser:
        page, told, asked = browser.new_page(), [], []
        page.on("console", lambda message: told.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/?prompt=A+small+red+star+sits+in+the+top+left.&steps={STEPS}")
        page.wait_for_function(
            "document.querySelector('#prompt textarea')?.value.startsWith('A small')", timeout=60_000
        )
        page.locator("#status [data-state=done]").wait_for(timeout=120_000)  # the link draws
        assert page.locator("#table tr.sentence").count() == 1
        page.locator("#table tr.sentence").first.focus()
        assert page.locator(".panels .box.lit").count() == 3
    assert told == []
    assert [address for address in asked if not address.startswith((url, "data:", "blob:"))] == []
