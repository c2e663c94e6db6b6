//! The driver's functions, called as C code calls them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::{c_int, c_uint, c_void};
use std::process::Command;
use std::ptr::null_mut;
use std::time::Duration;

use baton_emulator as _;

pub type Handle = *mut c_void;

unsafe extern "C" {
    fn cuInit(flags: c_uint) -> c_int;
    fn cuDeviceGetCount(count: *mut c_int) -> c_int;
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> c_int;
    fn cuCtxSetCurrent(context: Handle) -> c_int;
    fn cuMemGetInfo_v2(free: *mut usize, all: *mut usize) -> c_int;
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize) -> c_int;
    pub fn cuMemFree_v2(at: u64) -> c_int;
    fn cuMemHostAlloc(at: *mut Handle, bytes: usize, flags: c_uint) -> c_int;
    fn cuMemFreeHost(at: Handle) -> c_int;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> c_int;
    fn cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle) -> c_int;
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> c_int;
    pub fn cuMemsetD32Async(at: u64, word: c_uint, count: usize, stream: Handle) -> c_int;
    fn cuIpcGetMemHandle(name: *mut [u8; 64], at: u64) -> c_int;
    fn cuIpcOpenMemHandle_v2(at: *mut u64, name: Name, flags: c_uint) -> c_int;
    fn cuIpcCloseMemHandle(at: u64) -> c_int;
    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) -> c_int;
    fn cuStreamDestroy_v2(stream: Handle) -> c_int;
    pub fn cuStreamSynchronize(stream: Handle) -> c_int;
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> c_int;
    fn cuStreamWaitValue32_v2(stream: Handle, at: u64, word: c_uint, flags: c_uint) -> c_int;
    fn cuStreamWriteValue32_v2(stream: Handle, at: u64, word: c_uint, flags: c_uint) -> c_int;
    fn cuEventCreate(event: *mut Handle, flags: c_uint) -> c_int;
    fn cuEventQuery(event: Handle) -> c_int;
    fn cuEventRecord(event: Handle, stream: Handle) -> c_int;
    fn cuEventSynchronize(event: Handle) -> c_int;
    fn cuEventElapsedTime(ms: *mut f32, from: Handle, to: Handle) -> c_int;
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) -> c_int;
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> c_int;
    fn cuGraphInstantiateWithFlags(ready: *mut Handle, graph: Handle, flags: u64) -> c_int;
    fn cuGraphLaunch(ready: Handle, stream: Handle) -> c_int;
}

#[repr(C)]
struct Name([u8; 64]);

/// Asserts that each call gives 0.
macro_rules! ok {
    ($($call:expr),* $(,)?) => {
        // SAFETY: calls with places of this test's.
        $(assert_eq!(unsafe { $call }, 0, stringify!($call));)*
    };
}
pub(crate) use ok;

/// Much longer than all of these tests take.
const LONGEST: Duration = Duration::from_secs(120);

/// Has this thread use the first of two cards.
fn enter() {
    enter_at(0);
}

/// Has this thread use one of two cards.
pub fn enter_at(card: c_int) {
    static FIRST: std::sync::Once = std::sync::Once::new();
    FIRST.call_once(|| {
        // SAFETY: once, before any test looks at the cards.
        unsafe { std::env::set_var("EMULATOR_CARDS", "2") };
        // A test that fails may leave a stream waiting, for which memory's end waits in all others.
        std::thread::spawn(|| {
            std::thread::sleep(LONGEST);
            eprintln!("the driver's tests took longer than {LONGEST:?}");
            std::process::abort();
        });
    });
    let (mut count, mut context) = (0, null_mut());
    ok!(cuInit(0), cuDeviceGetCount(&mut count), cuDevicePrimaryCtxRetain(&mut context, card));
    ok!(cuCtxSetCurrent(context));
    assert_eq!(count, 2);
}

pub fn stream() -> Handle {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, 1));
    stream
}

fn event(flags: c_uint) -> Handle {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, flags));
    event
}

pub fn memory(bytes: usize) -> u64 {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, bytes));
    at
}

/// Words of the card, once a stream is through.
pub fn words(at: u64, count: usize, stream: Handle) -> Vec<u32> {
    let mut words = vec![0_u32; count];
    ok!(cuMemcpyDtoHAsync_v2(words.as_mut_ptr().cast(), at, 4 * count, stream));
    words
}

#[test]
fn a_stream_reads_pinned_memory_when_it_comes_to_it_and_other_memory_at_the_call() {
    enter();
    let (stream, gate, to) = (stream(), memory(4), memory(8));
    let mut pinned: Handle = null_mut();
    ok!(cuMemHostAlloc(&mut pinned, 4, 3));
    ok!(cuMemsetD32Async(gate, 0, 1, stream), cuStreamSynchronize(stream));
    let (pinned, mut own) = (pinned.cast::<u32>(), 1_u32);
    // SAFETY: the word that was taken above.
    unsafe { pinned.write_volatile(1) };
    ok!(
        cuStreamWaitValue32_v2(stream, gate, 1, 0),
        cuMemcpyHtoDAsync_v2(to, pinned.cast(), 4, stream),
        cuMemcpyHtoDAsync_v2(to + 4, (&raw const own).cast(), 4, stream),
    );
    own += 1;
    // SAFETY: as above.
    unsafe { pinned.write_volatile(2) };
    let other = self::stream();
    ok!(cuStreamWriteValue32_v2(other, gate, 1, 0));
    assert_eq!((words(to, 2, stream), own), (vec![2, 1], 2));
    ok!(cuMemFreeHost(pinned.cast()), cuMemFree_v2(gate), cuMemFree_v2(to));
    ok!(cuStreamDestroy_v2(stream), cuStreamDestroy_v2(other));
}

