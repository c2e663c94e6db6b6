//! What a thread did that a card forbids.

use std::cell::Cell;
use std::sync::Once;
use std::time::Duration;

use super::block::Block;
use super::thread::{Thread, Waits};
use crate::driver::memory;

/// A fault, with who had it.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub block: [u32; 3],
    pub thread: [u32; 3],
    pub line: u32,
    pub what: What,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// Shared memory at an offset, past so many bytes.
    Shared(u64, u32),
    Alignment(u64),
    Trap,
    /// An address that is none.
    Memory(u64),
    /// A lane in a meeting of others.
    NotOfMask(u32),
    /// A lane of the mask that waits for something else.
    Apart(u32, Waits),
    NoBarrier(u32),
    /// A barrier that threads come to with different counts.
    Counts(u32, u32, u32),
    NoPhase(u32),
    Descriptor(u64),
    Looked(Duration),
    /// A product of a warp that has not all lanes.
    NotWhole,
    Unknown(u32),
}

impl Fault {
    /// One of `thread`.
    ///
    /// # Safety
    /// `thread` must live.
    pub(super) unsafe fn at(thread: *mut Thread, line: u32, what: What) -> Self {
        // SAFETY: the caller's promise.
        let thread = unsafe { &*thread };
        Self { block: thread.ctaid, thread: thread.tid, line, what }
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        let Self { block, thread, line, what } = self;
        let what = match *what {
            What::Shared(at, bytes) => {
                format!("reaches for shared memory at {at:#x}, of which there are {bytes} bytes")
            }
            What::Alignment(at) => format!("reaches for address {at:#x}, which is not aligned"),
            What::Trap => "traps".into(),
            What::Memory(at) => {
                format!("reaches for address {at:#x}, where it may not: {}", memory::words(at as _))
            }
            What::NotOfMask(mask) => format!("is not of the lanes {mask:#010x} that it names"),
            What::Apart(lane, waits) => {
                format!("meets lanes of its warp, but lane {lane} {}", waits.words())
            }
            What::NoBarrier(id) => format!("names barrier {id}; there are 16"),
            What::Counts(id, one, other) => {
                format!("comes to barrier {id} of {other} threads, where others said {one}")
            }
            What::NoPhase(at) => format!("uses an mbarrier at {at:#x}, where none was made"),
            What::Descriptor(found) => {
                format!("gives a matrix as {found:#x}, a form that is not emulated")
            }
            What::NotWhole => "multiplies with a warp that is not whole".into(),
            What::Looked(after) => {
                let ms = after.as_millis();
                format!("has looked for {ms} ms for what does not come")
            }
            What::Unknown(code) => format!("has an unknown fault, {code}"),
        };
        format!("block {block:?}, thread {thread:?}: PTX line {line}: {what}")
    }
}

/// A stack of threads that follow each other, for the handler of signals.
#[derive(Clone, Copy)]
pub(super) struct Stacks {
    pub base: usize,
    pub stride: usize,
    pub threads: *mut Thread,
    pub count: usize,
}

thread_local! {
    static STACKS: Cell<Option<Stacks>> = const { Cell::new(None) };
    static SIGNAL_STACK: Cell<bool> = const { Cell::new(false) };
}

/// Says on which stacks this OS thread runs, so that a bad address is a fault of who had it.
pub(super) fn watch(stacks: Option<Stacks>) {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(handle);
    SIGNAL_STACK.with(|has| {
        if !has.replace(true) {
            signal_stack();
        }
    });
    STACKS.set(stacks);
}

/// Bytes that a handler of signals has.
const SIGNAL_STACK_BYTES: usize = 64 << 10;

/// Gives this OS thread a stack for signals if it has none. It is kept until the process ends.
fn signal_stack() {
    // SAFETY: as sigaltstack(2) says; the memory is never given back.
    unsafe {
        let mut old: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut old);
        if old.ss_flags & libc::SS_DISABLE != 0 {
            let memory = Box::leak(vec![0_u8; SIGNAL_STACK_BYTES].into_boxed_slice());
            let new = libc::stack_t {
                ss_sp: memory.as_mut_ptr().cast(),
                ss_flags: 0,
                ss_size: SIGNAL_STACK_BYTES,
            };
            libc::sigaltstack(&new, std::ptr::null_mut());
        }
    }
}

