//! `baton top`: the ring of a running server in the terminal, as its page shows it.

use std::collections::VecDeque;
use std::fmt::Write;
use std::io::{self, IsTerminal, Write as _};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::Top;
use crate::client::Client;

/// Looks that rates are taken over: ranks tell of themselves once a second.
const LOOKS: usize = 5;
/// Tokens that were taken in and given out, as /metrics names them.
const PROMPT: &str = "baton_prompt_tokens_total";
const REPLY: &str = "baton_generation_tokens_total";
/// Characters of a device's name.
const DEVICE_CHARS: usize = 34;

/// Looks and draws until the process ends; with `--once` a single time.
///
/// # Errors
/// With `--once`, no server; else an output that is gone.
pub fn run(args: &Top) -> Result<()> {
    let client = Client::new(&args.url);
    let pause = Duration::from_secs_f64(args.every);
    let mut looks = VecDeque::new();
    if args.once {
        looks.push_back(Look::take(&client)?);
        std::thread::sleep(pause);
        looks.push_back(Look::take(&client)?);
        print!("{}", frame(&looks));
        return Ok(());
    }
    let mut out = io::stdout();
    let terminal = out.is_terminal();
    loop {
        let text = match Look::take(&client) {
            Ok(look) => {
                looks.push_back(look);
                if looks.len() > LOOKS {
                    looks.pop_front();
                }
                frame(&looks)
            }
            Err(error) => {
                looks.clear();
                format!("{}\n", crate::line(&error))
            }
        };
        let text = if terminal { redrawn(&text) } else { format!("{text}\n") };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        std::thread::sleep(pause);
    }
}

/// Over the frame before: each line to its end, then nothing below.
fn redrawn(text: &str) -> String {
    format!("\x1b[H{}\x1b[JCtrl-C leaves", text.replace('\n', "\x1b[K\n"))
}

/// What /health and /metrics said, and when.
struct Look {
    at: Instant,
    health: Value,
    metrics: String,
}

impl Look {
    fn take(client: &Client) -> Result<Self> {
        let mut health = client.get("/health")?;
        anyhow::ensure!(
            health["ring"].is_object(),
            "the server tells its state to whoever has a key: put one into BATON_API_KEY"
        );
        if health["ranks"].as_array().is_none_or(Vec::is_empty) {
            health["ranks"] = cut(health["layout"].as_str().unwrap_or_default());
        }
        Ok(Self { at: Instant::now(), health, metrics: client.text("/metrics")? })
    }

