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
