// What moves on the pages: the tick that keeps them up to date, the search, the dialog, the keys.
(() => {
  "use strict";

  const body = document.body;
  const base = body.dataset.base;
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const dialog = document.getElementById("dialog");
  const keys = document.getElementById("keys");
  const pulse = document.getElementById("pulse");

  // The tick. Nobody looks at a hidden page, and a dialog is not to be disturbed.
  const tick = () => {
    if (!document.hidden && !dialog.open) htmx.trigger(body, "tick");
  };
  setInterval(tick, 1000 * Number(body.dataset.tick));
  document.addEventListener("visibilitychange", tick);

  const setLive = (isLive) => {
    pulse.textContent = isLive ? "live" : "not updating";
    pulse.classList.toggle("off", !isLive);
  };
  body.addEventListener("htmx:afterRequest", (event) => {
    setLive(event.detail.successful);
    if (event.detail.successful && event.detail.elt.hasAttribute("data-retry")) location.reload();
  });

  // What a page shows may be gone, or nobody may answer: then it says so where it showed it.
  body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id === "live" && [404, 502].includes(event.detail.xhr.status)) {
      event.detail.shouldSwap = true;
    }
  });

  // The theme.
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
      // It holds for this page, then.
    }
    body.dispatchEvent(new Event("theme"));
  };
  document.getElementById("theme").addEventListener("click", switchTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    body.dispatchEvent(new Event("theme"));
  });

  // The dialog shows what has been put into it.
  body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === dialog && !dialog.open) dialog.showModal();
    if (event.detail.target === found) showFound();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) {
      event.preventDefault();
      dialog.close();
    }
  });
  dialog.addEventListener("close", () => dialog.replaceChildren());
  document.getElementById("help").addEventListener("click", () => keys.showModal());

  // The search: arrows choose, Enter goes.
  const options = () => [...found.querySelectorAll("[role=option]")];
  const choose = (option) => {
    for (const each of options()) each.setAttribute("aria-selected", String(each === option));
    if (option) option.scrollIntoView({ block: "nearest" });
  };
  const showFound = () => {
    const isOpen = found.childElementCount > 0 && document.activeElement === search;
    found.classList.toggle("open", isOpen);
    search.setAttribute("aria-expanded", String(isOpen));
    choose(options()[0]);
  };
  const hideFound = () => {
    found.classList.remove("open");
    search.setAttribute("aria-expanded", "false");
  };
  search.addEventListener("keydown", (event) => {
    const all = options();
    const at = all.findIndex((each) => each.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (all.length) choose(all[(at + step + all.length) % all.length]);
    } else if (event.key === "Enter" && found.classList.contains("open") && all[at]) {
      event.preventDefault();
      all[at].click();
    } else if (event.key === "Escape") {
      hideFound();
      search.blur();
    }
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".search")) hideFound();
  });

  // What looks like a button is pressed like one.
  document.addEventListener("keydown", (event) => {
    if (event.key === " " && event.target.matches("a[role=button]")) {
      event.preventDefault();
      event.target.click();
    }
  });

  // The keys.
  const pages = { t: "topics", o: "consumers", n: "nodes", c: "counter", l: "lookup" };
  let before = "";
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "?") {
      keys.showModal();
    } else if (before === "g" && pages[event.key]) {
      location.assign(base + pages[event.key]);
    } else if (event.key === "d" && !dialog.open) {
      switchTheme();
    }
    before = event.key;
  });
})();
