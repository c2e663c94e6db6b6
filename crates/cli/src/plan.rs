//! `baton plan`: which machine should hold which layers, from what `baton probe` measured.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use arith::base::{Rank, TILE_KEYS};
use placement::{Ask, Choice, Kind, Layer, Link, Links, Node, Problem, choose, predict, table};
use serde_json::json;
use stage::{PIECE_ROWS_MAX, Shapes, StageConfig, need_bytes};
use weights::config::{Config, Mixer};
use wire::layout::Layout;

use crate::args::PlanArgs;
use crate::model::Model;
use crate::probe::{self, Probed};
use crate::{source, ways};

/// The most bytes of a file that `baton probe` wrote.
const PROBE_BYTES_MAX: u64 = 1 << 20;
/// A link that nobody has told of: 0.2ms,1gbit.
const LINK: Link = Link { latency_s: 1e-4, bytes_per_s: 125e6 };

/// Prints the best placement.
///
/// # Errors
/// What can't be read, a measurement of another model, and what does not fit.
pub fn run(args: &PlanArgs) -> Result<()> {
    let model = Model::open(&source::resolve(&args.shared.model)?, args.shared.settings(1))?;
    let nodes = nodes(args, &model)?;
    let links = links(&args.link, &nodes)?;
    let named = |name: &String| placement::named(&nodes, name);
    let context = model.shapes.context_max;
    let ask = Ask {
        objective: args.objective.into(),
        context,
        streams: model.shapes.streams_max,
        prompt: args.prompt.min(context.saturating_sub(1)).max(1),
        chunk_rows: model.shapes.chunk_rows_max,
        head: args.head.as_ref().map(named).transpose()?,
        pinned: args.pin.iter().map(named).collect::<Result<_, _>>()?,
        excluded: args.exclude.iter().map(named).collect::<Result<_, _>>()?,
        groups: args.groups,
    };
    let shape = shape(&model)?;
    let problem = Problem::new(&shape, &nodes, &links, &ask)?;
    let choice = match &args.layers {
        None => choose(&problem)?,
        Some(text) => given(&problem, text)?,
    };
    // Of the layout that was asked about, or else of the one that was found.
    let layout = match &args.shared.layout {
        Some(_) => model.layout.clone(),
        None => Layout::parse(&choice.best.layout())?,
    };
    let groups = ways::of_layout(&model, &layout)?;
    match args.json {
        true => {
            let told = predict(&problem, &choice.best);
            let layout = choice.best.layout();
            println!("{}", json!({ "layout": layout, "choice": choice, "prediction": told }));
        }
        false => print!("{}{}", table(&problem, &choice), ways::table(&groups)),
    }
    Ok(())
}

/// What a user wrote, as a choice.
fn given(problem: &Problem<'_>, text: &str) -> Result<Choice> {
    let best = problem.given(text)?;
    let time_s = problem.time_s(&best).context("two of these nodes do not reach each other")?;
    Ok(Choice { best, time_s, runner_up: None, one: None })
}

/// The measured nodes, this machine alone where none is named.
fn nodes(args: &PlanArgs, model: &Model) -> Result<Vec<Node>> {
    if args.node.is_empty() {
        let probed = probe::probed(model, crate::serve::threads(&args.shared, 1), false, None)?;
        return Ok(vec![probed.node]);
    }
    let digest = model.digest()?;
    let mut nodes: Vec<Node> = Vec::new();
    for file in &args.node {
        let name = file.display();
        let write =
            || format!("{name}: run `baton probe {} --out {name}` there", args.shared.model);
        let bytes = fs::metadata(file).with_context(write)?.len();
        ensure!(bytes <= PROBE_BYTES_MAX, "{name}: {bytes} bytes, not what `baton probe` writes");
        let text = fs::read_to_string(file).with_context(|| format!("{name}"))?;
        let probed: Probed = serde_json::from_str(&text)
            .with_context(|| format!("{name}: expected what `baton probe --out` writes"))?;
        ensure!(
            probed.model == digest,
            "{name}: measured on another model or arithmetic; run `baton probe {} --out {name}` \
             there again",
            args.shared.model
        );
        if nodes.iter().any(|node| node.name == probed.node.name) {
            bail!("{name}: a second node called {}; give one a --name", probed.node.name);
        }
        nodes.push(probed.node);
    }
    Ok(nodes)
}

/// Links as `0.2ms,940mbit` for all pairs and `a:b=5ms,100mbit` or `a:b=none` for one, both ways;
/// those that no text names are of the default.
fn links(texts: &[String], nodes: &[Node]) -> Result<Links> {
    let count = nodes.len();
    let (pairs, all): (Vec<_>, Vec<_>) = texts.iter().partition(|text| text.contains('='));
    let mut rest = LINK;
    for text in all {
        rest = parse_link(text)?;
    }
    let mut links = vec![vec![Some(rest); count]; count];
    for text in pairs {
        let (names, link) = text.split_once('=').context("a pair")?;
        let (a, b) = names.split_once(':').with_context(|| format!("--link {text}: a:b=..."))?;
        let find = |name| placement::named(nodes, name).with_context(|| format!("--link {text}"));
        let link = (link.trim() != "none").then(|| parse_link(link)).transpose()?;
        let (a, b) = (find(a)?, find(b)?);
        (links[a][b], links[b][a]) = (link, link);
    }
    Ok(Links::new(count, links)?)
}

