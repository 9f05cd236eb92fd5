// Periodic refresh, search, confirmation dialog, theme and keyboard shortcuts.
(() => {
  "use strict";

  const body = document.body;
  const base = body.dataset.base;
  const search = document.getElementById("search");
  const results = document.getElementById("search-results");
  const dialog = document.getElementById("dialog");
  const shortcuts = document.getElementById("shortcuts");
  const liveStatus = document.getElementById("live-status");

  // Refresh the page periodically, unless it is hidden or a dialog is open.
  const refresh = () => {
    if (!document.hidden && !dialog.open) htmx.trigger(body, "refresh");
  };
  setInterval(refresh, 1000 * Number(body.dataset.refreshSeconds));
  document.addEventListener("visibilitychange", refresh);

  const setLive = (isLive) => {
    liveStatus.textContent = isLive ? "live" : "not updating";
    liveStatus.classList.toggle("off", !isLive);
  };
  body.addEventListener("htmx:afterRequest", (event) => {
    setLive(event.detail.successful);
    if (event.detail.successful && event.detail.elt.hasAttribute("data-retry")) location.reload();
  });

  // Show error pages (not found, no daemon reachable) in place of the refreshed part.
  body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "live" && [404, 502].includes(event.detail.xhr.status)) {
      event.detail.shouldSwap = true;
    }
  });

  // Theme.
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const switchTheme = () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("theme", theme);
    } catch {
      // Without local storage, the theme applies to this page only.
    }
    body.dispatchEvent(new Event("theme"));
  };
  document.getElementById("theme").addEventListener("click", switchTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    body.dispatchEvent(new Event("theme"));
  });

  // Open the dialog when htmx has put a confirmation into it.
  body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === dialog && !dialog.open) dialog.showModal();
    if (event.detail.target === results) showResults();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) {
      event.preventDefault();
      dialog.close();
    }
  });
  dialog.addEventListener("close", () => dialog.replaceChildren());
  document.getElementById("help").addEventListener("click", () => shortcuts.showModal());

  // Search: arrow keys select a result, Enter opens it.
  const options = () => [...results.querySelectorAll("[role=option]")];
  const choose = (option) => {
    for (const each of options()) each.setAttribute("aria-selected", String(each === option));
    if (option) option.scrollIntoView({ block: "nearest" });
  };
  const showResults = () => {
    const isOpen = results.childElementCount > 0 && document.activeElement === search;
    results.classList.toggle("open", isOpen);
    search.setAttribute("aria-expanded", String(isOpen));
    choose(options()[0]);
  };
  const hideResults = () => {
    results.classList.remove("open");
    search.setAttribute("aria-expanded", "false");
  };
  search.addEventListener("keydown", (event) => {
    const all = options();
    const at = all.findIndex((each) => each.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (all.length) choose(all[(at + step + all.length) % all.length]);
    } else if (event.key === "Enter" && results.classList.contains("open") && all[at]) {
      event.preventDefault();
      all[at].click();
    } else if (event.key === "Escape") {
      hideResults();
      search.blur();
    }
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".search")) hideResults();
  });

  // Space activates links that look like buttons.
  document.addEventListener("keydown", (event) => {
    if (event.key === " " && event.target.matches("a[role=button]")) {
      event.preventDefault();
      event.target.click();
    }
  });

  // Keyboard shortcuts.
  const pages = { t: "topics", o: "consumers", n: "nodes", c: "counter", l: "lookup" };
  let previousKey = "";
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "?") {
      shortcuts.showModal();
    } else if (previousKey === "g" && pages[event.key]) {
      location.assign(base + pages[event.key]);
    } else if (event.key === "d" && !dialog.open) {
      switchTheme();
    }
    previousKey = event.key;
  });
})();
