// Sets the theme before anything is painted. Without a choice, the system's is followed.
(() => {
  "use strict";
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing follows the system.
  }
})();
