//! NCCL's functions between two cards.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::Barrier;
use std::time::Duration;

use super::driver::{
    Handle, cuMemFree_v2, cuMemsetD32Async, cuStreamSynchronize, enter_at, memory, ok, stream,
    words,
};

unsafe extern "C" {
    fn ncclGetUniqueId(id: *mut Id) -> c_int;
    fn ncclCommInitRankConfig(
        at: *mut Handle,
        ranks: c_int,
        id: Id,
        rank: c_int,
        config: *const Config,
    ) -> c_int;
    fn ncclCommGetAsyncError(communicator: Handle, state: *mut c_int) -> c_int;
    fn ncclCommAbort(communicator: Handle) -> c_int;
    fn ncclGroupStart() -> c_int;
    fn ncclGroupEnd() -> c_int;
    fn ncclSend(
        from: *const c_void,
        count: usize,
        kind: c_int,
        peer: c_int,
        communicator: Handle,
        stream: Handle,
    ) -> c_int;
    fn ncclRecv(
        to: *mut c_void,
        count: usize,
        kind: c_int,
        peer: c_int,
        communicator: Handle,
        stream: Handle,
    ) -> c_int;
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; 128]);

#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    rest: c_int,
}

const FLOAT: c_int = 7;
const IN_PROGRESS: c_int = 7;

fn id() -> Id {
    let mut id = Id([0; 128]);
    ok!(ncclGetUniqueId(&mut id));
    id
}

/// Begins rank `rank` of two; `None` for NCCL's own way, which waits.
fn begin(id: Id, rank: c_int) -> (Handle, c_int) {
    let config = Config { size: 24, magic: 0xcafe_beef, version: 21_400, blocking: 0, rest: 0 };
    let mut at = null_mut();
    // SAFETY: places of this test's.
    let code = unsafe { ncclCommInitRankConfig(&mut at, 2, id, rank, &config) };
    (at, code)
}

fn state(at: Handle) -> c_int {
    let mut state = -1;
    ok!(ncclCommGetAsyncError(at, &mut state));
    state
}

fn settled(at: Handle) -> c_int {
    while state(at) == IN_PROGRESS {
        std::thread::sleep(Duration::from_millis(1));
    }
    state(at)
}

/// Runs both ranks, each on a card.
fn both(cards: [c_int; 2], rank: impl Fn(c_int, Handle) + Sync) {
    let id = id();
    std::thread::scope(|scope| {
        for (index, card) in (0..).zip(cards) {
            let rank = &rank;
            scope.spawn(move || {
                enter_at(card);
                let (at, code) = begin(id, index);
                assert_eq!(code, IN_PROGRESS);
                rank(index, at);
            });
        }
    });
}

#[test]
fn two_cards_give_each_other_more_than_is_on_its_way_at_once() {
    // The longer way is three times as long as what may be on it.
    let counts = [3 << 18, 1_001];
    both([0, 1], |own, at| {
        assert_eq!(settled(at), 0);
        let [sent, came] = [own, 1 - own].map(|rank| counts[rank as usize]);
        let (stream, from, to) = (stream(), memory(4 * sent), memory(4 * came));
        ok!(cuMemsetD32Async(from, 7 + own as c_uint, sent, stream), ncclGroupStart());
        ok!(ncclSend(from as *const c_void, sent, FLOAT, 1 - own, at, stream));
        ok!(ncclRecv(to as *mut c_void, came, FLOAT, 1 - own, at, stream), ncclGroupEnd());
        assert_eq!(words(to, came, stream), vec![8 - own as u32; came]);
        ok!(ncclCommAbort(at), cuMemFree_v2(from), cuMemFree_v2(to));
    });
}

#[test]
fn an_abort_ends_what_waits_and_a_wrong_length_is_an_error() {
    let aborted = Barrier::new(2);
    both([0, 1], |own, at| {
        assert_eq!(settled(at), 0);
        let (stream, place) = (stream(), memory(64));
        if own == 0 {
            ok!(cuMemsetD32Async(place, 0, 16, stream));
            ok!(ncclSend(place as *const c_void, 8, FLOAT, 1, at, stream));
            ok!(ncclRecv(place as *mut c_void, 8, FLOAT, 1, at, stream));
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(state(at), 0);
            ok!(ncclCommAbort(at), cuStreamSynchronize(stream));
        } else {
            ok!(ncclRecv(place as *mut c_void, 7, FLOAT, 0, at, stream));
            ok!(cuStreamSynchronize(stream));
            assert_eq!(state(at), 4);
            // SAFETY: places of this test's.
            assert_eq!(unsafe { ncclSend(null(), 1, FLOAT, 0, at, stream) }, 4);
            ok!(ncclCommAbort(at));
        }
        aborted.wait();
        ok!(cuMemFree_v2(place));
    });
}

#[test]
fn two_ranks_on_one_card_are_refused_and_one_alone_waits_until_it_is_aborted() {
    both([1, 1], |_, at| {
        assert_eq!(settled(at), 5);
        ok!(ncclCommAbort(at));
    });
    enter_at(0);
    let (at, code) = begin(id(), 1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((code, state(at)), (IN_PROGRESS, IN_PROGRESS));
    ok!(ncclCommAbort(at));
    // SAFETY: a communicator that is no more.
    assert_eq!(unsafe { ncclCommAbort(at) }, 4);
}
