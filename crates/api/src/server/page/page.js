"use strict";
// The page: a chat over /v1/chat/completions, and the ring as /health tells it.

const $ = (id) => document.getElementById(id);
/// Looks that rates are taken over: ranks tell of themselves once a second.
const LOOKS = 5;
const KEPT = ["temperature", "top_p", "top_k", "max_tokens", "thinking", "system"];
const NARROW = matchMedia("(max-width: 52rem)");
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const turns = [];
const looks = [];
const wheel = { angle: -Math.PI / 2, until: 0, before: 0, laps: 1 };
let running = null;
let exchange = null;
let chat = 0;

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
  $("turns").scrollTop = $("turns").scrollHeight;
  return item;
}

function list(id, pairs) {
  $(id).replaceChildren(...pairs.flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    detail.classList.toggle("hash", /^[0-9a-f]{64}$/.test(value));
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
  $("again").disabled = on || !turns.some((turn) => turn.role === "user");
}

// One event's data after the other, from a body of server-sent events; `raw` gets all of it.
async function* events(body, raw) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    raw.push(value);
    held += value;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data: ") ? line.slice(6).trim() : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
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
  $("turns").scrollTop = $("turns").scrollHeight;
}

// What is asked. Without a seed a reply follows from its prompt, so another one draws a seed.
function asked(another) {
  const system = $("system").value.trim();
  const seed = number("seed") ?? (another ? Math.floor(Math.random() * 2 ** 32) : undefined);
  return {
    messages: system ? [{ role: "system", content: system }, ...turns] : turns,
    stream: true, stream_options: { include_usage: true }, seed,
    temperature: number("temperature"), top_p: number("top_p"), top_k: number("top_k"),
    max_tokens: number("max_tokens"), reasoning_effort: $("thinking").value || undefined,
  };
}

