//! From what nodes measured to a plan, and to what each rank is started with.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context, Result};
use node::file::{Listed, Nodes as File};
use node::head::{End, Head, Plan};
use node::membership::State;
use node::message::{ADDRESSES_MAX, Launch, SOURCES_MAX, Secret, Wanted};
use placement::truth::Expected;
use placement::{Ask, Facts, Links, Objective, Problem, table};
use ring::address;
use ring::key::{Key, generate_secret};

use super::lead::Seated;
use super::ways;
use crate::model::Model;
use crate::plan;

/// Prompt that a plan is for.
const PROMPT: u32 = 2_048;
const GIB: f64 = (1u64 << 30) as f64;

/// Makes plans.
pub struct Planner {
    model: Arc<Model>,
    shape: placement::Model,
    digest: String,
    /// This machine's.
    own: Facts,
    /// Most memory of this machine, where a user says so, in GiB.
    head_gib: Option<f64>,
    listed: Vec<Listed>,
    /// Links as a user says them.
    links: Vec<String>,
    /// Which node holds which layers, where a user says so.
    layers: Option<String>,
    /// Where rank 0 listens, where a user says so.
    listen: Option<SocketAddr>,
    /// By which address of this machine each node was reached.
    reached: HashMap<usize, IpAddr>,
    listeners: HashMap<SocketAddr, Arc<TcpListener>>,
    /// What rank 0 needs of the newest plan.
    seated: Option<(u64, Seated)>,
    /// What it predicts.
    expected: Option<(u64, Expected)>,
}

impl Planner {
    /// Of what this machine measured, and what the file lists.
    ///
    /// # Errors
    /// Headers that can't be read, and an address of another form.
    pub fn new(
        model: Arc<Model>,
        mut own: Facts,
        file: &File,
        layers: Option<String>,
    ) -> Result<Self> {
        let (shape, digest) = (plan::shape(&model)?, model.digest()?);
        limit(&mut own, file.head.memory_limit);
        let parse = |text: &String| {
            text.parse().with_context(|| format!("listen = {text:?}: expected ADDR:PORT"))
        };
        Ok(Self {
            model,
            shape,
            digest,
            own,
            head_gib: file.head.memory_limit,
            listed: file.nodes.clone(),
            links: file.links.clone(),
            layers,
            listen: file.head.listen.as_ref().map(parse).transpose()?,
            reached: HashMap::new(),
            listeners: HashMap::new(),
            seated: None,
            expected: None,
        })
    }

    /// One more node.
    pub fn add(&mut self, node: Listed) {
        self.listed.push(node);
    }

    /// What this machine is called.
    pub fn head(&self) -> &str {
        &self.own.node.name
    }

    /// A node was reached by this address of this machine.
    pub fn reached(&mut self, node: usize, local: IpAddr) {
        self.reached.insert(node, local);
    }

    /// By which address of this machine a node was reached.
    pub fn local(&self, node: usize) -> Option<IpAddr> {
        self.reached.get(&node).copied()
    }

    /// What this machine measured once more.
    pub fn measured(&mut self, own: Facts) {
        self.own = own;
        limit(&mut self.own, self.head_gib);
    }

    /// The model as `node` looks for it; one that lacks it also takes it from others that are
    /// there.
    fn wanted(&self, node: usize, head: &Head) -> Wanted {
        let mut wanted = head.wanted(node).clone();
        if let Some(units) = &mut wanted.units {
            let gives = |other: &usize| {
                let is_up = head.members()[*other].state == State::Up;
                *other != node && is_up && self.listed[*other].key == self.listed[node].key
            };
            let others = (0..self.listed.len()).filter(gives);
            units.sources.extend(others.map(|other| self.listed[other].address.clone()));
            units.sources.truncate(SOURCES_MAX);
        }
        wanted
    }

    /// What rank 0 needs of a plan, once.
    pub fn seated(&mut self, number: u64) -> Option<Seated> {
        self.seated.take_if(|(of, _)| *of == number).map(|(_, seated)| seated)
    }

    /// What the newest plan, of that number, predicts.
    pub fn expected(&self, number: u64) -> Option<Expected> {
        let newest = self.expected.as_ref().filter(|(of, _)| *of == number);
        newest.map(|(_, expected)| expected.clone())
    }

