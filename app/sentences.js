// The list of sentences: buttons and dragging become one "act" event each; focus stays on the sentence that moved.
let last = null;
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (!button) return;
  last = { kind: button.dataset.act, index: Number(button.dataset.index) };
  trigger("act", last);
});
element.addEventListener("dragstart", (event) => {
  const item = event.target.closest("li[data-index]");
  if (item) event.dataTransfer.setData("text/plain", item.dataset.index);
});
const over = (event) => {
  const item = event.target.closest("li[data-index]");
  element.querySelectorAll("li.over").forEach((other) => other !== item && other.classList.remove("over"));
  if (item) { event.preventDefault(); item.classList.add("over"); }
};
element.addEventListener("dragover", over);
element.addEventListener("drop", (event) => {
  const item = event.target.closest("li[data-index]");
  const index = Number(event.dataTransfer.getData("text/plain"));
  if (!item || !Number.isInteger(index)) return;
  event.preventDefault();
  trigger("act", { kind: "to", index, to: Number(item.dataset.index) });
});
watch("value", () => {
  if (!last) return;
  const { kind, index } = last;
  last = null;
  const place = { up: index - 1, down: index + 1, first: 0, drop: index }[kind];
  const item = element.querySelector(`li[data-index="${place}"]`) || element.querySelector("li[data-index]");
  const target = item && (item.querySelector(`button[data-act="${kind}"]:not(:disabled)`) || item.querySelector("button:not(:disabled)"));
  if (target) target.focus();
});
