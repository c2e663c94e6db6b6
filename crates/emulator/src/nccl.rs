//! The functions of `libnccl.so.2` that Baton calls, between threads and processes of one machine.
//! What is called of a stream runs on it in its turn, also as part of a graph.

mod communicator;
mod meeting;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::driver::{self, Handle, Handles, Work, memory, say};
use communicator::{Communicator, Exchange, Transfer, Way};

/// What a call gives: 0, or what went wrong.
type Code = c_int;

const UNHANDLED_CUDA_ERROR: Code = 1;
const SYSTEM_ERROR: Code = 2;
const INVALID_ARGUMENT: Code = 4;
const INVALID_USAGE: Code = 5;
const IN_PROGRESS: Code = 7;

/// 2.27.0, but it says by its last number that it is none of NVIDIA's.
const VERSION: c_int = 22_799;
const MAGIC: c_uint = 0xcafe_beef;
const RANKS_MAX: usize = 8;
/// How long an abort waits for graphs to be forgotten.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Most sends and receives of a group.
const TRANSFERS_MAX: usize = 1_024;
/// Bytes of each type of data, by number.
const TYPES: [usize; 10] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2];

const WORDS: [&CStr; 8] = [
    c"no error",
    c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
    c"internal error - please report this issue to the NCCL developers",
    c"invalid argument (run with NCCL_DEBUG=WARN for details)",
    c"invalid usage (run with NCCL_DEBUG=WARN for details)",
    c"remote process exited or there was a network error",
    c"NCCL operation in progress",
];

static COMMUNICATORS: Handles<Communicator> = Handles::new();

/// What a call of this thread's group asked for.
type Asked = (Arc<Communicator>, Handle, Transfer);

thread_local! {
    static GROUP: RefCell<(usize, Vec<Asked>)> = const { RefCell::new((0, Vec::new())) };
}

/// What went wrong last, by its number among these words.
static LAST: AtomicUsize = AtomicUsize::new(0);
const LAST_WORDS: [&CStr; 5] = [
    c"",
    c"two ranks are on one card",
    c"expected at most 8 ranks, each with a number less than their count",
    c"a send or receive of what no buffer of a card holds",
    c"a receive expects another number of bytes than was sent",
];

fn failed(code: Code, why: usize) -> Code {
    LAST.store(why, Ordering::Release);
    say(&format!("NCCL: {}", LAST_WORDS[why].to_string_lossy()));
    code
}

