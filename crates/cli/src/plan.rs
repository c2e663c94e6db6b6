//! `baton plan`: which machine should hold which layers, from what `baton probe` measured.

mod links;
mod shape;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use api::Compared;
use placement::truth::Expected;
use placement::{Ask, Facts, Node, PLAN_VERSION, Plan, Problem, table};
use wire::layout::Layout;

use crate::args::PlanArgs;
use crate::device::OWN_ARITH;
use crate::model::Model;
use crate::{probe, source, ways};

pub use links::links;
pub use shape::{kinds, shape};

/// The most bytes of a file that `baton probe` or `baton plan` wrote.
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
    // Of the layout that was asked about, or else of the one that was found.
    let layout = match &args.shared.layout {
        Some(_) => model.layout.clone(),
        None => Layout::parse(&plan.layout)?,
    };
    let groups = ways::of_layout(&model, &layout)?;
    if args.json {
        let mut told = serde_json::to_value(&plan)?;
        told["groups"] = ways::json(&groups);
        println!("{told}");
        return Ok(());
    }
    let problem = Problem::new(&shape, &nodes, &links, &ask)?;
    print!("{}{}{}", table(&problem, &plan.choice), ways::table(&groups), own(&nodes));
    if args.dry_run {
        println!();
        for order in &plan.ranks {
            let own = if args.shared.allow_own_arith { " --allow-own-arith" } else { "" };
            let arguments = order.arguments(&args.shared.model).join(" ");
            println!("{}: baton {arguments}{own}", order.node);
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

/// A plan, as `baton plan --json` writes it.
///
/// # Errors
/// A file that can't be read, or holds something else.
pub fn read(file: &Path) -> Result<Plan> {
    let text = text_of(file, || "write it with `baton plan MODEL .. --json`".into())?;
    let name = file.display();
    let plan: Plan = serde_json::from_str(&text)
        .with_context(|| format!("{name}: expected what `baton plan --json` writes"))?;
    let version = plan.version;
    ensure!(
        version == PLAN_VERSION,
        "{name}: version {version}, expected {PLAN_VERSION}; plan anew"
    );
    Ok(plan)
}

/// What is predicted of the ring that `model` is served by.
///
/// # Errors
/// A plan of another model or layout.
pub fn compared(plan: &Plan, model: &Model) -> Result<Compared> {
    let digest = model.digest()?;
    ensure!(
        plan.model == digest,
        "--plan: made for another model, arithmetic or KV type; plan anew"
    );
    let layout = model.layout.to_string();
    ensure!(plan.layout == layout, "--plan: of the layout {}, not of {layout}", plan.layout);
    Ok(Compared::new(Expected::of(&plan.prediction, plan.ask.streams, plan.ask.prompt)))
}

/// The text of a file that one of our commands wrote; `write` says how.
fn text_of(file: &Path, write: impl Fn() -> String) -> Result<String> {
    let name = file.display();
    let bytes = fs::metadata(file).with_context(|| format!("{name}: {}", write()))?.len();
    ensure!(bytes <= PROBE_BYTES_MAX, "{name}: {bytes} bytes, more than `baton` writes");
    fs::read_to_string(file).with_context(|| format!("{name}"))
}

/// Whether a device computes a function of its own, by its words.
fn computes_its_own(node: &Node) -> bool {
    node.device.contains(OWN_ARITH)
}

/// The nodes that compute functions of their own, a line each.
fn own(nodes: &[Node]) -> String {
    let own = nodes.iter().filter(|node| computes_its_own(node));
    own.map(|node| format!("{}: {}\n", node.name, node.device)).collect()
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
        let write = || format!("run `baton probe {} --out {name}` there", args.shared.model);
        let text = text_of(file, write)?;
        let one: Facts = serde_json::from_str(&text)
            .with_context(|| format!("{name}: expected what `baton probe --out` writes"))?;
        ensure!(
            !computes_its_own(&one.node) || args.shared.allow_own_arith,
            "{name}: {} does not compute arith 1 ({}); leave it out, or --allow-own-arith for \
             replies that hold for one placement alone",
            one.node.name,
            one.node.device
        );
        all.push(one);
        Facts::check_all(&all, &digest).with_context(|| format!("{name}"))?;
    }
    Ok(all)
}
