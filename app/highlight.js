// Highlighting: a sentence that is hovered or focused lights up everything that carries its number.
(() => {
  const rowOf = (node) => (node instanceof Element ? node.closest(".sentences tr[data-sentence]") : null);
  const light = (event) => {
    const row = rowOf(event.target) || rowOf(document.activeElement);
    document.querySelectorAll(".lit").forEach((lit) => lit.classList.remove("lit"));
    if (!row || !row.closest("[data-prompt]")) return; // a table without pictures has nothing to light up
    const number = Number(row.dataset.sentence);
    row.classList.add("lit");
    document.querySelectorAll(`.panels [data-sentence="${number}"]`).forEach((place) => place.classList.add("lit"));
  };
  document.addEventListener("mouseover", light);
  document.addEventListener("focusin", light);
})();
