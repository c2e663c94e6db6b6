//! What the ring says of itself, rank by rank: for Prometheus and for `/health`.

use std::fmt::Write;

use grammar::Cost;
use ring::head::{Facts, Seat, Tally};
use serde_json::{Value, json};

use super::metrics::label;

/// A rank's series: name, kind, and its value in a tally.
type Series = (&'static str, &'static str, fn(&Tally) -> f64);

const RANK: [Series; 3] = [
    ("rank_rounds_total", "counter", |tally| tally.done as f64),
    ("rank_compute_seconds_total", "counter", |tally| tally.computed_us as f64 / 1e6),
    ("rank_memory_bytes", "gauge", |tally| tally.memory_bytes as f64),
];

/// Those of its link to the rank after.
const LINK: [Series; 2] = [
    ("link_sent_bytes_total", "counter", |tally| tally.sent_bytes as f64),
    ("link_round_trip_seconds", "gauge", |tally| f64::from(tally.link_us) / 1e6),
];

/// Prometheus' text of the ranks, the links between them, the rounds through them, and of the masks
/// beside those. Counts begin again with each epoch.
pub(super) fn write(out: &mut String, facts: &Facts, cost: Cost) {
    let _ = writeln!(out, "# TYPE baton_rank_info gauge");
    for (rank, Seat { layers, backend, device, .. }) in facts.seats.iter().enumerate() {
        let (backend, device) = (label(backend), label(device));
        let layers = format!("{}:{}", layers.start, layers.end);
        let labels = format!("layers=\"{layers}\",backend=\"{backend}\",device=\"{device}\"");
        let _ = writeln!(out, "baton_rank_info{{rank=\"{rank}\",{labels}}} 1");
    }
    for (name, kind, value) in RANK {
        let _ = writeln!(out, "# TYPE baton_{name} {kind}");
        for tally in &facts.tallies {
            let (rank, value) = (tally.origin, value(tally));
            let _ = writeln!(out, "baton_{name}{{rank=\"{rank}\"}} {value}");
        }
    }
    // Tables are equal on all ranks, so what streams and kept prompts hold of them is too.
    for (name, value) in [
        ("rank_kv_pages_used", facts.pages_used),
        ("rank_states_used", facts.running),
        ("rank_states_kept", facts.keeps),
    ] {
        let _ = writeln!(out, "# TYPE baton_{name} gauge");
        for rank in 0..facts.seats.len() {
            let _ = writeln!(out, "baton_{name}{{rank=\"{rank}\"}} {value}");
        }
    }
    for (name, kind, value) in LINK {
        let _ = writeln!(out, "# TYPE baton_{name} {kind}");
        for tally in facts.tallies.iter().filter(|_| facts.world > 1) {
            let (from, to) = (tally.origin.0, (tally.origin.0 + 1) % facts.world);
            let value = value(tally);
            let _ = writeln!(out, "baton_{name}{{rank=\"{from}\",to=\"{to}\"}} {value}");
        }
    }
    let (rounds, took) = facts.trips;
    for (name, value) in [
        ("ring_rounds_total", rounds as f64),
        ("ring_round_seconds_total", took.as_secs_f64()),
        ("masks_total", cost.masks as f64),
        ("mask_wait_seconds_total", cost.waited.as_secs_f64()),
        ("mask_cut_seconds_total", cost.cut.as_secs_f64()),
    ] {
        let _ = writeln!(out, "# TYPE baton_{name} counter\nbaton_{name} {value}");
    }
}

/// The ranks for people and the page: each with what it is and what it has done in this epoch.
pub(super) fn ranks(facts: &Facts) -> Value {
    let one = |(rank, seat): (usize, &Seat)| {
        let mine = |tally: &&Tally| tally.origin.0 as usize == rank;
        let tally = facts.tallies.iter().find(mine).copied().unwrap_or_default();
        json!({
            "rank": rank,
            "layers": [seat.layers.start, seat.layers.end],
            "backend": seat.backend,
            "device": seat.device,
            "rounds": tally.done,
            "computed_s": tally.computed_us as f64 / 1e6,
            "sent_bytes": tally.sent_bytes,
            "link_us": tally.link_us,
            "memory_bytes": tally.memory_bytes,
        })
    };
    facts.seats.iter().enumerate().map(one).collect()
}
