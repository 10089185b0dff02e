// Highlighting: a verdict that is hovered or focused lights up everything that carries its sentence's number.
(() => {
  const itemOf = (node) => (node instanceof Element ? node.closest(".verdicts li[data-sentence]") : null);
  const light = (event) => {
    const item = itemOf(event.target) || itemOf(document.activeElement);
    document.querySelectorAll(".lit").forEach((lit) => lit.classList.remove("lit"));
    if (item) {
      const number = Number(item.dataset.sentence);
      const same = `.panels [data-sentence="${number}"], .strip [data-sentence="${number}"]`;
      document.querySelectorAll(same).forEach((element) => element.classList.add("lit"));
    }
  };
  document.addEventListener("mouseover", light);
  document.addEventListener("focusin", light);
})();
