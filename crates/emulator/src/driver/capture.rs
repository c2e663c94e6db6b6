//! What streams are asked for while they are captured: a list in the order of the calls, in which
//! it also runs. A real card may run what different streams were asked for at once; here it never
//! does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::code::{CAPTURE_ISOLATION, Code};
use super::stream::Stream;
use super::work::Work;

/// A capture that one stream began and others may have joined.
pub struct Capture {
    origin: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    work: Vec<Work>,
    /// How much each stream has of it.
    of: HashMap<u64, usize>,
    streams: Vec<Weak<Stream>>,
    over: bool,
}

/// A stream's part of a capture.
pub struct Lane {
    capture: Arc<Capture>,
    /// How much of which stream's part is before what comes next here.
    seen: HashMap<u64, usize>,
}

impl Capture {
    /// A capture that stream `origin` begins.
    pub fn begin(origin: u64) -> Arc<Self> {
        Arc::new(Self { origin, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream in.
    pub fn join(&self, stream: &Arc<Stream>) {
        self.state().streams.push(Arc::downgrade(stream));
    }

    pub fn began(&self, stream: u64) -> bool {
        self.origin == stream
    }

    pub fn is_over(&self) -> bool {
        self.state().over
    }

    /// Ends it; the streams that were in it.
    pub fn end(&self) -> Vec<Arc<Stream>> {
        let mut state = self.state();
        state.over = true;
        state.streams.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether all of every stream's part is among what was seen.
    pub fn is_joined(&self, seen: &HashMap<u64, usize>) -> bool {
        self.state().of.iter().all(|(stream, count)| seen.get(stream) == Some(count))
    }

    /// All of it.
    pub fn work(&self) -> Arc<[Work]> {
        self.state().work.clone().into()
    }
}

impl Lane {
    pub fn of(capture: &Arc<Capture>) -> Self {
        Self { capture: capture.clone(), seen: HashMap::new() }
    }

    /// Adds what stream `of` was asked for.
    pub fn add(&mut self, of: u64, work: Work) {
        let mut state = self.capture.state();
        state.work.push(work);
        let count = state.of.entry(of).or_default();
        *count += 1;
        self.seen.insert(of, *count);
    }

    /// Where it is now.
    pub fn place(&self) -> (Arc<Capture>, HashMap<u64, usize>) {
        (self.capture.clone(), self.seen.clone())
    }

    /// What comes next is behind another place.
    ///
    /// # Errors
    /// `CAPTURE_ISOLATION` for one of another capture.
    pub fn see(&mut self, of: &Arc<Capture>, seen: &HashMap<u64, usize>) -> Result<(), Code> {
        if !Arc::ptr_eq(&self.capture, of) {
            return Err(CAPTURE_ISOLATION);
        }
        for (&stream, &count) in seen {
            let own = self.seen.entry(stream).or_default();
            *own = count.max(*own);
        }
        Ok(())
    }
}
