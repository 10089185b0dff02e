"""A running app and those who are not its page: faulty requests, other names, other sites' pages, clients that hog."""

import http.client
import http.server
import json
import re
import threading

import pytest
from app_server import CHROMIUM, CHROMIUM_OPTIONS, NO_APP, NO_BROWSER, running_app
from test_app_server import ask, post

from app.page import TITLE

pytestmark = pytest.mark.skipif(bool(NO_APP), reason=NO_APP or "never")
API = "/gradio_api"
BY_NAME, IN_ORDER, JOIN = f"{API}/call/v2/compare", f"{API}/call/compare", f"{API}/queue/join"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("app") / "log.txt"


@pytest.fixture(scope="module")
def url(log):
    with running_app(log) as address:
        yield address


def send(url: str, method: str, path: str, body: object = None, headers: dict[str, str] | None = None):
    """Status, headers and text of an answer; `body` as it is, or as JSON."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    host = (headers or {}).get("Host")
    connection.putrequest(method, path, skip_host=host is not None)
    lines = {"Content-Type": "application/json", "Content-Length": str(len(content or b""))} | (headers or {})
    for name, value in lines.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders(content)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


FAULTS = [
    (BY_NAME, {}, "there is no prompt; write what"),
    (BY_NAME, {"prompt": "A star.", "foo": 1}, "unknown setting 'foo'; the settings are encoders"),
    (BY_NAME, {"prompt": {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}}, "the prompt is of type dict"),
    (BY_NAME, {"prompt": None}, "the prompt is of type NoneType"),
    (BY_NAME, {"prompt": ["A star."]}, "the prompt is of type list"),
    (BY_NAME, {"prompt": "A star.", "negative": 5}, "the negative prompt is of type int"),
    (BY_NAME, {"prompt": "A star.", "steps": True}, "the number of steps is True"),
    (BY_NAME, {"prompt": "A star.", "seed": "3"}, "the seed is '3'"),
    (BY_NAME, {"prompt": "A star.", "seeds": None}, "the number of seeds is None"),
    (BY_NAME, {"prompt": "A star.", "encoders": {"a": 1}}, "no encoder is chosen"),
    (BY_NAME, {"prompt": "A star.", "encoders": [["base"]]}, "unknown encoder"),
    (BY_NAME, {"prompt": "A star.", "side": [1]}, "the embedded pipeline draws 48 x 48"),
    (BY_NAME, b'{"prompt": "A star.", "guidance": NaN}', "the guidance is nan"),
    (BY_NAME, b'{"prompt": "A star.", "guidance": -Infinity}', "the guidance is -inf"),
    (BY_NAME, b'{"prompt": "A star.", "seed": 1e999}', "the seed is inf"),
    (BY_NAME, b'{"prompt": "A star.", "seed": ' + b"9" * 9000 + b"}", "the seed is inf"),
    (BY_NAME, b'{"prompt": "\\ud800"}', "the prompt holds characters that are not valid text"),
    (BY_NAME, b"{", "the request's body is not JSON"),
    (BY_NAME, b"", "the request's body is not JSON"),
    (BY_NAME, b"\xff\xfe{}", "the request's body is not JSON"),
    (BY_NAME, b"[" * 100_000, "the request's body is not JSON"),
    (BY_NAME, [1], "the request's body is a JSON list"),
    (IN_ORDER, {}, "`data` must be a list of 8 values (prompt, seed"),
    (IN_ORDER, {"data": ["A star."]}, "`data` must be a list of 8 values (prompt"),
    (IN_ORDER, {"data": [{"path": "x"}, 0, 1, 1, 2.0, "", None, None]}, "the prompt is of type dict"),
    (IN_ORDER, {"data": [], "session_hash": "x"}, "the request's body has the key 'session_hash'"),
    (JOIN, {"session_hash": "x"}, "`fn_index` is 'None', which is not an event"),
    (JOIN, {"session_hash": "x", "data": [], "fn_index": 9999}, "`fn_index` is '9999'"),
    (JOIN, {"session_hash": "x", "data": [], "fn_index": "a"}, "`fn_index` is 'a'"),
    (f"{API}/run/predict", {"data": []}, "`fn_index` is 'None'"),
    (f"{API}/cancel", {}, "body.session_hash: field required."),
    (f"{API}/reset", {"event_id": 5}, "body.event_id: input should be a valid string."),
]


@pytest.mark.parametrize(("path", "body", "sentence"), FAULTS)
def test_a_faulty_request_is_one_sentence(url, log, path, body, sentence):
    """Case 140: status 400 and a sentence for the sender, nothing for the operator."""
    status, _, text = send(url, "POST", path, body)
    assert status == 400, text
    told = json.loads(text)["detail"]
    assert told.startswith(sentence)
    assert "\n" not in told
    assert "Traceback" not in log.read_text()


def test_every_event_of_the_page_refuses_odd_values_in_a_sentence(url, log):
    """Case 140: the routes of the page itself, with a file and with nothing in place of every value."""
    events = json.loads(send(url, "GET", "/config")[2])["dependencies"]
    for event in (event for event in events if event["backend_fn"]):
        for odd in ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, None, [[]]):
            body = {"fn_index": event["id"], "data": [odd] * len(event["inputs"]), "session_hash": f"odd{event['id']}"}
            if event["queue"]:
                assert send(url, "POST", JOIN, body)[0] == 200
                text = send(url, "GET", f"{API}/queue/data?session_hash={body['session_hash']}")[2]
                assert '"error":null' not in text, (event["api_name"], odd)
            else:
                assert send(url, "POST", f"{API}/run/predict", body)[0] in (200, 400), (event["api_name"], odd)
    status, _, text = send(url, "POST", JOIN, {"fn_index": events[0]["id"], "data": [1] * 99, "session_hash": "x"})
    assert status == 400, text
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("path", ["call/compare/0f3a", "call/v2/compare/0f3a", "queue/data?session_hash=nobody"])
def test_an_answer_that_will_not_come_is_not_waited_for(url, path):
    """Case 140: an unknown job."""
    status, _, text = send(url, "GET", f"{API}/{path}")
    assert (status, text) == (404, "there is no such job, or its answer has been read; send the request again.")


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1:{port}", True), ("localhost", True), ("LOCALHOST.:9", True), ("[::1]:{port}", True),
        ("evil.example", False), ("evil.example:{port}", False), ("127.0.0.1.evil.example", False), ("8.8.8.8", False),
        ("localhost@evil.example", False), ("localhost:80:80", False), ("", False),
    ],
)  # fmt: skip
def test_only_this_machines_names_are_answered(url, host, is_own):
    """Case 138: a name that another site has turned to this machine (DNS rebinding), and one that is missing."""
    headers = {"Host": host.format(port=url.rsplit(":", 1)[1])}
    for method, path in (("GET", "/"), ("GET", "/config"), ("POST", "/rulers"), ("POST", BY_NAME)):
        status, _, text = send(url, method, path, {} if method == "POST" else None, headers)
        expected = {"/": 200, "/config": 200, "/rulers": 200, BY_NAME: 400}[path] if is_own else 403
        assert status == expected or (not host and status == 400), (path, text[:200])


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({}, True),
        ({"Origin": "{url}"}, True),
        ({"Origin": "{url}", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://127.0.0.1:1"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, False),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, False),
    ],
)
def test_only_the_apps_own_pages_may_ask(url, headers, is_own):
    """Case 138: a page of another site, or of another port of this machine."""
    headers = {name: value.format(url=url) for name, value in headers.items()}
    for method, path in (("POST", "/rulers"), ("POST", JOIN), ("GET", f"{API}/queue/data?session_hash=x")):
        status, _, text = send(url, method, path, b"A star." if method == "POST" else None, headers)
        assert (status == 403) is not is_own, (path, text[:200])


def test_a_link_on_another_site_may_lead_here_but_no_frame_may_show_it(url):
    """Case 138: framing, and web sockets, of which the app has none."""
    for path in ("/", "/nothing", "/rulers"):
        headers = send(url, "GET", path, None, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[1]
        lower = {name.lower(): value for name, value in headers.items()}
        assert lower["content-security-policy"] == "frame-ancestors 'none'"
        assert lower["x-frame-options"] == "DENY"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert send(url, "GET", JOIN, None, upgrade | {"Sec-WebSocket-Key": "x" * 22 + "=="})[0] in (400, 403, 405)


def test_a_link_preview_has_the_pages_title_and_description(url):
    head = send(url, "GET", "/?prompt=A+star.")[2].partition("window.gradio_config")[0]
    assert re.findall(r'<meta property="og:title" content="([^"]*)"', head) == [TITLE]
    assert f"<title>{TITLE}</title>" in head
    (description,) = re.findall(r'<meta name="description" content="([^"]*)"', head)
    assert "which sentences did CLIP, Long-CLIP and DeBias-CLIP draw?" in description
    assert "Gradio" not in head


@pytest.fixture
def other_site():
    """The port of another server on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Blank) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


