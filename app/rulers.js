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