fn given(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Code {
    if version.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's place.
    unsafe { version.write(VERSION) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let words = usize::try_from(code).ok().and_then(|code| WORDS.get(code));
    words.map_or(c"unknown result code".as_ptr(), |words| words.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: Handle) -> *const c_char {
    LAST_WORDS[LAST.load(Ordering::Acquire)].as_ptr()
}

/// By which the ranks of a communicator find each other.
#[repr(C)]
struct Id([u8; 128]);

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut Id) -> Code {
    let mut drawn = Id([0; 128]);
    let random = std::fs::File::open("/dev/urandom");
    if random.and_then(|mut file| file.read_exact(&mut drawn.0[..meeting::NAME_BYTES])).is_err() {
        return SYSTEM_ERROR;
    }
    if id.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's place.
    unsafe { id.write(drawn) };
    0
}

/// The beginning of `ncclConfig_t`, which is all that is looked at.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    at: *mut Handle,
    ranks: c_int,
    id: Id,
    rank: c_int,
    config: *const Config,
) -> Code {
    // SAFETY: null, or the caller's configuration.
    let config = unsafe { config.as_ref() };
    if at.is_null() || config.is_some_and(|config| config.magic != MAGIC) {
        return INVALID_ARGUMENT;
    }
    let Ok(card) = driver::sound() else { return UNHANDLED_CUDA_ERROR };
    let (Ok(ranks), Ok(rank)) = (usize::try_from(ranks), usize::try_from(rank)) else {
        return failed(INVALID_ARGUMENT, 2);
    };
    if !(1..=RANKS_MAX).contains(&ranks) || rank >= ranks {
        return failed(INVALID_ARGUMENT, 2);
    }
    let name = std::array::from_fn(|i| id.0[i]);
    let Ok(communicator) = Communicator::begin(&name, ranks, rank, card.number) else {
        return SYSTEM_ERROR;
    };
    // SAFETY: the caller's place.
    unsafe { at.write(COMMUNICATORS.add(communicator.clone())) };
    match config.is_some_and(|config| config.blocking == 0) {
        true => IN_PROGRESS,
        false => communicator.settled(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(communicator: Handle, state: *mut Code) -> Code {
    let Ok(communicator) = COMMUNICATORS.get(communicator) else { return INVALID_ARGUMENT };
    if state.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's place.
    unsafe { state.write(communicator.state()) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(communicator: Handle) -> Code {
    match COMMUNICATORS.remove(communicator) {
        Ok(communicator) => {
            communicator.abort();
            forgotten(&communicator, FORGOTTEN);
        }
        Err(_) => return INVALID_ARGUMENT,
    }
    0
}

/// Waits up to `limit`, where NCCL has none, until no graph has a part of an aborted communicator;
/// whether none has.
fn forgotten(communicator: &Arc<Communicator>, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    while Arc::strong_count(communicator) > 1 {
        if Instant::now() > until {
            say("NCCL: a graph still has a part of a communicator that was aborted");
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Code {
    GROUP.with_borrow_mut(|group| group.0 += 1);
    0
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Code {
    let asked = GROUP.with_borrow_mut(|(depth, asked)| {
        *depth = depth.checked_sub(1).ok_or(INVALID_USAGE)?;
        Ok(if *depth == 0 { std::mem::take(asked) } else { Vec::new() })
    });
    given(asked.and_then(launch))
}

/// Has each stream do what it was asked for as one.
fn launch(mut asked: Vec<Asked>) -> Result<(), Code> {
    while let Some((communicator, stream, _)) = asked.first().cloned() {
        let same = |other: &mut Asked| Arc::ptr_eq(&other.0, &communicator) && other.1 == stream;
        let transfers = asked.extract_if(.., same).map(|(_, _, transfer)| transfer).collect();
        if communicator.state() != 0 {
            return Err(INVALID_USAGE);
        }
        let stream = driver::current(stream).map_err(|_| UNHANDLED_CUDA_ERROR)?;
        let exchange = Arc::new(Exchange { communicator, transfers });
        stream.ask(Work::Job(exchange)).map_err(|_| UNHANDLED_CUDA_ERROR)?;
    }
    Ok(())
}

/// Adds a transfer to the thread's group, or launches it if there is none.
fn ask(
    way: Way,
    at: *const c_void,
    (count, kind): (usize, c_int),
    peer: c_int,
    communicator: Handle,
    stream: Handle,
) -> Result<(), Code> {
    let communicator = COMMUNICATORS.get(communicator).map_err(|_| INVALID_ARGUMENT)?;
    let size = usize::try_from(kind).ok().and_then(|kind| TYPES.get(kind).copied());
    let bytes = size.and_then(|size| size.checked_mul(count)).ok_or(INVALID_ARGUMENT)?;
    let peer = usize::try_from(peer).ok().filter(|&peer| peer < communicator.ranks());
    let (peer, at) = (peer.ok_or_else(|| failed(INVALID_ARGUMENT, 2))?, at as usize);
    if bytes > 0 && memory::owner(at, bytes).is_none() {
        return Err(failed(INVALID_ARGUMENT, 3));
    }
    let asked = (communicator, stream, Transfer { way, at, bytes, peer });
    let alone = GROUP.with_borrow_mut(|(depth, group)| {
        if *depth == 0 {
            return Ok(Some(asked));
        }
        if group.len() == TRANSFERS_MAX {
            return Err(INVALID_USAGE);
        }
        group.push(asked);
        Ok(None)
    })?;
    alone.map_or(Ok(()), |asked| launch(vec![asked]))
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    communicator: Handle,
    stream: Handle,
) -> Code {
    given(ask(Way::Send, from, (count, kind), peer, communicator, stream))
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    kind: c_int,
    peer: c_int,
    communicator: Handle,
    stream: Handle,
) -> Code {
    given(ask(Way::Receive, to.cast_const(), (count, kind), peer, communicator, stream))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn an_abort_waits_up_to_a_limit_for_a_graph_to_be_forgotten() {
        let communicator = Communicator::begin(&[7; meeting::NAME_BYTES], 2, 0, 0).unwrap();
        communicator.abort();
        let exchange = Exchange { communicator: communicator.clone(), transfers: Vec::new() };
        let since = Instant::now();
        assert!(!forgotten(&communicator, Duration::from_millis(30)));
        assert!(since.elapsed() >= Duration::from_millis(30));
        drop(exchange);
        assert!(forgotten(&communicator, FORGOTTEN));
    }
}
