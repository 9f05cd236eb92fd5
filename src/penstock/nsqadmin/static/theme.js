// Applies the chosen theme before the first paint. Without a choice, the system theme applies.
(() => {
  "use strict";
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Without local storage, the system theme applies.
  }
})();