class Blank(http.server.BaseHTTPRequestHandler):
    """An empty page at every address."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow  # a browser
@pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER or "never")
def test_another_sites_page_gets_nothing_in_a_browser(url, other_site):
    """Case 138: rebound, framed, and asked across origins, in a real browser; the first one asked does not mind."""
    from playwright.sync_api import sync_playwright

    port = url.rsplit(":", 1)[1]
    options = [*CHROMIUM_OPTIONS, "--host-resolver-rules=MAP *.example 127.0.0.1"]
    with sync_playwright() as tool, tool.chromium.launch(executable_path=CHROMIUM, args=options) as browser:
        page = browser.new_page()
        rebound = page.goto(f"http://rebound.example:{port}/")
        assert rebound.status == 403
        assert "is not a name of this app" in page.locator("body").inner_text()
        page.goto(f"http://other.example:{other_site}/")
        asked = page.evaluate(
            """async ([url, control]) => {
              const ask = (address, how) => fetch(address, how).then((got) => got.type, () => "failed");
              const results = [await ask(control, { mode: "no-cors" })];
              for (const [path, how] of [["/rulers", { method: "POST", body: "A star." }], ["/config", {}],
                  ["/gradio_api/queue/join", { method: "POST", body: "{}", mode: "no-cors" }]])
                results.push(await ask(url + path, how));
              results.push(await new Promise((done) => {
                const source = new EventSource(url + "/gradio_api/queue/data?session_hash=x");
                source.onerror = () => { source.close(); done("failed"); };
                source.onmessage = () => done("heard");
              }));
              return results;
            }""",
            [url, f"http://127.0.0.1:{other_site}/"],
        )
        assert asked == ["opaque", "failed", "failed", "opaque", "failed"], "opaque: no answer can be read"
        page.set_content(f'<iframe src="{url}/" width="900" height="600"></iframe>')
        page.wait_for_timeout(3000)
        (_, frame) = page.frames
        assert frame.locator("#go").count() == 0
        own = browser.new_page()
        own.goto(url)
        own.locator("#go").wait_for(timeout=120_000)
        asked = 'fetch("/rulers", { method: "POST", body: "A star." }).then((answer) => answer.status)'
        assert own.evaluate(asked) == 200


@pytest.mark.slow  # waits for turns of long jobs
def test_a_small_job_has_its_turn_among_long_ones_and_those_who_hang_up_are_gone(url):
    """Case 137: three clients listen to 8 seeds of 100 steps each; they would take minutes."""
    hung_up = threading.Event()

    def listen(event: str) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=600)
        connection.request("GET", f"{API}/call/compare/{event}")
        answer = connection.getresponse()
        while not hung_up.is_set() and answer.readline():
            pass
        answer.close()
        connection.close()

    events = [post(url, "A star.", steps=100, seeds=8) for _ in range(3)]
    threads = [threading.Thread(target=listen, args=(event,)) for event in events]
    for thread in threads:
        thread.start()
    try:
        assert ask(url, "A star.", steps=1, encoders=["debias"])["state"] == "done"
        assert all(thread.is_alive() for thread in threads), "the long ones were done first"
    finally:
        hung_up.set()
        for thread in threads:
            thread.join()
    assert ask(url, "A star.", steps=1, encoders=["debias"])["state"] == "done"
    assert [send(url, "GET", f"{API}/call/compare/{event}")[0] for event in events] == [404] * 3


@pytest.mark.slow  # waits until the patience with who does not listen ends
def test_a_job_that_nobody_reads_ends(url):
    """Case 137: sent and forgotten."""
    events = [post(url, "A star.", steps=100, seeds=8) for _ in range(3)]
    threading.Event().wait(32)
    assert ask(url, "A star.", steps=1, encoders=["debias"])["state"] == "done"
    for event in events:
        text = send(url, "GET", f"{API}/call/compare/{event}")[2]
        assert '"state": "stopped"' in text
