//! `baton serve`: rank 0, its endpoint and, unless the others are started by hand, their
//! processes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};
use arith::base::Rank;
use backend::Backend;
use cpu::{Cpu, Isa};
use ring::head::{self, Handle, RingState};
use ring::join::{Alone, Join};
use ring::key::{self, Key};
use ring::tcp::Transport;
use text::Text;
use tokio::net::TcpListener;

use crate::args::{Serve, Shared};
use crate::local::{Locals, Recipe};
use crate::model::Model;
use crate::rank::{self, Joined, Place};
use crate::{signal, source};

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// What keeps rank 0 from loading or listening.
pub fn run(args: &Serve, log: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // The port first: nothing is loaded for an address that is taken.
    let address = SocketAddr::new(args.host, args.port);
    let listener = runtime.block_on(TcpListener::bind(address)).with_context(|| {
        format!("can't listen on {address}: choose another --port, or stop what uses it")
    })?;
    let address = listener.local_addr()?;
    let path = source::resolve(&args.shared.model)?;
    let mut settings = args.shared.settings(args.world);
    settings.queue = args.queue;
    settings.depth = args.depth;
    let model = Model::open(&path, settings)?;
    let text = Arc::new(Text::from_checkpoint(&model.checkpoint)?);
    for note in text.notes() {
        tracing::info!("{note}");
    }
    let head = Head::start(args, &model, log)?;
    tracing::info!(
        "serving {} on http://{address}/v1, layout {}, context {}",
        model.name(),
        model.layout,
        model.shapes.context_max
    );
    let app = api::App::new(head.handle.clone(), text, model.name());
    let ended = async {
        match signal::ended(true).await {
            Ok(name) => tracing::info!("{name}: no new requests, running replies may finish"),
            Err(error) => tracing::error!("no signal handler: {error}"),
        }
    };
    let served = runtime.block_on(api::serve(listener, app, ended));
    head.end();
    served?;
    tracing::info!("done");
    Ok(())
}

/// Threads of each of `ranks` ranks of this machine.
pub fn threads(shared: &Shared, ranks: u32) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    shared.threads.unwrap_or((cores / ranks.max(1) as usize).max(1))
}

/// Rank 0 on its thread, and whatever runs beside it.
struct Head {
    handle: Handle,
    thread: JoinHandle<()>,
    transport: Option<Arc<Transport>>,
    locals: Option<Locals>,
}

impl Head {
    fn start(args: &Serve, model: &Model, log: &str) -> Result<Self> {
        let world = model.layout.world();
        let by_hand = !args.next.is_none();
        ensure!(!by_hand || world > 1, "--next is for a layout of two ranks or more; this one has {world}");
        let threads = threads(&args.shared, if by_hand { 1 } else { world });
        if world == 1 {
            return Self::lead(model, threads, Alone, None, None);
        }
        let (place, locals) = if by_hand {
            (by_hand_place(args)?, None)
        } else {
            let secret = key::generate_secret()?;
            let places = rank::local_places(world, &Key::from_bytes(&*secret)?)?;
            let recipe = Recipe {
                shared: args.shared.clone(),
                layout: model.layout.to_string(),
                threads,
                secret,
                log: log.to_owned(),
            };
            let locals = Locals::start(&recipe, &places)?;
            let Some(place) = places.into_iter().next() else { bail!("a ring has a rank 0") };
            (place, Some(locals))
        };
        let transport = place.transport(model)?;
        Self::lead(model, threads, Joined(transport.clone()), Some(transport), locals)
    }

    fn lead<J: Join + 'static>(
        model: &Model,
        threads: usize,
        join: J,
        transport: Option<Arc<Transport>>,
        locals: Option<Locals>,
    ) -> Result<Self> {
        let cpu = Arc::new(Cpu::new(threads, Isa::Auto)?);
        let (handle, driver) = head::pair();
        let range = model.range(Rank(0))?;
        tracing::info!("rank 0: loading layers {}..{} and the ends of {}", range.start, range.end, model.name());
        let leader = model.leader(cpu.device(), join, driver)?;
        let mut engine = model.stage(Rank(0), cpu)?;
        let thread = std::thread::Builder::new()
            .name("baton-rank-0".into())
            .spawn(move || leader.run(&mut engine))?;
        Ok(Self { handle, thread, transport, locals })
    }

    /// Drains rank 0, then ends the ranks beside it.
    fn end(self) {
        let serving = self.handle.state() == RingState::Ready;
        self.handle.drain();
        if let (Some(transport), false) = (&self.transport, serving) {
            // A join that waits for ranks would outlast the drain.
            transport.shutdown();
        }
        let _ = self.thread.join();
        if let Some(transport) = &self.transport {
            transport.shutdown();
        }
        if let Some(locals) = self.locals {
            locals.end();
        }
    }
}

fn by_hand_place(args: &Serve) -> Result<Place> {
    let key = args.key.as_deref().map(Key::load).transpose()?;
    let next = args.next.iter().cloned().collect();
    Ok(Place { rank: Rank(0), listen: args.listen.clone(), next, key })
}
