//! `baton plan`: which machine should hold which layers, from what `baton probe` measured.

mod links;
mod shape;

use std::fs;

use anyhow::{Context, Result, ensure};
use placement::{Ask, Facts, Node, Plan, Problem, table};
use wire::layout::Layout;

use crate::args::PlanArgs;
use crate::model::Model;
use crate::{probe, source, ways};

pub use links::links;
pub use shape::{kinds, shape};

/// The most bytes of a file that `baton probe` wrote.
const PROBE_BYTES_MAX: u64 = 1 << 20;

/// Prints the best placement.
///
/// # Errors
/// What can't be read, a measurement of another model, and what does not fit.
pub fn run(args: &PlanArgs) -> Result<()> {
    let model = Model::open(&source::resolve(&args.shared.model)?, args.shared.settings(1))?;
    let facts = facts(args, &model)?;
    let links = links(&args.link, &facts)?;
    let nodes: Vec<Node> = facts.iter().map(|facts| facts.node.clone()).collect();
    let ask = ask(args, &model, &nodes)?;
    let (shape, digest) = (shape(&model)?, model.digest()?);
    let layers = args.layers.as_deref();
    let plan = Plan::make((&shape, &digest), &facts, &links, &ask, layers)?;
    if args.json {
        println!("{}", serde_json::to_string(&plan)?);
        return Ok(());
    }
    // Of the layout that was asked about, or else of the one that was found.
    let layout = match &args.shared.layout {
        Some(_) => model.layout.clone(),
        None => Layout::parse(&plan.layout)?,
    };
    let groups = ways::of_layout(&model, &layout)?;
    let problem = Problem::new(&shape, &nodes, &links, &ask)?;
    print!("{}{}", table(&problem, &plan.choice), ways::table(&groups));
    if args.dry_run {
        println!();
        for order in &plan.ranks {
            println!("{}: baton {}", order.node, order.arguments(&args.shared.model).join(" "));
        }
    }
    Ok(())
}

/// What is asked of a placement of `model` on `nodes`.
///
/// # Errors
/// Names that no node has.
pub fn ask(args: &PlanArgs, model: &Model, nodes: &[Node]) -> Result<Ask> {
    let named = |name: &String| placement::named(nodes, name);
    let context = model.shapes.context_max;
    Ok(Ask {
        objective: args.objective.into(),
        context,
        streams: model.shapes.streams_max,
        prompt: args.prompt.min(context.saturating_sub(1)).max(1),
        chunk_rows: model.shapes.chunk_rows_max,
        head: args.head.as_ref().map(named).transpose()?,
        pinned: args.pin.iter().map(named).collect::<Result<_, _>>()?,
        excluded: args.exclude.iter().map(named).collect::<Result<_, _>>()?,
        groups: args.groups,
    })
}

/// What the nodes said, this machine alone where none is named.
fn facts(args: &PlanArgs, model: &Model) -> Result<Vec<Facts>> {
    if args.node.is_empty() {
        let threads = crate::serve::threads(&args.shared, 1);
        return Ok(vec![probe::probed(model, threads, false, None)?]);
    }
    let digest = model.digest()?;
    let mut all: Vec<Facts> = Vec::new();
    for file in &args.node {
        let name = file.display();
        let write =
            || format!("{name}: run `baton probe {} --out {name}` there", args.shared.model);
        let bytes = fs::metadata(file).with_context(write)?.len();
        ensure!(bytes <= PROBE_BYTES_MAX, "{name}: {bytes} bytes, not what `baton probe` writes");
        let text = fs::read_to_string(file).with_context(|| format!("{name}"))?;
        let one: Facts = serde_json::from_str(&text)
            .with_context(|| format!("{name}: expected what `baton probe --out` writes"))?;
        all.push(one);
        Facts::check_all(&all, &digest).with_context(|| format!("{name}"))?;
    }
    Ok(all)
}