    fn number(&self, pointer: &str) -> f64 {
        self.health.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// A series without labels.
    fn series(&self, name: &str) -> f64 {
        let line = self.metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
    }

    fn text(&self, pointer: &str) -> &str {
        self.health.pointer(pointer).and_then(Value::as_str).unwrap_or("-")
    }
}

/// Ranks of which the layout alone is known.
fn cut(layout: &str) -> Value {
    let number = |text: &str| text.parse::<u32>().unwrap_or_default();
    let ranges = layout.split(',').filter_map(|range| range.split_once(':'));
    ranges.map(|(first, end)| json!({"layers": [number(first), number(end)]})).collect()
}

/// The newest look, with what changed since the oldest.
fn frame(looks: &VecDeque<Look>) -> String {
    let (Some(then), Some(now)) = (looks.front(), looks.back()) else { return String::new() };
    let seconds = (now.at - then.at).as_secs_f64();
    // Counts start over with each epoch.
    let change = |pointer: &str| (now.number(pointer) - then.number(pointer)).max(0.0);
    let rate = |pointer: &str| if seconds > 0.0 { change(pointer) / seconds } else { 0.0 };
    let counted = |name| (now.series(name) - then.series(name)).max(0.0) / seconds.max(1e-3);
    let mut out = String::new();
    let up = now.number("/uptime_s");
    let _ = writeln!(
        out,
        "baton  {}  {}  up {up:.0} s",
        now.text("/model"),
        now.health.pointer("/ring/detail").and_then(Value::as_str).unwrap_or(now.text("/status")),
    );
    let _ = writeln!(
        out,
        "replies   {} running, {} waiting   tokens/s {:.1} reply, {:.1} prompt   rounds/s {:.1}",
        now.number("/running"),
        now.number("/waiting"),
        counted(REPLY),
        counted(PROMPT),
        rate("/rounds"),
    );
    let _ = writeln!(
        out,
        "KV pages  {} of {} in use, {} of them kept for {} prompts   context {}\n",
        now.number("/kv_pages_used"),
        now.number("/kv_pages"),
        now.number("/kv_pages_kept"),
        now.number("/kept_prompts"),
        now.number("/context_max"),
    );
    let _ = writeln!(
        out,
        "rank  layers    {:DEVICE_CHARS$}  memory      round    busy  sends      link",
        "device"
    );
    let ranks = now.health["ranks"].as_array().map_or(0, Vec::len);
    for rank in 0..ranks {
        let at = |name: &str| format!("/ranks/{rank}/{name}");
        let (rounds, computed) = (change(&at("rounds")), change(&at("computed_s")));
        let round = if rounds > 0.0 {
            format!("{:.2} ms", computed / rounds * 1e3)
        } else {
            "-".to_owned()
        };
        let busy = (computed * 100.0 / seconds.max(1e-3)).min(100.0);
        let device: String = now.text(&at("device")).chars().take(DEVICE_CHARS).collect();
        let layers = format!("{}..{}", now.number(&at("layers/0")), now.number(&at("layers/1")));
        let _ = writeln!(
            out,
            "{rank:>4}  {layers:8}  {device:DEVICE_CHARS$}  {:>6}  {round:>9}  {busy:>3.0} %  {:>9}  {}",
            bytes(now.number(&at("memory_bytes"))),
            format!("{}/s", bytes(rate(&at("sent_bytes")))),
            rtt(now.number(&at("link_us"))),
        );
    }
    out.push_str(&nodes(&now.health["nodes"]));
    if now.health["last_reply"].is_object() {
        out.push_str(&proof(now));
    }
    out
}

/// The plan and a line a node, of a server with nodes.
fn nodes(told: &Value) -> String {
    let Some(nodes) = told["nodes"].as_array() else { return String::new() };
    let mut out = format!("\nplan  {}\n", told["plan"].as_str().unwrap_or("none"));
    for node in nodes {
        let text = |name: &str| node[name].as_str().unwrap_or_default();
        let rank = match node["rank"].as_u64() {
            Some(rank) => format!("rank {rank}"),
            None => "no rank".into(),
        };
        let _ = writeln!(
            out,
            "      {:16}  {:8}  {rank:8}  {}",
            text("name"),
            text("state"),
            text("why")
        );
    }
    out
}

/// What the last reply of this key took, and the hash that proves it.
fn proof(now: &Look) -> String {
    let of = |name: &str| now.number(&format!("/last_reply/{name}"));
    let drafts = match of("drafted") {
        0.0 => String::new(),
        drafted => format!(", {} of {drafted} drafts kept", of("accepted")),
    };
    format!(
        "\nlast reply  {} tokens, {:.1} a second, first after {:.0} ms{drafts}, {} of the cache\n\
         SHA-256 of its tokens  {}\n",
        of("tokens"),
        of("decode_tokens_per_s"),
        of("ttft_ms"),
        of("cached_tokens"),
        now.text("/last_reply/token_sha256"),
    )
}

fn rtt(us: f64) -> String {
    if us > 0.0 { format!("{:.2} ms", us / 1e3) } else { "-".into() }
}

/// `12 MiB`, in three digits or so.
fn bytes(count: f64) -> String {
    let mut count = count;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if count < 1_000.0 {
            return if unit == "B" || count >= 10.0 {
                format!("{count:.0} {unit}")
            } else {
                format!("{count:.1} {unit}")
            };
        }
        count /= 1024.0;
    }
    format!("{count:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: Instant, rounds: u64) -> Look {
        let rank = |n: u64| {
            json!({"rank": n, "layers": [n * 4, n * 4 + 4], "device": "x86-64, 2 threads",
                   "memory_bytes": 70 << 20, "rounds": rounds, "computed_s": rounds as f64 * 0.0015,
                   "sent_bytes": rounds * 2_048, "link_us": 80 * n})
        };
        let health = json!({
            "status": "ok", "ring": {"state": "ready", "detail": null}, "model": "tiny",
            "running": 2, "waiting": 1, "rounds": rounds, "kv_pages_used": 3, "kv_pages": 64,
            "kv_pages_kept": 1, "kept_prompts": 1, "context_max": 8_192, "uptime_s": 12.3,
            "ranks": [rank(0), rank(1)],
            "last_reply": {"tokens": 139, "decode_tokens_per_s": 81.25, "ttft_ms": 12.4,
                "drafted": 8, "accepted": 5, "cached_tokens": 64, "token_sha256": "ab".repeat(32)},
        });
        let metrics = format!("# TYPE {REPLY} counter\n{REPLY} {}\n{PROMPT} 10\n", rounds * 2);
        Look { at, health, metrics }
    }

