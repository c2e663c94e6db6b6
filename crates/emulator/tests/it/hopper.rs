//! What cards of 9.0 have beside: barriers in shared memory, copies that they count, products of
//! four warps.

use super::run;

/// One thread brings 128 bytes, all wait for them.
const BROUGHT: &str = "
    mov.u64 %rd4, memory; cvt.u32.u64 %r2, %rd4; add.s32 %r3, %r2, 128; mov.u32 %r4, 1;
    mov.u32 %r5, BYTES; mov.u32 %r6, 0; mov.u32 %r7, 128;
    setp.ne.s32 %p1, %r1, 0; @%p1 bra others;
    mbarrier.init.shared::cta.b64 [%r3], %r4; fence.mbarrier_init.release.cluster;
    others: bar.sync 0; @%p1 bra wait;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], %r5;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], %r7, [%r3];
    wait: WAIT
    mul.lo.s32 %r8, %r1, 4; add.s32 %r8, %r2, %r8; ld.shared.u32 %r9, [%r8];
    add.s32 %r9, %r9, 1; st.global.u32 [%rd3], %r9;";

const WAIT: &str = "{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%r3], %r6;
    @p bra done; bra again; done: }";

#[test]
fn a_barrier_in_shared_memory_counts_the_bytes_that_come() {
    let brought = |bytes: &str, wait: &str| {
        let mut data: [u32; 32] = std::array::from_fn(|i| 100 + i as u32);
        let body = BROUGHT.replace("BYTES", bytes).replace("WAIT", wait);
        run(&body, 32, &mut data).map(|()| data)
    };
    let data = brought("128", WAIT).expect("comes");
    assert!(data.iter().zip(101..).all(|(&found, wanted)| found == wanted), "{data:?}");
    assert_ne!(brought("128", "").expect("unseen")[31], 132);
    let found = brought("144", WAIT).expect_err("sixteen bytes never come");
    assert!(found.contains("32 threads wait for ever") && found.contains("mbarrier"), "{found}");
}

#[test]
fn a_wide_product_has_the_fragments_of_the_card() {
    // Column c has c at depth c % 32, row r of the left side r - 32; eight columns by 16 values
    // lie together, then the next 16 values, then the next columns.
    let mut body = String::from(
        "mov.u64 %rd4, memory; cvt.u32.u64 %r2, %rd4; mov.u32 %r3, 0; mov.u32 %r10, 0;
        mul.lo.s32 %r4, %r1, 16; add.s32 %r4, %r2, %r4;
        st.shared.v4.u32 [%r4], {%r10, %r10, %r10, %r10}; bar.sync 0;
        setp.ge.s32 %p1, %r1, 64; @%p1 bra filled;
        shr.u32 %r5, %r1, 3; shl.b32 %r5, %r5, 8; and.b32 %r6, %r1, 7; shl.b32 %r6, %r6, 4;
        add.s32 %r5, %r5, %r6; and.b32 %r6, %r1, 31; shr.u32 %r7, %r6, 4; shl.b32 %r7, %r7, 7;
        add.s32 %r5, %r5, %r7; and.b32 %r6, %r6, 15; add.s32 %r5, %r5, %r6;
        add.s32 %r5, %r5, %r2; cvt.u16.u32 %rs1, %r1; st.shared.u8 [%r5], %rs1;
        filled: bar.sync 0;
        shr.u32 %r5, %r1, 5; shl.b32 %r5, %r5, 4; and.b32 %r6, %r1, 31; shr.u32 %r6, %r6, 2;
        add.s32 %r5, %r5, %r6; add.s32 %r6, %r5, -32; and.b32 %r6, %r6, 255;
        mul.lo.s32 %r6, %r6, 0x01010101; add.s32 %r7, %r5, -24; and.b32 %r7, %r7, 255;
        mul.lo.s32 %r7, %r7, 0x01010101;
        shr.u32 %r8, %r2, 4; or.b32 %r8, %r8, 0x80000; mov.u32 %r9, 16; mov.b64 %rd5, {%r8, %r9};
        .reg .b32 %c<32>;\n",
    );
    (0..32).for_each(|i| body += &format!("mov.u32 %c{i}, 5;"));
    let sums: Vec<String> = (0..32).map(|i| format!("%c{i}")).collect();
    let sums = sums.join(",");
    body += &format!(
        "wgmma.fence.sync.aligned; {{.reg .pred p; setp.ne.b32 p, 1, 0;
        wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {{{sums}}}, {{%r6,%r7,%r6,%r7}}, %rd5, p;}}
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
        and.b32 %r11, %r1, 3; shl.b32 %r12, %r5, 8; shl.b32 %r13, %r11, 3;
        add.s32 %r12, %r12, %r13; cvt.u64.u32 %rd6, %r12; add.s64 %rd6, %rd6, %rd1;\n"
    );
    for i in 0..32 {
        let at = i / 2 % 2 * 8 * 256 + i / 4 * 32 + i % 2 * 4;
        body += &format!("st.global.u32 [%rd6+{at}], %c{i};");
    }
    let mut data = vec![0; 64 * 64];
    super::launch(&body, 128, 2048, &mut data).expect("a product");
    for (at, found) in data.into_iter().enumerate() {
        let (row, column) = (at as i32 / 64, at as i32 % 64);
        assert_eq!(found as i32, 5 + (row - 32) * column, "row {row}, column {column}");
    }
}
