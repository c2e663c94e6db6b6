//! What is so when a line of the log comes.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use baton_ring::head::{Handle, RingState};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The lines of rank 0 that warn, each with the state that a handle saw as it came.
pub type Told = Arc<Mutex<Vec<(String, RingState)>>>;

/// Keeps them.
pub struct Listener {
    pub handle: Handle,
    pub told: Told,
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        write!(self.0, "{value:?}").unwrap();
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.told.lock().unwrap().push((line.0, self.handle.state()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
