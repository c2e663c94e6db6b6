//! The emulated cards of this machine, as the environment describes them.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::code::{Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, LAUNCH_FAILED};
use super::code::{OUT_OF_MEMORY, REACHED_ALREADY};
use super::handle::Handle;
use super::memory::{self, Of};
use super::stream::Stream;

const CARDS_MAX: usize = 8;
const MULTIPROCESSORS_MAX: usize = 256;
const MEMORY_MIB_MAX: usize = 1 << 20;

/// A card.
pub struct Card {
    pub number: usize,
    pub kind: Kind,
    used: AtomicUsize,
    fault: AtomicI32,
    streams: Mutex<Vec<Weak<Stream>>>,
    /// A bit for each card whose memory this one was given.
    reached: AtomicU32,
}

/// What all cards here are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Compute capability. No card of NVIDIA's is of 8.1: what is kept of kernels for it is never
    /// taken for a real card's.
    pub capability: (i32, i32),
    pub multiprocessors: usize,
    pub memory_bytes: usize,
}

impl Kind {
    /// Most bytes of shared memory of a block.
    pub fn shared_max(&self) -> u32 {
        if self.capability.0 >= 9 { 227 << 10 } else { 163 << 10 }
    }
}

/// A variable as a number from 1 to `most`.
fn number(name: &str, usual: usize, most: usize) -> Result<usize, String> {
    match std::env::var(name) {
        Err(_) => Ok(usual),
        Ok(text) => match text.parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(format!("{name}: expected a number from 1 to {most}, found {text}")),
        },
    }
}

fn described() -> Result<Vec<Card>, String> {
    let count = number("EMULATOR_CARDS", 1, CARDS_MAX)?;
    let capability = match std::env::var("EMULATOR_CAPABILITY").as_deref() {
        Err(_) | Ok("8.1") => (8, 1),
        Ok("9.0") => (9, 0),
        Ok(other) => {
            return Err(format!("EMULATOR_CAPABILITY: expected 8.1 or 9.0, found {other}"));
        }
    };
    let kind = Kind {
        capability,
        multiprocessors: number("EMULATOR_MULTIPROCESSORS", 8, MULTIPROCESSORS_MAX)?,
        memory_bytes: number("EMULATOR_MEMORY_MIB", 4_096, MEMORY_MIB_MAX)? << 20,
    };
    let card = |number| Card {
        number,
        kind,
        used: AtomicUsize::new(0),
        fault: AtomicI32::new(0),
        streams: Mutex::default(),
        reached: AtomicU32::new(0),
    };
    Ok((0..count).map(card).collect())
}

/// Every card.
///
/// # Errors
/// `INVALID_VALUE` where the environment says what can't be; standard error has it in words.
pub fn cards() -> Result<&'static [Card], Code> {
    static CARDS: OnceLock<Option<Vec<Card>>> = OnceLock::new();
    let cards = CARDS.get_or_init(|| described().map_err(|words| super::say(&words)).ok());
    cards.as_deref().ok_or(INVALID_VALUE)
}

/// The card of a number.
///
/// # Errors
/// `INVALID_DEVICE` where there is none.
pub fn card(number: i32) -> Result<&'static Card, Code> {
    usize::try_from(number).ok().and_then(|n| cards().ok()?.get(n)).ok_or(INVALID_DEVICE)
}

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Makes a card's context this thread's; none if null.
///
/// # Errors
/// `INVALID_CONTEXT` for what is none.
pub fn set_current(context: Handle) -> Result<(), Code> {
    let number = match context.is_null() {
        true => None,
        false => Some(of_context(context)?.number),
    };
    CURRENT.set(number);
    Ok(())
}

/// The card whose context is this thread's.
///
/// # Errors
/// `INVALID_CONTEXT` where none is.
pub fn current() -> Result<&'static Card, Code> {
    let number = CURRENT.get().ok_or(INVALID_CONTEXT)?;
    cards()?.get(number).ok_or(INVALID_CONTEXT)
}

/// As [`current`], of a card that has not failed.
///
/// # Errors
/// As [`current`], and what the card failed with.
pub fn sound() -> Result<&'static Card, Code> {
    let card = current()?;
    card.check()?;
    Ok(card)
}

/// The card of a context.
///
/// # Errors
/// `INVALID_CONTEXT` for what is none.
pub fn of_context(context: Handle) -> Result<&'static Card, Code> {
    (context as usize).checked_sub(1).and_then(|n| cards().ok()?.get(n)).ok_or(INVALID_CONTEXT)
}

impl Card {
    /// Its context.
    pub fn context(&self) -> Handle {
        (self.number + 1) as Handle
    }

    /// Its name, as the driver has it.
    pub fn name(&self) -> String {
        "Emulated card".to_owned()
    }

    /// What tells it from the other cards of this machine, in all processes.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = *b"emulated card  0";
        uuid[15] = b'0' + self.number as u8;
        uuid
    }

    /// What it failed with.
    ///
    /// # Errors
    /// Itself.
    pub fn check(&self) -> Result<(), Code> {
        match self.fault.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Has it fail: every later call gives `code`.
    pub fn fail(&self, code: Code, words: &str) {
        super::say(&format!("cuda:{}: {words}", self.number));
        let _ = self.fault.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Weak<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a stream of this card.
    pub fn add(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// Waits until nothing runs on it that was asked for.
    fn rest(&self) {
        let streams: Vec<_> = self.streams().iter().filter_map(Weak::upgrade).collect();
        streams.iter().for_each(|stream| stream.drain());
    }

    /// Free bytes, and all.
    pub fn room(&self) -> (usize, usize) {
        let all = self.kind.memory_bytes;
        (all.saturating_sub(self.used.load(Ordering::Acquire)), all)
    }

    /// Takes memory of it.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn take(&self, bytes: usize) -> Result<usize, Code> {
        let more = memory::taken_bytes(bytes);
        let fits =
            |used: usize| used.checked_add(more).filter(|&all| all <= self.kind.memory_bytes);
        if self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_err() {
            return Err(OUT_OF_MEMORY);
        }
        memory::take(Of::Card(self.number), bytes).inspect_err(|_| {
            self.used.fetch_sub(more, Ordering::AcqRel);
        })
    }

    /// Gives memory back, of this card or the host's, once nothing runs that may use it.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what is no such buffer; a buffer behind which was written fails the
    /// card.
    pub fn give_back(&self, of: Of, at: usize) -> Result<(), Code> {
        self.rest();
        let (bytes, clean) = memory::give_back(|found| found == of, at)?;
        if matches!(of, Of::Card(_)) {
            self.used.fetch_sub(memory::taken_bytes(bytes), Ordering::AcqRel);
        }
        if !clean {
            let words = format!("something wrote behind the end of a buffer of {bytes} bytes");
            self.fail(LAUNCH_FAILED, &words);
            return Err(LAUNCH_FAILED);
        }
        Ok(())
    }

    /// Lets this card see another one's memory.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for its own, `REACHED_ALREADY`.
    pub fn reach(&self, other: &Card) -> Result<(), Code> {
        let bit = 1 << other.number;
        match self.reached.fetch_or(bit, Ordering::AcqRel) & bit {
            _ if other.number == self.number => Err(INVALID_DEVICE),
            0 => Ok(()),
            _ => Err(REACHED_ALREADY),
        }
    }
}