    /// The best plan on this machine and `nodes`.
    ///
    /// # Errors
    /// Nothing fits, with what is missing.
    pub fn plan(&mut self, number: u64, nodes: &[usize], head: &Head) -> Result<Plan> {
        let mut facts = vec![self.own.clone()];
        for node in nodes {
            facts.push(self.facts(*node, head)?);
        }
        let ends: Vec<End> = std::iter::once(None).chain(nodes.iter().copied().map(Some)).collect();
        for (from, of) in ends.iter().zip(&mut facts) {
            for to in nodes.iter().filter(|to| *from != Some(**to)) {
                let addresses = self.addresses(*to, head)?;
                of.paths.extend(ways::paths(
                    head.link(*from, *to),
                    &self.listed[*to].name,
                    &addresses,
                )?);
            }
        }
        let Best { made, mut table, links, time_s } = self.best(&facts)?;
        table += &ways::table(&facts, &links, &made.choice.best);
        let stages = &made.choice.best.stages;
        let secret = generate_secret()?;
        let listener = match stages.last().context("a plan has stages")?.nodes[0] {
            0 => None,
            last => Some(self.listener(nodes[last - 1])?),
        };
        let mut seats = Vec::new();
        for (stage, order) in stages.iter().zip(&made.ranks).skip(1) {
            let node = nodes[stage.nodes[0] - 1];
            let next = match &listener {
                Some(listener) if order.rank as usize + 1 == stages.len() => {
                    listener.local_addr()?.to_string()
                }
                _ => order.next.first().context("a rank's next has an address")?.clone(),
            };
            let arguments = [
                ("--rank", order.rank.to_string()),
                ("--layout", made.layout.clone()),
                ("--next", next),
            ];
            let launch = Launch {
                plan: number,
                rank: order.rank,
                layout: made.layout.clone(),
                layers: (stage.layers.start as u32, stage.layers.end as u32),
                wanted: self.wanted(node, head),
                arguments: arguments.into_iter().flat_map(|(f, v)| [f.into(), v]).collect(),
                secret: Secret::new(&*secret),
            };
            seats.push((node, launch));
        }
        let part = |stage: &placement::Stage| {
            let name = &facts[stage.nodes[0]].node.name;
            format!("{name} {}..{}", stage.layers.start, stage.layers.end)
        };
        let line = stages.iter().map(part).collect::<Vec<_>>().join(", ");
        let first = made.ranks.first().context("a plan has rank 0")?;
        let (layout, next) = (made.layout.clone(), first.next.clone());
        let key = Key::from_bytes(&*secret)?;
        let Ask { streams, prompt, .. } = made.ask;
        self.expected = Some((number, Expected::of(&made.prediction, streams, prompt)));
        self.seated = Some((number, Seated { plan: number, layout, listener, next, key, table }));
        Ok(Plan { number, seats, line, time_s })
    }

    /// The best placement, or the user's while its nodes are there; and its table.
    fn best(&self, facts: &[Facts]) -> Result<Best> {
        // Of nodes that are not there nothing can be said.
        let is_there = |name: &str| facts.iter().any(|facts| facts.node.name == name);
        let said = |text: &&String| match text.split_once('=').and_then(|(p, _)| p.split_once(':'))
        {
            Some((a, b)) => is_there(a) && is_there(b),
            None => true,
        };
        let texts: Vec<String> = self.links.iter().filter(said).cloned().collect();
        let links = plan::links(&texts, facts)?;
        let shapes = &self.model.shapes;
        let ask = Ask {
            objective: Objective::Decode,
            context: shapes.context_max,
            streams: shapes.streams_max,
            prompt: PROMPT.min(shapes.context_max.saturating_sub(1)).max(1),
            chunk_rows: shapes.chunk_rows_max,
            head: Some(0),
            ..Ask::default()
        };
        let of = (&self.shape, &*self.digest);
        let make = |layers| placement::Plan::make(of, facts, &links, &ask, layers);
        let (made, is_given) = match self.layers.as_deref().map(|layers| make(Some(layers))) {
            Some(Ok(plan)) => (plan, true),
            Some(Err(error)) => {
                tracing::warn!("--layers: {error}; the best of what is there instead");
                (make(None)?, false)
            }
            None => (make(None)?, false),
        };
        let nodes: Vec<_> = facts.iter().map(|facts| facts.node.clone()).collect();
        let problem = Problem::new(&self.shape, &nodes, &links, &ask)?;
        let table = table(&problem, &made.choice);
        // What a user asked for is taken back whenever it can be.
        let time_s = if is_given { 0.0 } else { made.choice.time_s };
        Ok(Best { made, table, links, time_s })
    }

    /// What a node measured, under the name and limits that the file gives it.
    fn facts(&self, node: usize, head: &Head) -> Result<Facts> {
        let listed = &self.listed[node];
        let measured = head.measured(node).cloned().unwrap_or_default();
        let mut facts: Facts = serde_json::from_value(measured)
            .with_context(|| format!("{}: what it measured", listed.name))?;
        facts.node.name.clone_from(&listed.name);
        limit(&mut facts, listed.memory_limit);
        facts.listen = self.addresses(node, head)?;
        facts.paths.clear();
        Ok(facts)
    }

    /// Where a node's rank listens: beside its agent, and where the agent says.
    ///
    /// # Errors
    /// An address of another form.
    pub fn addresses(&self, node: usize, head: &Head) -> Result<Vec<String>> {
        let (host, _) = address::split(&self.listed[node].address)?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let facts = &head.members()[node].facts;
        let mut addresses = vec![format!("{host}:{}", facts.stage_port)];
        addresses.extend(facts.addresses.iter().take(ADDRESSES_MAX - 1).cloned());
        Ok(addresses)
    }

    /// Where rank 0 listens for the rank of `node`: by the address that reaches it. One socket
    /// stays through all plans.
    fn listener(&mut self, node: usize) -> Result<Arc<TcpListener>> {
        let local = self.reached.get(&node).copied().context("the last node was not reached")?;
        let address = self.listen.unwrap_or(SocketAddr::new(local, 0));
        if let Some(listener) = self.listeners.get(&address) {
            return Ok(listener.clone());
        }
        let listener = TcpListener::bind(address);
        let listener = Arc::new(listener.with_context(|| format!("can't listen on {address}"))?);
        self.listeners.insert(address, listener.clone());
        Ok(listener)
    }
}

/// A placement, its table, and what it counts as beside others.
struct Best {
    made: placement::Plan,
    table: String,
    links: Links,
    time_s: f64,
}

/// Keeps a node's rank within so many GiB.
fn limit(facts: &mut Facts, gib: Option<f64>) {
    if let Some(gib) = gib {
        facts.node.memory_bytes = facts.node.memory_bytes.min((gib * GIB) as u64);
    }
}
