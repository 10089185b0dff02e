// The rows of the table: buttons and dragging become one "act" event each; page.js keeps the focus on what moved.
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (!button) return;
  window.lastAct = { kind: button.dataset.act, index: Number(button.dataset.index) };
  trigger("act", window.lastAct);
});
element.addEventListener("dragstart", (event) => {
  const row = event.target.closest("tr[data-sentence]");
  if (row) event.dataTransfer.setData("text/plain", row.dataset.sentence);
});
element.addEventListener("dragover", (event) => {
  const row = event.target.closest("tr[data-sentence]");
  element.querySelectorAll("tr.over").forEach((other) => other !== row && other.classList.remove("over"));
  if (row) { event.preventDefault(); row.classList.add("over"); }
});
element.addEventListener("drop", (event) => {
  const row = event.target.closest("tr[data-sentence]");
  const index = Number(event.dataTransfer.getData("text/plain"));
  if (!row || !Number.isInteger(index)) return;
  event.preventDefault();
  trigger("act", { kind: "to", index, to: Number(row.dataset.sentence) });
});
