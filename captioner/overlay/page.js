// The controls of the HTML export.
document.querySelector("form").addEventListener("input", ({ currentTarget: form }) => {
  const opacity = form.elements.opacity.value;
  form.querySelector("output").textContent = `${opacity} %`;
  document.querySelectorAll("attention-map").forEach((map) => {
    map.opacity = opacity / 100;
    map.own = form.elements.scale.value === "own";
    map.draw();
  });
});
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
