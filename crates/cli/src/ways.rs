//! How the projections of a layout's groups meet the other members, as chosen at load.

use std::fmt::Write as _;

use anyhow::Result;
use arith::base::Rank;
use serde_json::{Value, json};
use stage::{Choice, StageConfig, Way, choices};
use wire::layout::Layout;

use crate::model::{Model, split_of};

/// What the leader of each group of `layout` does in a step; nothing where there are no groups.
///
/// # Errors
/// A layout that is not of this model.
pub fn of_layout(model: &Model, layout: &Layout) -> Result<Vec<(Rank, String, Vec<Choice>)>> {
    let config = model.checkpoint.config();
    layout.check(config.layers())?;
    let mut all = Vec::new();
    for rank in (0..layout.world()).map(Rank) {
        let Some(group) = layout.group(rank) else { continue };
        let (kv, ends) = (model.settings.kv, rank.0 == 0);
        let part = StageConfig { range: layout.range(rank), ends, kv, loop_mode: false };
        let chosen = choices(config, &part, split_of(Some(group), 0))?;
        all.push((rank, format!("{}{}", group.split.name(), group.members), chosen));
    }
    Ok(all)
}

/// The same for programs: of each projection what a step costs the leader, in bytes a row.
pub fn json(groups: &[(Rank, String, Vec<Choice>)]) -> Value {
    let of_group = |(rank, group, chosen): &(Rank, String, Vec<Choice>)| {
        let of_projection = |choice: &Choice| {
            let Choice { projection, layers, way, traffic } = *choice;
            json!({
                "rank": rank.0, "group": group, "projection": projection,
                "chosen": way.to_string(), "layers": layers,
                "exchanges": layers * traffic.exchanges,
                "sent_bytes": 4 * layers * traffic.sent,
                "taken_bytes": 4 * layers * traffic.taken,
            })
        };
        chosen.iter().map(of_projection).collect::<Vec<_>>()
    };
    groups.iter().flat_map(of_group).collect()
}

/// The same for people; empty where there are no groups.
pub fn table(groups: &[(Rank, String, Vec<Choice>)]) -> String {
    let mut text = String::new();
    if groups.is_empty() {
        return text;
    }
    text.push_str(
        "\n| rank | group | projection | chosen | layers | exchanges a step | sent a row | taken |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (rank, group, chosen) in groups {
        for Choice { projection, layers, way, traffic } in chosen {
            let way = match way {
                Way::Whole => "whole on each",
                Way::Nodes => "tree nodes added",
                Way::Outputs if *projection == "output" => "outputs split, merged on the leader",
                Way::Outputs => "row gathered, outputs split",
            };
            let _ = writeln!(
                text,
                "| {rank} | {group} | {projection} | {way} | {layers} | {} | {} B | {} B |",
                layers * traffic.exchanges,
                4 * layers * traffic.sent,
                4 * layers * traffic.taken
            );
        }
    }
    text
}