#[test]
fn a_stream_waits_for_another_ones_event_and_events_have_times() {
    enter();
    let (first, second, gate, to) = (stream(), stream(), memory(4), memory(4));
    let (before, after, plain) = (event(0), event(0), event(2));
    ok!(cuMemsetD32Async(gate, 0, 1, first), cuStreamSynchronize(first));
    ok!(cuEventRecord(before, first), cuStreamWaitValue32_v2(first, gate, 7, 1));
    ok!(cuMemsetD32Async(to, 1, 1, first), cuEventRecord(after, first));
    ok!(cuStreamWaitEvent(second, after, 0), cuMemsetD32Async(to, 2, 1, second));
    let mut ms = 0.0;
    // SAFETY: events of this test's.
    unsafe {
        assert_eq!(cuEventQuery(after), 600);
        assert_eq!(cuEventElapsedTime(&mut ms, before, after), 600);
        assert_eq!(cuEventElapsedTime(&mut ms, before, plain), 400);
    }
    std::thread::sleep(Duration::from_millis(20));
    let third = stream();
    ok!(cuStreamWriteValue32_v2(third, gate, 7, 0), cuEventSynchronize(after));
    assert_eq!(words(to, 1, second), [2]);
    ok!(cuEventQuery(after), cuEventElapsedTime(&mut ms, before, after));
    assert!(ms >= 20.0, "{ms}");
    ok!(cuMemFree_v2(gate), cuMemFree_v2(to));
}

#[test]
fn what_two_streams_are_asked_for_in_a_capture_runs_with_its_graph() {
    enter();
    let (first, second, at) = (stream(), stream(), memory(8));
    let (fork, join) = (event(2), event(2));
    ok!(cuMemsetD32Async(at, 0, 2, first), cuStreamSynchronize(first));
    ok!(cuStreamBeginCapture_v2(first, 2), cuEventRecord(fork, first));
    ok!(cuStreamWaitEvent(second, fork, 0), cuMemsetD32Async(at, 5, 1, second));
    // SAFETY: a stream of this test's.
    assert_eq!(unsafe { cuStreamSynchronize(second) }, 900);
    ok!(cuEventRecord(join, second), cuStreamWaitEvent(first, join, 0));
    ok!(cuMemcpyDtoDAsync_v2(at + 4, at, 4, first));
    let [mut graph, mut ready] = [null_mut(); 2];
    ok!(cuStreamEndCapture(first, &mut graph));
    assert_eq!(words(at, 2, second), [0, 0], "nothing ran yet");
    ok!(cuGraphInstantiateWithFlags(&mut ready, graph, 0), cuGraphLaunch(ready, first));
    assert_eq!(words(at, 2, first), [5, 5]);
    ok!(cuStreamBeginCapture_v2(first, 2), cuEventRecord(fork, first));
    ok!(cuStreamWaitEvent(second, fork, 0), cuMemsetD32Async(at, 6, 1, second));
    // SAFETY: as above.
    assert_eq!(unsafe { cuStreamEndCapture(first, &mut graph) }, 904, "one is not joined");
    // SAFETY: as above.
    assert_eq!(unsafe { cuStreamWaitEvent(second, fork, 0) }, 907, "its capture is over");
    assert_eq!(words(at, 2, second), [5, 5]);
    ok!(cuMemFree_v2(at));
}

#[test]
fn memory_is_counted_and_what_is_not_there_is_refused() {
    enter();
    let ([mut free, mut all], mut at) = ([0; 2], 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut all));
    assert_eq!(all, 4_096 << 20);
    let (stream, small) = (stream(), memory(100));
    // SAFETY: calls that are refused, with places of this test's.
    unsafe {
        assert_eq!(cuMemAlloc_v2(&mut at, all + 1), 2);
        assert_eq!(cuMemsetD32Async(small, 0, 26, stream), 1, "past its end");
        assert_eq!(cuMemFree_v2(small + 4), 1);
        assert_eq!(cuStreamSynchronize(null_mut()), 400);
    }
    ok!(cuMemFree_v2(small));
    // SAFETY: as above.
    assert_eq!(unsafe { cuMemsetD32Async(small, 0, 1, stream) }, 1, "it was freed");
}

const BYTES: usize = 2 << 20;
const NAMED: &str = "EMULATOR_TEST_NAME";

#[test]
fn another_process_writes_to_memory_that_it_opens_by_name() {
    enter();
    let (stream, at) = (stream(), memory(BYTES));
    ok!(cuMemsetD32Async(at, 1, BYTES / 4, stream), cuStreamSynchronize(stream));
    let mut name = [0; 64];
    ok!(cuIpcGetMemHandle(&mut name, at));
    let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "driver::the_other_process", "--ignored"]).env(NAMED, hex);
    assert!(other.output().unwrap().status.success());
    assert_eq!(words(at + BYTES as u64 - 8, 2, stream), [1, 9]);
    ok!(cuMemFree_v2(at));
}

#[test]
#[ignore = "part of the test above, in a process of its own"]
fn the_other_process() {
    enter();
    let hex = std::env::var(NAMED).unwrap();
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    let (stream, mut at) = (stream(), 0);
    ok!(cuIpcOpenMemHandle_v2(&mut at, Name(std::array::from_fn(byte)), 1));
    let last = at + BYTES as u64 - 4;
    assert_eq!(words(last, 1, stream), [1]);
    ok!(cuMemsetD32Async(last, 9, 1, stream), cuStreamSynchronize(stream));
    ok!(cuIpcCloseMemHandle(at));
}
