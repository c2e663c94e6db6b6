//! Ways between machines, as a planner takes them and as people see them.

use anyhow::{Context, Result};
use node::head::{End, Head, Link};
use placement::{Facts, Links, Path, Placement};
use serde_json::{Value, json};

use crate::probe::links::dead;
use crate::probe::{ago, now_s};

/// The paths to node `to` of `addresses`: as they were measured, dead where nothing comes through,
/// none where nobody knows.
///
/// # Errors
/// A measurement of another form.
pub fn paths(link: &Link, to: &str, addresses: &[String]) -> Result<Vec<Path>> {
    match link {
        Link::Measured(value) => {
            let mut paths: Vec<Path> = serde_json::from_value(value.clone())
                .with_context(|| format!("{to}: what was measured of the way there"))?;
            paths.iter_mut().for_each(|path| path.node = Some(to.to_owned()));
            Ok(paths)
        }
        Link::Dead(_) => {
            let path = |address: &String| Path { node: Some(to.to_owned()), ..dead(address) };
            Ok(addresses.iter().map(path).collect())
        }
        Link::Unknown | Link::Unmeasured(_) => Ok(Vec::new()),
    }
}

/// The ways that a plan counts on, for people: what each is taken for, and since when.
pub fn table(facts: &[Facts], links: &Links, best: &Placement) -> String {
    let stages = &best.stages;
    if stages.len() < 2 {
        return String::new();
    }
    let mut text =
        String::from("\n| from | to | round trip | rate | measured |\n|---|---|---|---|---|\n");
    for (at, stage) in stages.iter().enumerate() {
        let (from, to) = (stage.nodes[0], stages[(at + 1) % stages.len()].nodes[0]);
        let Some(link) = links.get(from, to) else { continue };
        let (a, b) = (&facts[from], &facts[to]);
        let of = |paths: &'_ [Path], name: &str| {
            let is_to = |path: &&Path| path.node.as_deref() == Some(name) && path.bytes_per_s > 0.0;
            paths.iter().filter(is_to).map(|path| path.measured_at).max()
        };
        let when = of(&a.paths, &b.node.name).or_else(|| of(&b.paths, &a.node.name));
        let is_measured = Links::measured(facts, None).get(from, to) == Some(link);
        let when = when.filter(|_| is_measured).map(|at| ago(now_s().saturating_sub(at)));
        text += &format!(
            "| {} | {} | {:.3} ms | {:.0} Mbit/s | {} |\n",
            a.node.name,
            b.node.name,
            link.latency_s * 2e3,
            link.bytes_per_s * 8e-6,
            when.unwrap_or_else(|| "not: as `links` says, or as usual".into())
        );
    }
    text
}

/// All ways that were looked at, for `/health`.
pub fn told(head: &Head, own: &str) -> Value {
    let name = |end: End| match end {
        Some(node) => head.members()[node].name.clone(),
        None => own.to_owned(),
    };
    let way = |(from, to, link): (End, usize, &Link)| {
        let mut way = json!({ "from": name(from), "to": name(Some(to)) });
        match link {
            Link::Measured(paths) => way["paths"] = paths.clone(),
            Link::Dead(why) | Link::Unmeasured(why) => way["why"] = why.as_str().into(),
            Link::Unknown => way["why"] = "not measured yet".into(),
        }
        way
    };
    head.links().map(way).collect()
}
