//! What a card forbids is a fault that says who and where, and ends.

use super::{module, run};
use baton_emulator::Module;

fn fault(body: &str, threads: u32) -> String {
    run(body, threads, &mut [0; 64]).expect_err("a fault")
}

#[test]
fn shared_memory_has_an_end_and_words_are_aligned() {
    let found = fault("mov.u64 %rd4, memory; ld.shared.u32 %r2, [%rd4+256];", 1);
    assert!(found.contains("0x100, of which there are 256"), "{found}");
    assert!(fault("ld.shared.u32 %r2, [%rd2+2];", 1).contains("not aligned"));
    let found = fault("setp.ne.s32 %p1, %r1, 3; @%p1 ret; ld.global.u32 %r2, [%rd1+1];", 32);
    assert!(found.contains("thread [3, 0, 0]") && found.contains("not aligned"), "{found}");
}

#[test]
fn an_address_that_is_none_is_a_fault_of_its_thread() {
    let body = "setp.ne.s32 %p1, %r1, 5; @%p1 ret; mov.u64 %rd4, 4096; ld.global.u32 %r2, [%rd4];
                st.global.u32 [%rd1], %r2;";
    let found = fault(body, 32);
    assert!(found.contains("kernel test") && found.contains("thread [5, 0, 0]"), "{found}");
    assert!(found.contains("0x1000"), "{found}");
    // And the next launch is none the worse for it.
    run("st.global.u32 [%rd3], %r1;", 32, &mut [0; 32]).expect("runs");
}

#[test]
fn threads_that_wait_for_ever_are_told_of() {
    let found = fault("setp.eq.s32 %p1, %r1, 0; @%p1 ret; bar.sync 1, 64;", 64);
    assert!(found.contains("63 threads wait for ever") && found.contains("barrier 1"), "{found}");
    let lanes = "setp.eq.s32 %p1, %r1, 0; @%p1 bra none; bar.warp.sync -1; none:";
    assert!(fault(lanes, 32).contains("bar.warp.sync"), "{}", fault(lanes, 32));
}

#[test]
fn lanes_that_part_at_a_shuffle_are_told_of() {
    let body = "setp.eq.s32 %p1, %r1, 4; @%p1 bra other;
        shfl.sync.idx.b32 %r2|%p2, %r1, 0, 31, -1; ret;
        other: shfl.sync.idx.b32 %r3|%p2, %r1, 1, 31, -1;";
    assert!(fault(body, 32).contains("lane 4 waits in a shuffle"), "{}", fault(body, 32));
}

#[test]
fn a_product_of_a_part_of_a_warp_is_refused() {
    let body = "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r4, %r5, %r6, %r7},
        {%r1, %r1}, {%r1}, {%r1, %r1, %r1, %r1};";
    assert!(fault(body, 48).contains("not whole"), "{}", fault(body, 48));
}

#[test]
fn what_is_not_emulated_is_named() {
    let kernel = module("sin.approx.f32 %f1, %f2;").kernel("test").expect("the kernel");
    let found = kernel.compile().expect_err("refuses");
    assert!(found.contains("`sin.approx.f32` is not emulated"), "{found}");
    assert!(Module::load("\x7fELF", std::path::Path::new("")).is_err());
}

#[test]
fn parameters_that_are_too_short_are_refused() {
    let kernel = module("").kernel("test").expect("the kernel");
    let found = kernel.launch([1, 1, 1], [1, 1, 1], 0, &[0; 4]).expect_err("refuses");
    assert!(found.contains("4 bytes of parameters, of 8"), "{found}");
}