const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];
static mut BEFORE: [std::mem::MaybeUninit<libc::sigaction>; 2] =
    [const { std::mem::MaybeUninit::zeroed() }; 2];

fn handle() {
    for (i, signal) in SIGNALS.into_iter().enumerate() {
        // SAFETY: as sigaction(2) says; `BEFORE` is written once, before the handler is there.
        unsafe {
            let before = (&raw mut BEFORE).cast::<libc::sigaction>().add(i);
            libc::sigaction(signal, std::ptr::null(), before);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut std::ffi::c_void) {
    // SAFETY: the system gives both to a handler with SA_SIGINFO.
    let (address, context) =
        unsafe { ((*info).si_addr() as u64, &mut *context.cast::<libc::ucontext_t>()) };
    let registers = Registers::of(context);
    let stacks = STACKS.try_with(Cell::get).ok().flatten();
    let found = stacks.and_then(|stacks| {
        let index = registers.stack().checked_sub(stacks.base)? / stacks.stride;
        (index < stacks.count).then(|| stacks.threads.wrapping_add(index))
    });
    match found {
        Some(thread) => registers.go(on_address, thread as usize, address as usize),
        None => forward(signal, info, context),
    }
}

/// Where a thread goes on that reached for a bad address.
extern "C" fn on_address(thread: *mut Thread, address: u64) -> ! {
    // SAFETY: the thread that ran when the signal came, which does not go on.
    unsafe {
        let line = (*thread).line;
        Block::fail(thread, Fault::at(thread, line, What::Memory(address)))
    }
}

/// Gives a signal that is none of ours to whom it went before.
fn forward(signal: i32, info: *mut libc::siginfo_t, context: &mut libc::ucontext_t) {
    let i = usize::from(signal != SIGNALS[0]);
    // SAFETY: written before the handler was there.
    let before = unsafe { (*(&raw const BEFORE).cast::<libc::sigaction>().add(i)).sa_sigaction };
    if before == libc::SIG_DFL || before == libc::SIG_IGN {
        // SAFETY: what raised it is done again, and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut std::ffi::c_void);
    // SAFETY: a handler that was set before; one without SA_SIGINFO ignores what else it is given.
    let handler: Handler = unsafe { std::mem::transmute(before) };
    handler(signal, info, std::ptr::from_mut(context).cast());
}

/// Registers at a signal.
struct Registers<'a>(&'a mut libc::mcontext_t);

impl<'a> Registers<'a> {
    fn of(context: &'a mut libc::ucontext_t) -> Self {
        Self(&mut context.uc_mcontext)
    }
}

#[cfg(target_arch = "x86_64")]
impl Registers<'_> {
    fn stack(&self) -> usize {
        self.0.gregs[libc::REG_RSP as usize] as usize
    }

    /// Has the thread go on in `to`, with both arguments.
    fn go(self, to: extern "C" fn(*mut Thread, u64) -> !, one: usize, two: usize) {
        // Under what the code at hand keeps below its stack's end, as at a call.
        let stack = ((self.stack() - 256) & !15) - 8;
        let gregs = &mut self.0.gregs;
        gregs[libc::REG_RSP as usize] = stack as i64;
        gregs[libc::REG_RDI as usize] = one as i64;
        gregs[libc::REG_RSI as usize] = two as i64;
        gregs[libc::REG_RIP as usize] = to as usize as i64;
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers<'_> {
    fn stack(&self) -> usize {
        self.0.sp as usize
    }

    /// Has the thread go on in `to`, with both arguments.
    fn go(self, to: extern "C" fn(*mut Thread, u64) -> !, one: usize, two: usize) {
        self.0.sp = (self.0.sp - 256) & !15;
        self.0.regs[0] = one as u64;
        self.0.regs[1] = two as u64;
        self.0.pc = to as usize as u64;
    }
}
