//! A launch: its blocks one after the other, or in turns where they look for what others do.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::BLOCK_THREADS_MAX;
use super::arena::Arena;
use super::block::{Block, Rest};
use super::calls::{CALLS, whole};
use super::copies::Copies;
use super::fault::watch;
use super::options::{Options, Order};
use super::switch::{FRAME_BYTES, begin};
use super::thread::{Thread, Waits};

/// What is to run, and how.
pub(crate) struct Launch<'a> {
    pub name: &'a str,
    pub entry: unsafe extern "C" fn(*mut Thread),
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub params: &'a [u8],
    /// Bytes that the kernel's own stack may take.
    pub stack_bytes: usize,
    /// Whether it looks for what others write meanwhile, so that its blocks run in turns.
    pub looks: bool,
    /// How long they look for what does not come.
    pub patience: Duration,
    pub options: Options,
}

/// Threads of a launch whose blocks run in turns.
const TOGETHER_MAX: usize = 128 << 10;
/// What a stack has beside the kernel's own.
const STACK_BYTES: usize = 16 << 10;
/// Rounds of looks after which there is a pause between two.
const LOOKS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(20);
/// What the low end of a stack holds.
const GUARD: u64 = 0x5afe_57ac_4e0d_0ff5;
/// Threads of a fault that are told of.
const TOLD: usize = 8;

thread_local! {
    static ARENA: RefCell<Arena> = RefCell::new(Arena::default());
}

/// Runs a launch to its end.
///
/// # Errors
/// The kernel, block and thread of a fault, and what it was.
pub(crate) fn launch(launch: &Launch<'_>) -> Result<(), String> {
    let threads = launch.block.iter().map(|&n| n as usize).product::<usize>();
    let blocks = launch.grid.iter().map(|&n| n as usize).product::<usize>();
    if threads == 0 || threads > BLOCK_THREADS_MAX || blocks == 0 {
        let (grid, block) = (launch.grid, launch.block);
        return Err(format!("{}: a grid of {grid:?} blocks of {block:?} threads", launch.name));
    }
    let together = if launch.looks { blocks } else { 1 };
    if together * threads > TOGETHER_MAX {
        let name = launch.name;
        return Err(format!("{name}: {blocks} blocks of {threads} threads can't run in turns"));
    }
    ARENA.with_borrow_mut(|arena| {
        let shared = launch.shared_bytes as usize;
        let stack = launch.stack_bytes + STACK_BYTES;
        arena.prepare((together, threads), stack, shared, launch.options)?;
        watch(Some(arena.stacks(together * threads)));
        let done = all(arena, launch, (blocks, threads), together);
        watch(None);
        done.map_err(|what| format!("kernel {}: {what}", launch.name))
    })
}

fn all(
    arena: &mut Arena,
    launch: &Launch<'_>,
    (blocks, threads): (usize, usize),
    together: usize,
) -> Result<(), String> {
    if together > 1 || launch.looks {
        for block in 0..blocks {
            lay(arena, launch, block, block, threads);
        }
        return in_turns(arena, threads, launch.patience);
    }
    for i in 0..blocks {
        let block = if launch.options.order == Order::Reverse { blocks - 1 - i } else { i };
        lay(arena, launch, 0, block, threads);
        let rest = arena.blocks[0].run();
        if rest != Rest::Ended {
            return Err(told(&arena.blocks[0]));
        }
        guarded(arena, threads)?;
    }
    Ok(())
}

/// Runs all blocks, each until its threads only look, until all have ended.
fn in_turns(arena: &mut Arena, threads: usize, patience: Duration) -> Result<(), String> {
    let mut left: Vec<usize> = (0..arena.blocks.len()).collect();
    let (mut since, mut idle) = (Instant::now(), 0);
    while !left.is_empty() {
        let before = left.len();
        let mut stuck = None;
        left.retain(|&block| match arena.blocks[block].run() {
            Rest::Ended => false,
            Rest::Looks => true,
            Rest::Stuck => {
                stuck = Some(block);
                true
            }
        });
        if let Some(block) = stuck {
            return Err(told(&arena.blocks[block]));
        }
        if left.len() < before {
            since = Instant::now();
        } else if since.elapsed() > patience {
            let block = &mut arena.blocks[left[0]];
            block.gives_up(since.elapsed());
            return Err(told(block));
        }
        idle = if left.len() < before { 0 } else { idle + 1 };
        if idle > LOOKS {
            std::thread::sleep(PAUSE);
        } else {
            std::thread::yield_now();
        }
    }
    guarded(arena, arena.blocks.len() * threads)
}

/// Whether all stacks were large enough.
fn guarded(arena: &Arena, count: usize) -> Result<(), String> {
    // SAFETY: the stacks' own memory.
    let is_whole = |index| unsafe { arena.stack_guard(index).read() == GUARD };
    match (0..count).all(is_whole) {
        true => Ok(()),
        false => Err("the emulator gave it too small a stack".into()),
    }
}

/// Lays block `block` of the grid out in place `place`.
fn lay(arena: &mut Arena, launch: &Launch<'_>, place: usize, block: usize, threads: usize) {
    let ctaid = place_in(block, launch.grid);
    let shared = arena.shared(place);
    let own: *mut Block = &raw mut arena.blocks[place];
    let first = arena.thread(place * threads).0;
    for index in 0..threads {
        let all = place * threads + index;
        let top = arena.stack_end(all).map_addr(|at| at & !15);
        let (thread, is_new) = arena.thread(all);
        // SAFETY: the arena has room for as many; a stack has room for a frame and more.
        unsafe {
            arena.stack_guard(all).write(GUARD);
            let kept = match is_new {
                true => Copies::default(),
                false => std::mem::take(&mut (*thread).copies),
            };
            thread.write(Thread {
                calls: &CALLS,
                params: launch.params.as_ptr(),
                shared,
                shared_bytes: launch.shared_bytes,
                line: 0,
                tid: place_in(index, launch.block),
                ntid: launch.block,
                ctaid,
                nctaid: launch.grid,
                given: [0; 10],
                taken: [0; 4],
                stack: begin(top, on_stack, thread.cast()),
                entry: launch.entry,
                block: own,
                index: index as u32,
                waits: Waits::Not,
                sums: std::ptr::null_mut(),
                copies: kept,
            });
            (*thread).copies.begin();
        }
    }
    arena.blocks[place].begin(first, threads);
}

const _: () = assert!(FRAME_BYTES + 64 < STACK_BYTES);

/// Where a thread's stack begins.
extern "C" fn on_stack(thread: *mut u8) {
    let thread = thread.cast::<Thread>();
    // SAFETY: the thread that runs, as it was laid out.
    unsafe { whole(thread) }
}

/// Number `index` by its three sides.
fn place_in(index: usize, sides: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = sides.map(|side| side as usize);
    [index % x, index / x % y, index / x / y].map(|at| at as u32)
}

/// What is wrong with a block that does not end.
fn told(block: &Block) -> String {
    // SAFETY: the block's threads live.
    let threads = unsafe { std::slice::from_raw_parts(block.threads, block.count) };
    if let Some(fault) = &block.fault {
        return fault.words();
    }
    let waiting: Vec<String> = threads
        .iter()
        .filter(|thread| thread.waits != Waits::Ended)
        .map(|thread| format!("thread {:?} {}", thread.tid, thread.waits.words()))
        .collect();
    let (ctaid, count) = (threads[0].ctaid, waiting.len());
    let told = waiting[..count.min(TOLD)].join("; ");
    let ended = block.count - count;
    format!("block {ctaid:?}: {count} threads wait for ever, {ended} have ended: {told}")
}
