// Adds comfort to pages that work without it: buttons that copy, `/` for the search, and results while typing.
"use strict";
(() => {
  const status = document.createElement("p");
  status.className = "hidden";
  status.setAttribute("role", "status");
  document.body.append(status);

  // Buttons that copy the text of an element.
  for (const target of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) break;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy ${target.dataset.copy}`);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(target.textContent.trim());
        button.textContent = "Copied";
        status.textContent = "Copied";
      } catch {
        button.textContent = "Press Ctrl+C";
        getSelection().selectAllChildren(target);
      }
      setTimeout(() => { button.textContent = "Copy"; status.textContent = ""; }, 2000);
    });
    const block = target.closest(".snippet");
    if (block) block.prepend(button); else target.after(" ", button);
  }

  const find = document.getElementById("find");
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      find.focus();
      find.select();
    }
  });

  // A form whose selection counts at once.
  for (const select of document.querySelectorAll("select[data-submit]")) {
    select.addEventListener("change", () => select.form.requestSubmit());
  }

  // Results while typing. The address holds the query, so that reloading and going back show the same.
  const results = document.getElementById("results");
  if (!results) return;
  let timer, request;
  find.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      request?.abort();
      request = new AbortController();
      const url = new URL(location.href);
      url.searchParams.delete("after");
      if (find.value.trim()) url.searchParams.set("q", find.value); else url.searchParams.delete("q");
      const current = document.getElementById("results");
      current.setAttribute("aria-busy", "true");
      try {
        const response = await fetch(url, { signal: request.signal, headers: { accept: "text/html" } });
        if (!response.ok) throw new Error(String(response.status));
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        const next = page.getElementById("results");
        if (!next) throw new Error("no results");
        current.replaceWith(next);
        history.replaceState(null, "", url);
        status.textContent = next.querySelector("[data-count]")?.textContent ?? "";
      } catch (error) {
        if (error.name !== "AbortError") current.removeAttribute("aria-busy");
      }
    }, 200);
  });
})();
