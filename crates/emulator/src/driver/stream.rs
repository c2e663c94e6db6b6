//! Streams: a thread each, which does what it was asked for in that order. What a stream is asked
//! for while it is captured becomes part of a graph instead.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::capture::{Capture, Lane};
use super::card::{self, Card};
use super::code::{
    CAPTURE_ISOLATION, CAPTURE_UNJOINED, CAPTURE_UNSUPPORTED, CAPTURED_EVENT, Code,
    INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY,
};
use super::handle::{Handle, Handles};
use super::work::{Mark, Work};

/// What may wait in a stream; whoever asks for more waits, as with a real driver.
const WAITING_MAX: usize = 1_024;

/// Every stream by its name.
pub static STREAMS: Handles<Stream> = Handles::new();

/// The stream of a name, which must be of the card whose context is this thread's.
///
/// # Errors
/// `INVALID_CONTEXT`, `INVALID_HANDLE`, or what the card failed with.
pub fn current(name: Handle) -> Result<Arc<Stream>, Code> {
    let (card, stream) = (card::sound()?, STREAMS.get(name)?);
    (stream.card.number == card.number).then_some(stream).ok_or(INVALID_CONTEXT)
}

/// A stream.
pub struct Stream {
    pub card: &'static Card,
    number: u64,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// How many were asked for, and how many are done.
    asked: u64,
    done: u64,
    ended: bool,
    lane: Option<Lane>,
}

/// What an event was last recorded as.
#[derive(Clone, Default)]
pub enum Recorded {
    #[default]
    Never,
    /// A place in a stream.
    At(Arc<Mark>),
    /// A place in what is captured, and how much of which stream is before it.
    Captured(Arc<Capture>, HashMap<u64, usize>),
}

/// An event.
pub struct Event {
    pub is_timed: bool,
    recorded: Mutex<Recorded>,
}

impl Event {
    pub fn new(is_timed: bool) -> Self {
        Self { is_timed, recorded: Mutex::default() }
    }

    pub fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place in a stream that it was last recorded as.
    ///
    /// # Errors
    /// `CAPTURED_EVENT` for one in what is captured.
    pub fn mark(&self) -> Result<Option<Arc<Mark>>, Code> {
        match &*self.recorded() {
            Recorded::Never => Ok(None),
            Recorded::At(mark) => Ok(Some(mark.clone())),
            Recorded::Captured(..) => Err(CAPTURED_EVENT),
        }
    }
}

impl Stream {
    /// A stream of a card, with its thread.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` where the machine has no more threads.
    pub fn start(card: &'static Card) -> Result<Arc<Self>, Code> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let stream = Arc::new(Self {
            card,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        card.add(&stream);
        let own = stream.clone();
        let name = format!("stream {} of {}", stream.number, card.number);
        let thread = std::thread::Builder::new().name(name).spawn(move || own.work());
        thread.map(|_| stream).map_err(|_| OUT_OF_MEMORY)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// What the thread does until the stream is destroyed and empty.
    fn work(&self) {
        let mut queue = self.queue();
        loop {
            let Some(work) = queue.work.pop_front() else {
                if queue.ended {
                    return;
                }
                queue = self.wait(queue);
                continue;
            };
            drop(queue);
            work.run(self.card);
            queue = self.queue();
            queue.done += 1;
            self.changed.notify_all();
        }
    }

    /// Asks for work, now or in what is captured.
    ///
    /// # Errors
    /// What the card failed with.
    pub fn ask(&self, work: Work) -> Result<(), Code> {
        self.card.check()?;
        let mut queue = self.queue();
        if let Some(lane) = &mut queue.lane {
            lane.add(self.number, work);
            return Ok(());
        }
        while queue.work.len() >= WAITING_MAX {
            queue = self.wait(queue);
        }
        queue.work.push_back(work);
        queue.asked += 1;
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until all that was asked for so far is done.
    ///
    /// # Errors
    /// `CAPTURE_UNSUPPORTED` while it is captured; what the card failed with.
    pub fn finish(&self) -> Result<(), Code> {
        if self.is_captured() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        self.drain();
        self.card.check()
    }

    /// Waits until all that was asked for so far is done, also while it is captured.
    pub fn drain(&self) {
        let mut queue = self.queue();
        let asked = queue.asked;
        while queue.done < asked {
            queue = self.wait(queue);
        }
    }

    /// Has the thread end once all is done.
    pub fn end(&self) {
        self.queue().ended = true;
        self.changed.notify_all();
    }

    pub fn is_captured(&self) -> bool {
        self.queue().lane.is_some()
    }

    /// Records an event here.
    pub fn record(&self, event: &Event) -> Result<(), Code> {
        let lane = self.queue().lane.as_ref().map(Lane::place);
        let recorded = match lane {
            Some((capture, seen)) => Recorded::Captured(capture, seen),
            None => {
                let mark = Arc::new(Mark::default());
                self.ask(Work::Pass(mark.clone()))?;
                Recorded::At(mark)
            }
        };
        *event.recorded() = recorded;
        Ok(())
    }

    /// What comes next here waits for an event, or joins what that was captured in.
    ///
    /// # Errors
    /// `CAPTURE_ISOLATION` for one that is not of the same capture, `CAPTURED_EVENT` for one whose
    /// capture has ended.
    pub fn hold(self: &Arc<Self>, event: &Event) -> Result<(), Code> {
        let recorded = event.recorded().clone();
        match recorded {
            Recorded::Never => self.card.check(),
            Recorded::At(_) if self.is_captured() => Err(CAPTURE_ISOLATION),
            Recorded::At(mark) => self.ask(Work::Hold(mark)),
            Recorded::Captured(capture, _) if capture.is_over() => Err(CAPTURED_EVENT),
            Recorded::Captured(capture, seen) => {
                let mut queue = self.queue();
                let lane = queue.lane.get_or_insert_with(|| {
                    capture.join(self);
                    Lane::of(&capture)
                });
                lane.see(&capture, &seen)
            }
        }
    }

    /// Begins to capture what is asked for.
    ///
    /// # Errors
    /// `CAPTURE_UNSUPPORTED` while it is captured.
    pub fn capture(self: &Arc<Self>) -> Result<(), Code> {
        self.card.check()?;
        let mut queue = self.queue();
        if queue.lane.is_some() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let capture = Capture::begin(self.number);
        capture.join(self);
        queue.lane = Some(Lane::of(&capture));
        Ok(())
    }

    /// Ends what this stream began to capture: all that was asked for, in that order.
    ///
    /// # Errors
    /// `INVALID_VALUE` where it began none, `CAPTURE_UNJOINED` where another stream's part is not
    /// before this stream's end.
    pub fn captured(&self) -> Result<Arc<[Work]>, Code> {
        let lane = self.queue().lane.take().ok_or(INVALID_VALUE)?;
        let (capture, seen) = lane.place();
        if !capture.began(self.number) {
            self.queue().lane = Some(lane);
            return Err(CAPTURE_UNJOINED);
        }
        capture.end().iter().for_each(|stream| stream.queue().lane = None);
        self.card.check()?;
        if !capture.is_joined(&seen) {
            return Err(CAPTURE_UNJOINED);
        }
        Ok(capture.work())
    }
}
