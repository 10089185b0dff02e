// The table follows the typing: the newest text is sent as soon as the answer to the one before is there. While the box
// holds the prompt of the pictures, their own table is shown instead, with its marks.
(() => {
  const state = { shown: null, asked: null, busy: false };
  const plain = (text) => (text ?? "").replace(/\r\n?/g, "\n");
  const box = () => document.querySelector("#prompt textarea");
  const address = () => {
    const names = [...document.querySelectorAll("#panels .panel[data-name]")].map((panel) => panel.dataset.name);
    return `${(window.gradio_config?.root || "").replace(/\/$/, "")}/rulers?encoders=${names.map(encodeURIComponent).join(",")}`;
  };
  const refocus = () => { // on the sentence that was moved by its own buttons
    if (!window.lastAct) return;
    const { kind, index } = window.lastAct, place = { up: index - 1, down: index + 1, first: 0, drop: index }[kind];
    const rows = [...document.querySelectorAll("#stage table.sentences")].find((table) => table.offsetParent);
    const row = rows?.querySelector(`tr[data-sentence="${place}"]`) || rows?.querySelector("tr[data-sentence]");
    const target = row?.querySelector(`button[data-act="${kind}"]:not(:disabled)`) || row?.querySelector("button:not(:disabled)");
    window.lastAct = null;
    target?.focus();
  };
  const mark = () => {
    const status = document.querySelector("#status .status"), stage = document.querySelector("#stage");
    if (!status || !stage || !box()) return;
    const drawn = document.querySelector("#table table[data-prompt]");
    const isOther = (about) => plain(box().value) !== plain(about.dataset.prompt);
    const note = status.querySelector(".stale"), isStale = status.dataset.prompt !== undefined && isOther(status);
    if (note && note.hidden === isStale) note.hidden = !isStale;
    stage.toggleAttribute("data-live", !drawn || isOther(drawn));
  };
  const show = (html) => {
    const live = document.querySelector("#live .live-box");
    if (live) live.innerHTML = html;
    mark();
    refocus();
  };
  const send = async () => {
    if (state.busy || state.asked === state.shown) return;
    state.busy = true;
    const text = state.asked;
    try {
      const answer = await fetch(address(), { method: "POST", body: text, headers: { "Content-Type": "text/plain" } });
      if (answer.ok) show(await answer.text());
    } catch { /* the server is gone, which gradio says itself */ }
    state.shown = text;
    state.busy = false;
    send();
  };
  // What a tab remembers over a reload: its key to what the server keeps of it, and the text in the box.
  const memory = (name, value) => {
    try {
      if (value !== undefined) sessionStorage.setItem(`debias-sd ${name}`, value);
      return sessionStorage.getItem(`debias-sd ${name}`) || "";
    } catch { return ""; } // no storage: a reload begins anew
  };
  const random = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  window.tabKey = () => memory("key") || memory("key", random().replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-"));
  window.typed = () => memory("prompt");
  window.promptChanged = (text) => {
    memory("prompt", text ?? "");
    state.asked = text ?? "";
    mark();
    requestAnimationFrame(mark); // an example or a move is in the box only then
    send();
  };
  window.toStage = () => document.querySelector("#status").scrollIntoView({ behavior: "smooth", block: "start" });
  document.addEventListener("input", (event) => {
    if (event.target.matches?.("#prompt textarea")) window.promptChanged(event.target.value);
  }, true);
  document.addEventListener("focusin", (event) => { // short on a phone until it is edited, and then as it is
    if (event.target.matches?.("#prompt textarea")) document.querySelector("#prompt").classList.add("open");
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    if (event.target.matches?.("#prompt textarea")) document.querySelector("#go")?.click();
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button[data-query]");
    if (!button) return;
    const link = `${location.origin}${location.pathname}?${button.dataset.query}`, words = button.textContent;
    try {
      await navigator.clipboard.writeText(link);
      button.textContent = "Link copied";
    } catch { // not allowed, as on a page without https: the reader copies it
      window.prompt("The link", link);
    }
    setTimeout(() => { button.textContent = words; }, 2000);
  });
  const watch = () => {
    const stage = document.querySelector("#stage");
    if (!stage || !box()) return setTimeout(watch, 100);
    document.querySelector("#example input")?.setAttribute("placeholder", "Examples");
    let panels = "";
    new MutationObserver(() => {
      mark();
      const names = address();
      if (names !== panels && state.shown !== null) { state.asked = box().value; state.shown = null; send(); }
      panels = names;
    }).observe(stage, { childList: true, subtree: true });
    mark();
  };
  watch();
})();
// One vote a round: from a click until the next pictures are shown, further clicks would be votes on what nobody has seen.
// Each round has buttons of its own.
(() => {
  const mark = (is) => document.querySelectorAll("#votes button").forEach((button) => button.setAttribute("aria-disabled", String(is)));
  window.nextRound = () => mark(false); // after a vote that failed
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#votes button");
    if (!button) return;
    if (button.getAttribute("aria-disabled") === "true") { event.stopImmediatePropagation(); event.preventDefault(); } else mark(true);
  }, true);
})();
