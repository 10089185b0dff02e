// The rulers follow the typing: the newest text is sent as soon as the answer to the one before is there.
(() => {
  const state = { shown: null, asked: null, busy: false };
  const address = () => `${(window.gradio_config?.root || "").replace(/\/$/, "")}/rulers`;
  const show = (html) => {
    const box = document.querySelector("#rulers .rulers-box");
    if (!box) return;
    const places = [...box.querySelectorAll(".text")].map((text) => text.scrollTop);
    box.innerHTML = html;
    box.querySelectorAll(".text").forEach((text, index) => (text.scrollTop = places[index] || 0));
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
