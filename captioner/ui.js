// What Gradio's own components leave out. Run once, when the page of `captioner demo` has loaded.
() => {
  // The arrow keys go through the words and the captions, as in any group of radio buttons.
  document.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const group = step && event.target.closest(".words, .others");
    if (!group) return;
    const buttons = [...group.querySelectorAll("input")];
    const next = buttons[buttons.indexOf(event.target) + step];
    event.preventDefault();
    next?.focus();
    next?.click();
  });
  // Example pictures are buttons without a name.
  const name = () =>
    document.querySelectorAll(".gallery-item:not([aria-label])").forEach((button, number) => {
      button.ariaLabel = `Example ${number + 1}`;
    });
  new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
  name();
}