    #[test]
    fn a_node_has_a_line_with_its_state_rank_and_reason() {
        let told = json!({"plan": "a 0..4, b 4..8", "nodes": [
            {"name": "b", "state": "up", "rank": 1, "returns": 0},
            {"name": "c", "state": "gone", "why": "no word for 8 s", "rank": null, "returns": 2},
        ]});
        let said = nodes(&told);
        let lines: Vec<Vec<&str>> = said.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1][1..], ["a", "0..4,", "b", "4..8"]);
        assert_eq!(lines[2], ["b", "up", "rank", "1"]);
        assert_eq!(lines[3][..4], ["c", "gone", "no", "rank"]);
        assert!(said.ends_with("no word for 8 s\n"), "{said}");
        assert_eq!(nodes(&Value::Null), "");
    }

    #[test]
    fn a_frame_has_rates_over_its_looks_and_a_line_a_rank() {
        let start = Instant::now();
        let looks = VecDeque::from([look(start, 100), look(start + Duration::from_secs(2), 300)]);
        let said = frame(&looks);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "baton  tiny  ok  up 12 s");
        assert!(lines[1].contains("2 running, 1 waiting   tokens/s 200.0 reply"), "{said}");
        assert!(lines[1].ends_with("rounds/s 100.0"), "{said}");
        assert!(lines[5].contains("0..4"), "{said}");
        assert!(lines[6].ends_with("70 MiB    1.50 ms   15 %  200 KiB/s  0.08 ms"), "{said}");
        assert_eq!(
            lines[8],
            "last reply  139 tokens, 81.2 a second, first after 12 ms, 5 of 8 drafts kept, 64 of \
             the cache"
        );
        assert_eq!(lines[9], format!("SHA-256 of its tokens  {}", "ab".repeat(32)));
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{said}");
    }

    #[test]
    fn a_server_without_a_reply_has_no_line_of_one() {
        let start = Instant::now();
        let mut looks = VecDeque::from([look(start, 1), look(start, 1)]);
        looks[1].health["last_reply"] = Value::Null;
        assert!(!frame(&looks).contains("last reply"));
    }

    #[test]
    fn a_new_epoch_whose_counts_start_over_shows_no_negative_rate() {
        let start = Instant::now();
        let looks = VecDeque::from([look(start, 300), look(start + Duration::from_secs(1), 3)]);
        let said = frame(&looks);
        assert!(!said.contains("-1") && said.contains("rounds/s 0.0"), "{said}");
    }

    #[test]
    fn bytes_are_short() {
        let said = [0.0, 999.0, 5_000.0, 70.0 * 1_048_576.0, 2e12].map(bytes);
        assert_eq!(said, ["0 B", "999 B", "4.9 KiB", "70 MiB", "1.8 TiB"]);
    }
}