/// Reads a round trip and a rate: `0.2ms,940mbit`.
fn parse_link(text: &str) -> Result<Link> {
    let parsed = || {
        let (time, rate) = text.split_once(',')?;
        let ms: f64 = time.trim().strip_suffix("ms")?.parse().ok()?;
        let rate = rate.trim();
        let bits = match rate.strip_suffix("gbit") {
            Some(gbit) => gbit.parse::<f64>().ok()? * 1e9,
            None => rate.strip_suffix("mbit")?.parse::<f64>().ok()? * 1e6,
        };
        Some(Link { latency_s: ms / 2e3, bytes_per_s: bits / 8.0 })
    };
    let is_fine = |link: &Link| link.latency_s >= 0.0 && link.bytes_per_s > 0.0;
    let link = parsed().filter(is_fine);
    link.with_context(|| format!("--link {text}: expected a round trip and a rate, 0.2ms,940mbit"))
}

/// What each layer mixes rows with.
pub fn kinds(config: &Config) -> Vec<Kind> {
    match config {
        Config::Qwen35(config) => {
            let kind = |mixer: &Mixer| match mixer {
                Mixer::Attention => Kind::Attention,
                Mixer::Recurrent => Kind::Recurrent,
            };
            config.mixers.iter().map(kind).collect()
        }
        other => vec![Kind::Attention; other.layers() as usize],
    }
}

/// What a second half of a prompt takes of a member of a group of two.
fn twin_bytes(model: &Model) -> Result<u64> {
    if !model.settings.prompt_pair {
        return Ok(0);
    }
    let range = 0..model.checkpoint.config().layers();
    let kv = model.settings.kv;
    let config = StageConfig { range, ends: true, kv, loop_mode: false };
    let share = stage::Share { index: 0, count: 2, ..stage::Share::default() };
    let need = stage::share_need_bytes(&model.checkpoint, &config, share, &model.shapes)?;
    Ok(need.twin_bytes)
}

/// What a placement needs to know of a model, as the stages themselves count it.
fn shape(model: &Model) -> Result<placement::Model> {
    let (checkpoint, config) = (&model.checkpoint, model.checkpoint.config());
    let need = |range, ends, shapes: &Shapes| {
        let kv = model.settings.kv;
        need_bytes(checkpoint, &StageConfig { range, ends, kv, loop_mode: false }, shapes)
    };
    let kinds = kinds(config);
    let shapes = Shapes { streams_max: 1, ..model.shapes };
    let more = Shapes { pages: shapes.pages + 1, ..shapes };
    let one = |layer: u32, shapes: &Shapes| need(layer..layer + 1, false, shapes);
    let of = |kind: Kind| kinds.iter().position(|found| *found == kind).map(|at| at as u32);
    let page_bytes =
        |layer| Ok::<_, anyhow::Error>(one(layer, &more)?.kv_bytes - one(layer, &shapes)?.kv_bytes);
    let kv_bytes = of(Kind::Attention).map(page_bytes).transpose()?.unwrap_or(0) / TILE_KEYS as u64;
    let state = |layer| Ok::<_, anyhow::Error>(one(layer, &shapes)?.state_bytes);
    let state_bytes = of(Kind::Recurrent).map(state).transpose()?.unwrap_or(0);
    let layers = kinds.iter().zip(0..).map(|(kind, layer)| {
        Ok(Layer { kind: *kind, weight_bytes: one(layer, &shapes)?.weights_bytes })
    });
    let (with, without) = (need(0..1, true, &shapes)?, one(0, &shapes)?);
    let whole = need(0..config.layers(), false, &shapes)?;
    let rows_max = shapes.round_rows_max.min(PIECE_ROWS_MAX as u32);
    let drafts = model.settings.drafters.mtp && config.mtp();
    let first = model.stage_config(Rank(0))?;
    let drafter_bytes = match drafts {
        true => stage::draft_need_bytes(checkpoint, &first, &shapes)?,
        false => 0,
    };
    let heads = config.heads();
    Ok(placement::Model {
        layers: layers.collect::<Result<_>>()?,
        ends_bytes: with.total_bytes() - without.total_bytes(),
        drafter_bytes,
        hidden: config.hidden() as u64,
        attention_width: (heads.query * heads.dim) as u64,
        intermediate: config.intermediate() as u64,
        kv_bytes,
        state_bytes,
        row_bytes: whole.buffers_bytes.div_ceil(rows_max.into()),
        rows_max,
        twin_bytes: twin_bytes(model)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_for_all_and_for_a_pair() {
        let node = |name: &str| Node {
            name: name.into(),
            device: "made".into(),
            memory_bytes: 0,
            runtime_bytes: 0,
            costs: placement::Costs::default(),
        };
        let nodes = [node("a"), node("b-1"), node("c")];
        let read = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).into()).collect();
            super::links(&texts, &nodes)
        };
        let far = Link { latency_s: 2.5e-3, bytes_per_s: 12.5e6 };
        let of_all = read(&["a:c=5ms,100mbit", "0.5ms,2gbit"]).expect("links");
        let all = Link { latency_s: 2.5e-4, bytes_per_s: 250e6 };
        assert_eq!(of_all.get(0, 1), Some(all));
        assert_eq!(of_all.get(2, 0), Some(far));
        let of_one = read(&["a:c=5ms,100mbit", "c:b-1=none"]).expect("links");
        assert_eq!(of_one.get(0, 1), Some(LINK), "one link leaves the others as they were");
        assert_eq!(of_one.get(2, 0), Some(far));
        assert_eq!(of_one.get(1, 2), None);
        assert_eq!(parse_link("0.2ms,1gbit").expect("the default, as help says it"), LINK);
        for bad in
            ["1gbit", "1ms", "1ms,1", "xms,1gbit", "a:d=1ms,1gbit", "a=1ms,1gbit", "1ms,0mbit"]
        {
            let error = read(&[bad]).expect_err(bad).to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
