// Two pictures in one place: a click on a picture opens it with another one on top. Slide to see a part of each, tap or
// hold the picture (or press F) to flip, D shows where they differ, arrows move the slider.
(() => {
  let dialog = null, pictures = [], pressed = 0;
  const part = (name) => dialog.querySelector(`.${name}`);
  const build = () => {
    dialog = document.createElement("dialog");
    dialog.className = "closer";
    dialog.setAttribute("aria-label", "Two pictures in one place");
    dialog.innerHTML = `<div class="names"><label>Left <select class="left"></select></label>
      <label>Right <select class="right"></select></label></div>
      <div class="pair"><img class="under" alt=""><img class="over" alt=""></div>
      <label class="slide">Slide <input class="at" type="range" min="0" max="100" aria-label="How much of the left picture is shown, in percent"></label>
      <div class="buttons"><button type="button" class="flip">Flip (F)</button>
      <button type="button" class="difference" aria-pressed="false">Difference (D)</button>
      <button type="button" class="close">Close</button></div>
      <p class="hint">Tap or hold the picture to flip it.</p>`;
    (document.querySelector(".gradio-container") || document.body).append(dialog);
    for (const name of ["left", "right"]) part(name).addEventListener("change", show);
    part("at").addEventListener("input", slide);
    part("flip").addEventListener("click", flip);
    part("difference").addEventListener("click", differ);
    part("close").addEventListener("click", () => dialog.close());
    part("pair").addEventListener("pointerdown", () => { pressed = Date.now(); flip(); });
    part("pair").addEventListener("pointerup", () => { if (pressed && Date.now() - pressed > 350) flip(); pressed = 0; });
    part("pair").addEventListener("pointercancel", () => { pressed = 0; });
    dialog.addEventListener("keydown", (event) => {
      if (event.target.matches("select") || event.ctrlKey || event.metaKey || event.altKey) return;
      const act = { f: flip, d: differ }[event.key.toLowerCase()];
      if (act) { event.preventDefault(); act(); }
    });
  };
  const slide = () => dialog.style.setProperty("--at", `${part("at").value}%`);
  const flip = () => { part("at").value = Number(part("at").value) > 50 ? 0 : 100; slide(); };
  const differ = () => {
    const is = part("difference").getAttribute("aria-pressed") !== "true";
    part("difference").setAttribute("aria-pressed", String(is));
    dialog.classList.toggle("differs", is);
  };
  const show = () => {
    for (const [name, image] of [["left", "over"], ["right", "under"]]) {
      const chosen = pictures[Number(part(name).value)];
      const source = chosen.querySelector("img");
      part(image).src = source.src;
      part(image).alt = source.alt;
      part(image).className = `${image} ${source.className}`;
    }
    slide();
  };
  document.addEventListener("click", (event) => {
    const frame = event.target.closest?.("button.frame");
    if (!frame) return;
    if (!dialog?.isConnected) build();
    pictures = [...document.querySelectorAll(".panels button.frame")];
    const seed = (one) => one.dataset.title.split(", ").pop();
    const here = pictures.indexOf(frame), like = pictures.filter((one) => one !== frame && seed(one) === seed(frame));
    const other = pictures.indexOf(like[like.length - 1] || frame);
    for (const [name, index] of [["left", Math.min(here, other)], ["right", Math.max(here, other)]]) {
      part(name).replaceChildren(...pictures.map((one, number) => new Option(one.dataset.title, number)));
      part(name).value = String(index);
    }
    part("at").value = 50;
    dialog.classList.remove("differs");
    part("difference").setAttribute("aria-pressed", "false");
    show();
    dialog.showModal();
    part("at").focus();
  });
})();
