"use strict";
// The page: a chat over /v1/chat/completions, and the ring as /health tells it.

const $ = (id) => document.getElementById(id);
const turns = [];
let running = null;
let rounds = null;
let token = 0;

function headers() {
  const key = $("key").value.trim();
  const base = { "Content-Type": "application/json" };
  return key ? { ...base, Authorization: `Bearer ${key}` } : base;
}

function bubble(kind, text) {
  const item = document.createElement("li");
  item.className = kind;
  item.textContent = text;
  $("turns").append(item);
  item.scrollIntoView({ block: "end" });
  return item;
}

function list(id, pairs) {
  $(id).replaceChildren(...pairs.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    return [term, detail];
  }));
}

function number(id) {
  const value = $(id).value.trim();
  return value === "" ? undefined : Number(value);
}

function busy(on) {
  $("send").disabled = on;
  $("stop").disabled = !on;
  $("again").disabled = on || turns.length === 0;
}

// One event's data after the other, from a body of server-sent events.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function show(item, said) {
  item.replaceChildren();
  if (said.reasoning) {
    const thought = document.createElement("div");
    thought.className = "reasoning";
    thought.textContent = said.reasoning;
    item.append(thought);
  }
  item.append(said.content);
}

async function reply() {
  const system = $("system").value.trim();
  const body = {
    messages: system ? [{ role: "system", content: system }, ...turns] : turns,
    stream: true, stream_options: { include_usage: true },
    temperature: number("temperature"), top_p: number("top_p"), seed: number("seed"),
    max_tokens: number("max_tokens"),
  };
  running = new AbortController();
  busy(true);
  const item = bubble("assistant", "");
  const said = { content: "", reasoning: "" };
  const started = performance.now();
  let first = null;
  let usage = null;
  let proof = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      proof = event.baton ?? proof;
      const delta = event.choices[0]?.delta;
      if (!delta) continue;
      said.content += delta.content ?? "";
      said.reasoning += delta.reasoning_content ?? "";
      if (first === null && (delta.content || delta.reasoning_content)) first = performance.now();
      token += 1;
      show(item, said);
      travel();
      $("turns").scrollTop = $("turns").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") bubble("error", error.message);
  }
  if (said.content) turns.push({ role: "assistant", content: said.content });
  running = null;
  busy(false);
  report(usage, proof, started, first);
}

function report(usage, proof, started, first) {
  const facts = [];
  if (first !== null) facts.push(["first token", `${Math.round(first - started)} ms`]);
  if (usage) {
    const seconds = (performance.now() - first) / 1000;
    facts.push(["tokens", `${usage.prompt_tokens} + ${usage.completion_tokens}`]);
    facts.push(["rate", `${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`]);
  }
  for (const [name, value] of Object.entries(proof ?? {})) {
    facts.push([name, typeof value === "object" ? JSON.stringify(value) : String(value)]);
  }
  list("proof", facts);
}

// A token passes every rank.
function travel() {
  const ranks = [...$("ranks").children];
  ranks.forEach((rank, n) => rank.classList.toggle("here", n === token % ranks.length));
}

async function look() {
  try {
    const health = await (await fetch("/health", { headers: headers() })).json();
    $("state").textContent = health.ring?.detail ?? health.status;
    if (!health.layout) return;
    $("model").textContent = health.model;
    const layout = health.layout.split(",");
    if ($("ranks").children.length !== layout.length) {
      $("ranks").replaceChildren(...layout.map((range, n) => {
        const item = document.createElement("li");
        const note = document.createElement("small");
        item.textContent = `rank ${n}`;
        note.textContent = `layers ${range}${n === 0 ? ", ends" : ""}`;
        item.append(note);
        return item;
      }));
    }
    const now = performance.now();
    const before = rounds;
    rounds = { at: now, count: health.rounds };
    const rate = before ? (health.rounds - before.count) / (now - before.at) * 1000 : 0;
    list("facts", [
      ["running", health.running], ["waiting", health.waiting],
      ["rounds", health.rounds], ["rounds/s", Math.max(rate, 0).toFixed(1)],
      ["KV pages", `${health.kv_pages_used} of ${health.kv_pages}`],
      ["context", health.context_max], ["up", `${Math.round(health.uptime_s)} s`],
    ]);
  } catch {
    $("state").textContent = "the server does not answer";
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  $("text").value = "";
  turns.push({ role: "user", content: text });
  bubble("user", text);
  reply();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
$("stop").addEventListener("click", () => running?.abort());
$("again").addEventListener("click", () => {
  if (running) return;
  if (turns.at(-1)?.role === "assistant") {
    turns.pop();
    [...$("turns").querySelectorAll(".assistant")].at(-1)?.remove();
  }
  if (turns.length > 0) reply();
});
$("fresh").addEventListener("click", () => {
  running?.abort();
  turns.length = 0;
  $("turns").replaceChildren();
  $("text").focus();
  busy(false);
});
busy(false);
look();
setInterval(look, 1000);
