"use strict";
// The page to check and edit captions: counts edits, and saves all captions as a CSV table.
const fields = [...document.querySelectorAll("textarea")];
const report = document.querySelector("[role=status]");
let saved = true;

// An empty field gives one empty caption: its row tells the next page that the photo was left out.
const captions = (field) => field.value.trim().split(/\s*\n\s*/);
const quoted = (text) => `"${text.replaceAll('"', '""')}"`;

function save() {
  const rows = fields.flatMap((field) => captions(field).map((text) => [field.dataset.image, text]));
  const csv = [["image", "caption"], ...rows].map((row) => row.map(quoted).join(",") + "\r\n").join("");
  const href = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
  Object.assign(document.createElement("a"), { href, download: "captions.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60000);
  saved = true;
  report.textContent = `${rows.filter(([, text]) => text).length} captions saved`;
}

document.querySelector("main").addEventListener("input", ({ target }) => {
  saved = false;
  target.closest("article").classList.toggle("changed", target.value !== target.defaultValue);
  report.textContent = `${document.querySelectorAll(".changed").length} of ${fields.length} photos edited, not saved`;
});
document.querySelector("button").addEventListener("click", save);
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "s") return;
  event.preventDefault();
  save();
});
addEventListener("beforeunload", (event) => saved || event.preventDefault());
