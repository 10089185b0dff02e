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
