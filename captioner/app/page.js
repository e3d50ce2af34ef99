// Keyboard control that Gradio lacks. Runs once, when the page of `captioner demo` loads.
document.addEventListener("keydown", (event) => {
  // The arrow keys move between captions, as in any group of radio buttons.
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const group = step && event.target.closest(".others");
  if (!group) return;
  const buttons = [...group.querySelectorAll("input")];
  const next = buttons[buttons.indexOf(event.target) + step];
  event.preventDefault();
  next?.focus();
  next?.click();
});
// Gradio leaves the list of a dropdown open when Tab moves on, and closes it on Escape.
document.addEventListener("focusout", ({ target, relatedTarget }) => {
  if (relatedTarget && target.matches('input[role="combobox"]'))
    target.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
});
// Gradio refuses a file that is not named like an image. The server says what the file is instead.
for (const kind of ["change", "drop"]) document.addEventListener(kind, (event) => {
  const given = event.target.closest?.("#photo") && (event.dataTransfer ?? event.target).files;
  if (!given || [...given].every(({ type }) => type.startsWith("image/"))) return;
  const dataTransfer = new DataTransfer();
  for (const file of given) dataTransfer.items.add(new File([file], file.name, { type: "image/*" }));
  if (kind === "change") return void (event.target.files = dataTransfer.files);
  event.preventDefault();
  event.stopImmediatePropagation();
  event.target.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}, true);
// Gradio sends a number with every key that is typed. A number out of range is held back until the user
// leaves the field, and is then replaced by the nearest number in range. An empty field gets its last
// number back.
const last = new WeakMap();
for (const kind of ["focusin", "input", "change"]) document.addEventListener(kind, (event) => {
  const { target } = event, { min, max, value } = target;
  if (target.type !== "number") return;
  const least = min === "" ? -Infinity : Number(min), most = max === "" ? Infinity : Number(max);
  const nearest = value === "" ? last.get(target) : String(Math.min(Math.max(value, least), most));
  if (value !== "" && Number(nearest) === Number(value)) return void last.set(target, value);
  event.stopImmediatePropagation();
  if (kind !== "change") return;
  target.value = nearest;
  target.dispatchEvent(new Event("input", { bubbles: true }));
}, true);
