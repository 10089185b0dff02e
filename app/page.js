// The rulers follow the typing: the newest text is sent as soon as the answer to the one before is there.
(() => {
  const state = { shown: null, asked: null, busy: false };
  const address = () => `${(window.gradio_config?.root || "").replace(/\/$/, "")}/rulers`;
  // Each text stands at its first cut, unless its reader has scrolled it.
  const scrolled = {};
  const toCut = (text, index) => {
    const cut = text.children[1];
    const line = parseFloat(getComputedStyle(text).lineHeight) || 1; // a line is shown whole or not at all
    text.scrollTop = scrolled[index] ?? (cut ? Math.round((cut.offsetTop - text.clientHeight / 2) / line) * line : 0);
    for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"]) {
      text.addEventListener(kind, () => setTimeout(() => (scrolled[index] = text.scrollTop), 50), { passive: true });
    }
  };
  window.showCuts = () => document.querySelectorAll("#rulers .ruler .text").forEach(toCut);
  const show = (html) => {
    const box = document.querySelector("#rulers .rulers-box");
    if (!box) return;
    box.innerHTML = html;
    requestAnimationFrame(window.showCuts); // measuring costs a layout: the numbers go first
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
  window.countTokens = (text) => { state.asked = text ?? ""; send(); };
  document.addEventListener("input", (event) => {
    if (event.target.matches?.("#prompt textarea")) window.countTokens(event.target.value);
  }, true);
})();
// The pictures on the page know their prompt: once the box holds another one, their status line says so.
(() => {
  const mark = () => {
    const box = document.querySelector("#prompt textarea");
    document.querySelectorAll("#status .status[data-prompt]").forEach((status) => {
      const note = status.querySelector(".stale"), isOther = Boolean(box) && box.value !== status.dataset.prompt;
      if (note && note.hidden === isOther) note.hidden = !isOther;
    });
  };
  window.markStale = () => requestAnimationFrame(mark);
  document.addEventListener("input", (event) => event.target.matches?.("#prompt textarea") && mark(), true);
  const watch = () => {
    const status = document.querySelector("#status");
    if (!status) return setTimeout(watch, 200);
    new MutationObserver(mark).observe(status, { childList: true, subtree: true });
  };
  watch();
})();
// One vote a round: from a click until the next pictures are shown, further clicks would be votes on what nobody has seen.
(() => {
  let voting = false;
  const mark = (is) => {
    voting = is;
    document.querySelectorAll("#votes button").forEach((button) => button.setAttribute("aria-disabled", String(is)));
  };
  window.nextRound = () => mark(false); // also after a vote that failed
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#votes button")) return;
    if (voting) { event.stopImmediatePropagation(); event.preventDefault(); } else mark(true);
  }, true);
  const watch = () => {
    const status = document.querySelector("#status");
    if (!status) return setTimeout(watch, 200);
    new MutationObserver(() => voting && mark(false)).observe(status, { childList: true, subtree: true });
  };
  watch();
})();