async function refusal(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${response.status}: ${text.slice(0, 200)}`;
  }
}

async function reply(another = false) {
  const body = JSON.stringify(asked(another));
  const mine = chat;
  running = new AbortController();
  busy(true);
  const item = bubble("assistant", "");
  item.setAttribute("aria-busy", "true");
  const said = { content: "", reasoning: "" };
  const raw = [];
  const at = { started: performance.now(), first: null, last: null };
  let [usage, proof, due] = [null, null, 0];
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body, signal: running.signal,
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const event of events(response.body, raw)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      proof = event.baton ?? proof;
      const delta = event.choices[0]?.delta;
      if (!delta?.content && !delta?.reasoning_content) continue;
      said.content += delta.content ?? "";
      said.reasoning += delta.reasoning_content ?? "";
      at.last = performance.now();
      at.first ??= at.last;
      travel();
      // Once a frame: tokens may come faster than eyes and layout.
      if (!due) due = requestAnimationFrame(() => { due = 0; show(item, said); });
    }
  } catch (error) {
    if (error.name === "AbortError") item.classList.add("stopped");
    else bubble("error", error.message);
  }
  cancelAnimationFrame(due);
  show(item, said);
  item.removeAttribute("aria-busy");
  running = null;
  busy(false);
  if (chat !== mine) return;
  if (said.content) turns.push({ role: "assistant", content: said.content });
  else if (!said.reasoning && !item.classList.contains("stopped")) item.remove();
  busy(false);
  exchange = proof ? `${body}\n${raw.join("")}` : null;
  $("save").hidden = !exchange;
  report(usage, proof, at);
}

function report(usage, proof, at) {
  const facts = [];
  if (at.first !== null) facts.push(["first token", `${Math.round(at.first - at.started)} ms`]);
  if (usage) facts.push(["tokens", `${usage.prompt_tokens} + ${usage.completion_tokens}`]);
  if (usage?.completion_tokens > 1 && at.last > at.first) {
    const rate = (usage.completion_tokens - 1) / (at.last - at.first) * 1000;
    facts.push(["rate", `${rate.toFixed(1)} tokens/s`]);
  }
  if (proof) {
    facts.push(["placement", proof.placement], ["arith", proof.arith]);
    if (proof.drafted) facts.push(["drafts kept", `${proof.accepted} of ${proof.drafted}`]);
    if (proof.cached_tokens) facts.push(["of the cache", `${proof.cached_tokens} tokens`]);
    facts.push(["SHA-256 of its tokens", proof.token_sha256]);
  } else {
    facts.push(["hash", "none: the reply did not come to its end"]);
  }
  list("proof", facts);
}

// A token sets the wheel going for a while, at most two laps a second so that eyes can follow.
function travel() {
  const now = performance.now();
  const rate = 1000 / Math.max(now - (wheel.token ?? 0), 1);
  wheel.token = now;
  wheel.laps = Math.min(Math.max(rate, 0.5), 2);
  if (wheel.until < now) {
    wheel.before = now;
    wheel.until = now + 1000;
    $("loop").classList.add("runs");
    requestAnimationFrame(turn);
  } else {
    wheel.until = now + 1000;
  }
}

function point(angle) {
  return [120 + 92 * Math.cos(angle), 75 + 50 * Math.sin(angle)];
}

function turn(now) {
  const ranks = $("ranks").children.length;
  const over = now > wheel.until;
  wheel.angle += Math.max(now - wheel.before, 0) / 1000 * wheel.laps * 2 * Math.PI;
  wheel.before = now;
  const [x, y] = point(STILL.matches ? -Math.PI / 2 : wheel.angle);
  $("token").setAttribute("cx", x);
  $("token").setAttribute("cy", y);
  const part = (wheel.angle + Math.PI / 2) / (2 * Math.PI) + 0.5 / ranks;
  const at = Math.floor((part % 1) * ranks);
  for (const holder of [$("ranks"), $("nodes")]) {
    [...holder.children].forEach((rank, n) => {
      rank.classList.toggle("here", !over && (STILL.matches || n === at));
    });
  }
  if (!over) requestAnimationFrame(turn);
  else $("loop").classList.remove("runs");
}

function bytes(count) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (count < 1000) return `${count.toFixed(unit === "B" || count >= 10 ? 0 : 1)} ${unit}`;
    count /= 1024;
  }
  return `${count.toFixed(1)} TiB`;
}

// Nodes on the loop and a card each, made anew when the ring is another one.
function seat(ranks) {
  if ($("ranks").children.length === ranks.length) return;
  const space = "http://www.w3.org/2000/svg";
  $("ranks").replaceChildren(...ranks.map(() => document.createElement("li")));
  $("nodes").replaceChildren(...ranks.map((_, n) => {
    const [x, y] = point(-Math.PI / 2 + n / ranks.length * 2 * Math.PI);
    const group = document.createElementNS(space, "g");
    const circle = document.createElementNS(space, "circle");
    const text = document.createElementNS(space, "text");
    for (const [name, value] of [["cx", x], ["cy", y], ["r", 14]]) circle.setAttribute(name, value);
    text.setAttribute("x", x);
    text.setAttribute("y", y + 4);
    text.textContent = n;
    group.append(circle, text);
    return group;
  }));
}

// Ranks of the newest look, with what changed since the oldest; counts start over with an epoch.
function draw(then, now) {
  const seconds = Math.max((now.at - then.at) / 1000, 0.001);
  const change = (a, b) => Math.max((b ?? 0) - (a ?? 0), 0);
  const ranks = now.health.ranks ?? now.health.layout.split(",").map((range) => (
    { layers: range.split(":") }));
  seat(ranks);
  ranks.forEach((rank, n) => {
    const before = then.health.ranks?.[n] ?? rank;
    const rounds = change(before.rounds, rank.rounds);
    const computed = change(before.computed_s, rank.computed_s);
    const lines = [[`memory ${bytes(rank.memory_bytes ?? 0)}`,
      `round ${rounds ? (computed / rounds * 1000).toFixed(2) : "-"} ms`,
      `busy ${Math.min(computed / seconds * 100, 100).toFixed(0)} %`]];
    if (ranks.length > 1) {
      const rate = change(before.sent_bytes, rank.sent_bytes) / seconds;
      const trip = rank.link_us ? `, ${(rank.link_us / 1000).toFixed(2)} ms there and back` : "";
      lines.push([`to rank ${(n + 1) % ranks.length}: ${bytes(rate)}/s${trip}`]);
    }
    const card = $("ranks").children[n];
    const first = `rank ${n}: layers ${rank.layers[0]} to ${rank.layers[1] - 1}` +
      (n === 0 ? " and the ends" : "");
    const notes = [rank.device ?? "", ...lines.map((line) => line.join(", "))].map((line) => {
      const note = document.createElement("small");
      note.textContent = line;
      return note;
    });
    card.replaceChildren(first, ...notes);
  });
  const { health } = now;
  const rate = change(then.health.rounds, health.rounds) / seconds;
  list("facts", [
    ["replies", `${health.running} running, ${health.waiting} waiting`],
    ["rounds", `${rate.toFixed(1)} a second, ${health.rounds} in all`],
    ["KV pages", `${health.kv_pages_used} of ${health.kv_pages}`],
    ["context", `${health.context_max} tokens`], ["up", `${Math.round(health.uptime_s)} s`],
  ]);
}

async function look() {
  try {
    const health = await (await fetch("/health", { headers: headers() })).json();
    const state = health.status === "ok" ? "ready" : health.status;
    $("state").textContent = health.ring?.detail ?? state;
    if (!health.layout) {
      $("model").textContent = health.ring ? "starting" : "needs an API key: Settings";
      return;
    }
    $("model").textContent = health.model;
    looks.push({ at: performance.now(), health });
    if (looks.length > LOOKS) looks.shift();
    draw(looks[0], looks.at(-1));
  } catch {
    looks.length = 0;
    $("state").textContent = "the server does not answer";
  }
}

function remember() {
  const kept = Object.fromEntries(KEPT.map((id) => [id, $(id).value]));
  localStorage.setItem("baton", JSON.stringify(kept));
}

function recall() {
  const kept = JSON.parse(localStorage.getItem("baton") ?? "{}");
  KEPT.filter((id) => typeof kept[id] === "string").forEach((id) => { $(id).value = kept[id]; });
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
  const last = turns.findLastIndex((turn) => turn.role === "user");
  turns.length = last + 1;
  const items = [...$("turns").children];
  items.slice(items.findLastIndex((item) => item.className === "user") + 1)
    .forEach((item) => item.remove());
  if (last >= 0) reply(true);
});
$("fresh").addEventListener("click", () => {
  running?.abort();
  chat += 1;
  turns.length = 0;
  $("turns").replaceChildren();
  $("text").focus();
  busy(running !== null);
});
$("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([exchange], { type: "text/plain" }));
  link.download = "reply.txt";
  link.click();
  URL.revokeObjectURL(link.href);
});
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("settings").addEventListener("change", remember);
NARROW.addEventListener("change", () => { $("ring").open = !NARROW.matches; });
$("ring").open = !NARROW.matches;
recall();
busy(false);
if (!NARROW.matches) $("text").focus();
look();
setInterval(look, 1000);
