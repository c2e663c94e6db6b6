//! What a stream is asked for.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::card::Card;
use super::code::{Code, ILLEGAL_ADDRESS, LAUNCH_FAILED};
use crate::Kernel;

/// How often whoever waits looks whether its card has failed.
const LOOK: Duration = Duration::from_millis(20);
/// Looks at a word that nobody sleeps between.
const LOOKS: u32 = 200;
const PAUSE: Duration = Duration::from_micros(50);

/// A kernel with all that it is launched with.
pub struct Launch {
    pub name: String,
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub params: Vec<u8>,
}

/// When a word is what is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is no less, as the difference of integers has it.
    NoLess,
    Equal,
    And,
    Nor,
}

impl How {
    pub fn holds(self, found: u32, word: u32) -> bool {
        match self {
            Self::NoLess => found.wrapping_sub(word) as i32 >= 0,
            Self::Equal => found == word,
            Self::And => found & word != 0,
            Self::Nor => !(found | word) != 0,
        }
    }
}

/// What another library has a stream do.
pub trait Job: Send + Sync {
    /// Does it, unless `over` says that nobody waits for it any more.
    fn run(&self, over: &dyn Fn() -> bool);
}

/// One thing after another.
#[derive(Clone)]
pub enum Work {
    Kernel(Arc<Launch>),
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// What the caller's own memory held when it called.
    Put {
        to: usize,
        data: Arc<[u8]>,
    },
    Fill {
        at: usize,
        byte: u8,
        bytes: usize,
    },
    FillWords {
        at: usize,
        word: u32,
        count: usize,
    },
    Write {
        at: usize,
        word: u32,
    },
    Wait {
        at: usize,
        word: u32,
        how: How,
    },
    Pass(Arc<Mark>),
    Hold(Arc<Mark>),
    Graph(Arc<[Work]>),
    Job(Arc<dyn Job>),
}

impl Work {
    /// Does it, on a stream's thread. A card that has failed does nothing more, but nobody waits
    /// for ever for what it would have done.
    pub fn run(&self, card: &Card) {
        if let Self::Pass(mark) = self {
            return mark.pass();
        }
        if card.check().is_err() {
            return;
        }
        // SAFETY: every address was found to lie in a buffer when the work was asked for; buffers
        // are freed once their card's streams are through.
        unsafe {
            match self {
                Self::Kernel(launch) => launch.run(card),
                &Self::Copy { to, from, bytes } => {
                    std::ptr::copy(from as *const u8, to as *mut u8, bytes);
                }
                Self::Put { to, data } => {
                    std::ptr::copy_nonoverlapping(data.as_ptr(), *to as *mut u8, data.len());
                }
                &Self::Fill { at, byte, bytes } => {
                    std::ptr::write_bytes(at as *mut u8, byte, bytes);
                }
                &Self::FillWords { at, word, count } => {
                    std::slice::from_raw_parts_mut(at as *mut u32, count).fill(word);
                }
                &Self::Write { at, word } => {
                    fence(Ordering::SeqCst);
                    AtomicU32::from_ptr(at as *mut u32).store(word, Ordering::SeqCst);
                }
                &Self::Wait { at, word, how } => {
                    let found = AtomicU32::from_ptr(at as *mut u32);
                    wait(card, || how.holds(found.load(Ordering::SeqCst), word));
                }
                Self::Pass(_) => {}
                Self::Hold(mark) => mark.hold(card),
                Self::Graph(all) => all.iter().for_each(|work| work.run(card)),
                Self::Job(job) => job.run(&|| card.check().is_err()),
            }
        }
    }
}

impl Launch {
    fn run(&self, card: &Card) {
        let Self { kernel, grid, block, shared_bytes, params, .. } = self;
        if let Err(words) = kernel.launch(*grid, *block, *shared_bytes, params) {
            let code: Code = match words.contains("address") {
                true => ILLEGAL_ADDRESS,
                false => LAUNCH_FAILED,
            };
            card.fail(code, &format!("kernel {} of {grid:?} x {block:?}: {words}", self.name));
        }
    }
}

/// Looks until something holds, or the card has failed.
fn wait(card: &Card, holds: impl Fn() -> bool) {
    for look in 0_u32.. {
        if holds() || card.check().is_err() {
            return;
        }
        if look < LOOKS { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
    }
}

/// A place that a stream comes past.
#[derive(Default)]
pub struct Mark {
    at: Mutex<Option<Instant>>,
    passed: Condvar,
}

impl Mark {
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self) {
        *self.lock() = Some(Instant::now());
        self.passed.notify_all();
    }

    /// When it was passed, if it was.
    pub fn at(&self) -> Option<Instant> {
        *self.lock()
    }

    /// Waits until it is passed, or the card that waits has failed.
    pub fn hold(&self, card: &Card) {
        let mut at = self.lock();
        while at.is_none() && card.check().is_ok() {
            let waited = self.passed.wait_timeout(at, LOOK);
            at = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
