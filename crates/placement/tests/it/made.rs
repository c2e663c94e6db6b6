//! Made nodes and models.

use placement::{Ask, Costs, Curve, Kind, Layer, Link, Model, Node, Point, Runs};

pub const GIB: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;
/// Ethernet of a gigabit a second.
pub const GIGABIT: Link = Link { latency_s: 100e-6, bytes_per_s: 118e6 };

/// A model of `layers` attention layers of `layer_mib` each.
pub fn model(layers: usize, layer_mib: u64) -> Model {
    Model {
        layers: vec![Layer { kind: Kind::Attention, weight_bytes: layer_mib * MIB }; layers],
        ends_bytes: 200 * MIB,
        drafter_bytes: 0,
        hidden: 2_048,
        attention_width: 2_048,
        intermediate: 8_192,
        kv_bytes: 2_048,
        state_bytes: 0,
        row_bytes: 100_000,
        rows_max: 512,
        twin_bytes: 0,
    }
}

/// Times that grow with rows: `step_s` for one row, `row_s` for each further one, and a little
/// with the context.
pub fn curve(step_s: f64, row_s: f64) -> Curve {
    let at = |context: u32, rows: u32| {
        let own_s = step_s + f64::from(rows - 1) * row_s;
        Point { context, rows, time_s: own_s * (1.0 + f64::from(context) * 2e-5) }
    };
    let points = [0, 4_096].into_iter().flat_map(|c| [1, 8, 512].map(|rows| at(c, rows)));
    Curve::new("made", points.collect()).expect("times")
}

/// A node with `memory_gib` whose layers take `step_s` for one row and a tenth of it for each
/// further one.
pub fn node(name: &str, memory_gib: f64, step_s: f64) -> Node {
    Node {
        name: name.into(),
        device: format!("made {name}"),
        memory_bytes: (memory_gib * GIB as f64) as u64,
        runtime_bytes: 50 * MIB,
        endpoint_bytes: 7 * MIB,
        runs: Runs::default(),
        costs: Costs {
            attention: curve(step_s, step_s / 10.0),
            recurrent: curve(step_s * 0.8, step_s / 12.0),
            ends: curve(step_s * 2.0, step_s / 5.0),
            round_s: 20e-6,
            stacks: Vec::new(),
        },
    }
}

pub fn ask() -> Ask {
    Ask { context: 4_096, streams: 4, prompt: 4_096, ..Ask::default() }
}
