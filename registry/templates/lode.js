// Adds comfort to pages that work without it: buttons that copy, `/` for the search, and results while typing.
"use strict";
(() => {
  const status = document.createElement("p");
  status.className = "hidden";
  status.setAttribute("role", "status");
  document.body.append(status);

  // The current tab of a repository, where the tabs do not fit.
  const tab = document.querySelector(".tabs [aria-current]");
  if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.clientWidth / 2 + tab.offsetWidth / 2;

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

  // A chat whose responses are shown as they are generated. The form does the same without this script.
  const chat = document.querySelector("form[data-chat]");
  if (chat) {
    const field = (name) => chat.elements[name];
    const say = (name, text) => { chat.querySelector(`[data-${name}]`).textContent = text; };
    const add = (parent, tag, className, text = "") => {
      const element = document.createElement(tag);
      element.className = className;
      element.textContent = text;
      parent.append(element);
      return element;
    };
    const addTurn = (name, className) => {
      const turn = add(chat.querySelector(".turns"), "li", className);
      add(turn, "h2", "", name);
      return turn;
    };
    const json = (name, label) => {
      try {
        return field(name).value.trim() ? JSON.parse(field(name).value) : undefined;
      } catch (error) {
        throw new Error(`${label}: ${error.message}`);
      }
    };
    const number = (name) => (field(name).value.trim() ? Number(field(name).value) : undefined);
    const button = chat.querySelector("button");
    let running;

    const body = (messages) => ({
      model: chat.dataset.chat,
      messages: field("system").value.trim() ? [{ role: "system", content: field("system").value }, ...messages] : messages,
      options: { temperature: number("temperature"), num_predict: Math.min(number("tokens") ?? 512, 4096) },
      think: field("think").value ? field("think").value === "on" : undefined,
      format: json("schema", "Schema"),
      tools: json("tools", "Tools"),
    });

    // Adds the records of a response to a turn, and returns the message that they make.
    const read = async (response, turn) => {
      const reply = { role: "assistant", content: "", thinking: "", tool_calls: [] };
      let text, reasoning, rest = "";
      const show = (record) => {
        if (record.error) throw new Error(record.error);
        const part = record.message ?? {};
        if (part.thinking) {
          if (!reasoning) {
            const details = document.createElement("details");
            details.open = true;
            turn.append(details);
            add(details, "summary", "", "Reasoning");
            reasoning = add(details, "p", "text muted");
          }
          reply.thinking += part.thinking;
          reasoning.append(part.thinking);
        }
        if (part.content) {
          text ??= add(turn, "p", "text");
          reply.content += part.content;
          text.append(part.content);
        }
        for (const call of part.tool_calls ?? []) {
          reply.tool_calls.push(call);
          add(add(turn, "pre", ""), "code", "", JSON.stringify(call.function, null, 2));
        }
        if (record.done && record.eval_duration) {
          const rate = (record.eval_count * 1e9 / record.eval_duration).toFixed(1);
          say("speed", `${record.eval_count} tokens, ${rate} per second`);
        }
      };
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      try {
        for (;;) {
          const { done, value } = await reader.read();
          if (done) break;
          const lines = (rest + value).split("\n");
          rest = lines.pop();
          for (const line of lines) if (line) show(JSON.parse(line));
        }
      } catch (error) {
        // What was generated before a stop is a part of the conversation.
        if (error.name !== "AbortError") throw error;
      }
      return reply;
    };

    chat.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (running) return running.abort();
      const message = field("message").value;
      if (!message.trim()) return;
      say("problem", "");
      say("speed", "");
      const turns = [];
      running = new AbortController();
      button.textContent = "Stop";
      try {
        const messages = [...JSON.parse(field("history").value), { role: "user", content: message }];
        const request = JSON.stringify(body(messages));
        turns.push(addTurn("You", "mine"));
        add(turns[0], "p", "text", message);
        turns.push(addTurn(chat.dataset.chat, ""));
        const response = await fetch("/lode/v1/chat", {
          method: "POST",
          headers: { "content-type": "application/json", "x-csrf-token": field("csrf").value },
          body: request,
          signal: running.signal,
        });
        if (!response.ok) throw new Error((await response.json()).error);
        messages.push(await read(response, turns[1]));
        field("history").value = JSON.stringify(messages);
        field("message").value = "";
      } catch (error) {
        for (const turn of turns) turn.remove();
        if (error.name !== "AbortError") say("problem", error.message);
      }
      running = undefined;
      button.textContent = "Send";
      field("message").focus();
    });
    field("message").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !running) {
        event.preventDefault();
        chat.requestSubmit();
      }
    });
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
