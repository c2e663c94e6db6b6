//! From one stack to another.

/// Puts what the caller needs to go on onto its stack, whose end goes to `*from`, and goes on with
/// the stack `to`.
///
/// # Safety
/// `to` must be what an earlier switch left, or [`begin`] made, and be used once.
pub(super) unsafe fn switch(from: *mut *mut u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { emulator_switch(from, to) }
}

/// Lays a frame under `top`, which is a multiple of 16, so that a switch to it calls
/// `run(argument)`, which never returns.
///
/// # Safety
/// There must be [`FRAME_BYTES`] of memory under `top`.
pub(super) unsafe fn begin(
    top: *mut u8,
    run: extern "C" fn(*mut u8),
    argument: *mut u8,
) -> *mut u8 {
    let frame = top.wrapping_sub(FRAME_BYTES).cast::<usize>();
    // SAFETY: the caller's promise.
    unsafe {
        frame.write_bytes(0, FRAME_BYTES / 8);
        frame.add(ARGUMENT).write(argument as usize);
        frame.add(RUN).write(run as usize);
        frame.add(RETURN).write(emulator_begin as *const () as usize);
    }
    frame.cast()
}

unsafe extern "C" {
    fn emulator_switch(from: *mut *mut u8, to: *mut u8);
    fn emulator_begin();
}

/// Bytes of a frame.
#[cfg(target_arch = "x86_64")]
pub(super) const FRAME_BYTES: usize = 64;
#[cfg(target_arch = "x86_64")]
const ARGUMENT: usize = 0;
#[cfg(target_arch = "x86_64")]
const RUN: usize = 1;
#[cfg(target_arch = "x86_64")]
const RETURN: usize = 6;

// r15 holds the argument and r14 what is called, of a new stack.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl emulator_switch",
    ".hidden emulator_switch",
    "emulator_switch:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rsp, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".globl emulator_begin",
    ".hidden emulator_begin",
    "emulator_begin:",
    "sub rsp, 8",
    "mov rdi, r15",
    "call r14",
    "ud2",
);

/// Bytes of a frame.
#[cfg(target_arch = "aarch64")]
pub(super) const FRAME_BYTES: usize = 160;
#[cfg(target_arch = "aarch64")]
const ARGUMENT: usize = 0;
#[cfg(target_arch = "aarch64")]
const RUN: usize = 1;
#[cfg(target_arch = "aarch64")]
const RETURN: usize = 11;

// x19 holds the argument and x20 what is called, of a new stack.
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".globl emulator_switch",
    ".hidden emulator_switch",
    "emulator_switch:",
    "sub sp, sp, #160",
    "stp x19, x20, [sp]",
    "stp x21, x22, [sp, #16]",
    "stp x23, x24, [sp, #32]",
    "stp x25, x26, [sp, #48]",
    "stp x27, x28, [sp, #64]",
    "stp x29, x30, [sp, #80]",
    "stp d8, d9, [sp, #96]",
    "stp d10, d11, [sp, #112]",
    "stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]",
    "mov x9, sp",
    "str x9, [x0]",
    "mov sp, x1",
    "ldp x19, x20, [sp]",
    "ldp x21, x22, [sp, #16]",
    "ldp x23, x24, [sp, #32]",
    "ldp x25, x26, [sp, #48]",
    "ldp x27, x28, [sp, #64]",
    "ldp x29, x30, [sp, #80]",
    "ldp d8, d9, [sp, #96]",
    "ldp d10, d11, [sp, #112]",
    "ldp d12, d13, [sp, #128]",
    "ldp d14, d15, [sp, #144]",
    "add sp, sp, #160",
    "ret",
    ".globl emulator_begin",
    ".hidden emulator_begin",
    "emulator_begin:",
    "mov x0, x19",
    "blr x20",
    "brk #0",
);
