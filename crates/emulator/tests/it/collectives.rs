//! What threads do together.

use std::time::{Duration, Instant};

use super::{module, run};

#[test]
fn lanes_take_from_each_other_within_their_range() {
    let shuffled = |how: &str, by: u32, within: u32| {
        let body = format!(
            "add.s32 %r2, %r1, 100; mov.u32 %r9, 7;\n\
             shfl.sync.{how}.b32 %r3|%p1, %r2, {by}, {within}, -1;\n\
             selp.u32 %r4, 1000, 0, %p1; add.s32 %r3, %r3, %r4; st.global.u32 [%rd3], %r3;"
        );
        let mut data = [0; 32];
        run(&body, 32, &mut data).expect(how);
        data
    };
    let bfly = shuffled("bfly", 3, 31);
    assert_eq!([bfly[0], bfly[31]], [1103, 1128]);
    let up = shuffled("up", 1, 0);
    assert_eq!([up[0], up[1], up[31]], [100, 1100, 1130]);
    let down = shuffled("down", 4, 31);
    assert_eq!([down[0], down[27], down[28]], [1104, 1131, 128]);
    let eights = shuffled("idx", 2, 0x181f);
    assert_eq!([eights[0], eights[7], eights[8], eights[31]], [1102, 1102, 1110, 1126]);
}

#[test]
fn a_product_of_bytes_has_the_fragments_of_the_card() {
    // Row r of the left side is r - 8 everywhere, column c of the right one c at depth c only.
    let body = "
        shr.u32 %r2, %r1, 2; and.b32 %r3, %r1, 3;
        add.s32 %r4, %r2, -8; and.b32 %r4, %r4, 255; mul.lo.s32 %r4, %r4, 0x01010101;
        and.b32 %r5, %r2, 255; mul.lo.s32 %r5, %r5, 0x01010101;
        mov.u32 %r6, 0; shr.u32 %r7, %r2, 2; setp.ne.s32 %p1, %r7, %r3;
        and.b32 %r8, %r2, 3; shl.b32 %r8, %r8, 3; shl.b32 %r6, %r2, %r8;
        @%p1 mov.u32 %r6, 0;
        mov.u32 %r10, 1; mov.u32 %r11, 0;
        mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r20, %r21, %r22, %r23},
            {%r4, %r5, %r11, %r11}, {%r6, %r11}, {%r10, %r10, %r10, %r10};
        mul.wide.u32 %rd4, %r2, 32; mul.wide.u32 %rd5, %r3, 8; add.s64 %rd4, %rd4, %rd5;
        add.s64 %rd4, %rd4, %rd1;
        st.global.v2.u32 [%rd4], {%r20, %r21}; st.global.v2.u32 [%rd4+256], {%r22, %r23};";
    let mut data = [0; 128];
    run(body, 32, &mut data).expect("a product");
    for (at, found) in data.into_iter().enumerate() {
        let (row, column) = (at as i32 / 8, at as i32 % 8);
        assert_eq!(found as i32, 1 + (row - 8) * column, "row {row}, column {column}");
    }
}

/// Each thread of two warps gives its word to its neighbour through shared memory.
const NEIGHBOURS: &str = "
    mov.u64 %rd4, memory; add.s64 %rd5, %rd4, %rd2; st.shared.u32 [%rd5], %r1; BARRIER
    xor.b32 %r2, %r1, 63; mul.wide.u32 %rd6, %r2, 4; add.s64 %rd6, %rd4, %rd6;
    ld.shared.u32 %r3, [%rd6]; st.global.u32 [%rd3], %r3;";

#[test]
fn a_barrier_is_what_makes_writes_seen() {
    let mut data = [0; 64];
    run(&NEIGHBOURS.replace("BARRIER", "bar.sync 0;"), 64, &mut data).expect("a barrier");
    assert!((0..64).all(|i| data[i as usize] == 63 - i), "{data:?}");
    run(&NEIGHBOURS.replace("BARRIER", ""), 64, &mut data).expect("no barrier");
    assert!((0..64).any(|i| data[i as usize] != 63 - i), "unseen: {data:?}");
}

/// Words come to shared memory by a copy.
const COPIED: &str = "
    mov.u64 %rd4, memory; cvt.u32.u64 %r2, %rd4; mul.lo.s32 %r3, %r1, 4; add.s32 %r2, %r2, %r3;
    cp.async.ca.shared.global [%r2], [%rd3], 4; cp.async.commit_group; WAIT
    ld.shared.u32 %r4, [%r2]; add.s32 %r4, %r4, 1; st.global.u32 [%rd3], %r4;";

#[test]
fn a_copy_arrives_when_it_is_waited_for_and_not_before() {
    let mut data = [5; 32];
    run(&COPIED.replace("WAIT", "cp.async.wait_group 0;"), 32, &mut data).expect("copies");
    assert_eq!(data, [6; 32]);
    run(&COPIED.replace("WAIT", "cp.async.wait_group 1;"), 32, &mut data).expect("copies");
    assert!(data.iter().all(|&word| word != 7), "{data:?}");
}

#[test]
fn barriers_vote_and_count_what_threads_say() {
    let body = "
        setp.eq.s32 %p1, %r1, 37; bar.red.or.pred %p2, 0, %p1; selp.u32 %r2, 1, 0, %p2;
        setp.eq.s32 %p1, %r1, 99; bar.red.or.pred %p2, 0, %p1; selp.u32 %r3, 2, 0, %p2;
        setp.lt.s32 %p1, %r1, 40; vote.sync.any.pred %p3, %p1, -1; selp.u32 %r4, 4, 0, %p3;
        add.s32 %r2, %r2, %r3; add.s32 %r2, %r2, %r4; st.global.u32 [%rd3], %r2;";
    let mut data = [0; 96];
    run(body, 96, &mut data).expect("votes");
    assert!(data[..64].iter().all(|&word| word == 5) && data[64..].iter().all(|&word| word == 1));
}

#[test]
fn blocks_that_look_at_memory_run_in_turns() {
    // The first block waits for the last one.
    let body = "
        mov.u32 %r2, %ctaid.x; setp.ne.s32 %p1, %r2, 0; @%p1 bra others;
    again: ld.volatile.global.u32 %r3, [%rd1]; setp.lt.s32 %p2, %r3, 7; @%p2 bra again;
        st.global.u32 [%rd1+4], %r3; ret;
    others: atom.global.add.u32 %r4, [%rd1], 1;";
    let mut data = [0_u32; 2];
    let params = (data.as_mut_ptr() as u64).to_le_bytes();
    let kernel = module(body).kernel("test").expect("the kernel");
    kernel.launch([8, 1, 1], [1, 1, 1], 0, &params).expect("ends");
    assert_eq!(data, [7, 7]);
}

#[test]
fn a_block_that_looks_for_what_does_not_come_is_given_up() {
    let body = "
    again: ld.volatile.global.u32 %r3, [%rd1]; setp.lt.s32 %p2, %r3, 7; @%p2 bra again;";
    let mut data = [0_u32];
    let params = (data.as_mut_ptr() as u64).to_le_bytes();
    let mut kernel = module(body).kernel("test").expect("the kernel");
    kernel.patience = Duration::from_millis(30);
    let since = Instant::now();
    let error = kernel.launch([2, 1, 1], [1, 1, 1], 0, &params).expect_err("nobody writes it");
    assert!(since.elapsed() >= kernel.patience);
    assert!(error.starts_with("kernel test: block [0, 0, 0], thread [0, 0, 0]"), "{error}");
    assert!(error.ends_with("ms for what does not come"), "{error}");
}
