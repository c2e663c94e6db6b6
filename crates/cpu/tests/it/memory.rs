//! Ops allocate nothing once they have run at a size.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use arith::attention::{Heads, KvDtype};
use arith::format::{Format, Matrix};
use arith::gdn::HeadOrder;
use backend::{Backend, Gdn, Pairing, RopeRows, RowAt, RowMap, Walk};

use crate::{Random, backends, upload};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: everything is the system allocator's; the count is a plain thread-local cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn ops_allocate_nothing_after_their_first_call() {
    let mut random = Random(31);
    let heads = Heads { query: 9, kv: 3, dim: 64 };
    for (name, cpu) in backends() {
        let formats = [Format::Q4_1, Format::Q8_0, Format::F16];
        let stored = formats.map(|f| random.stored(f, 576, 576));
        let packed = [0, 1, 2].map(|i| {
            let matrix = Matrix { format: formats[i], rows: 576, cols: 576, bytes: &stored[i] };
            cpu.linear(&matrix).unwrap()
        });
        let ones = 1.0_f32.to_le_bytes().repeat(576);
        let w = Matrix { format: Format::F32, rows: 1, cols: 576, bytes: &ones };
        let w = cpu.vector(&w).unwrap();
        let mut kv = cpu.kv(KvDtype::F16, 10, heads).unwrap();
        let map = |rows: u32| RowMap {
            rows: (0..rows).map(|position| RowAt { table: 0, position }).collect(),
            tables: vec![Arc::from((0..10).collect::<Vec<u32>>())],
        };
        let mut x = upload(&cpu, &random.values(40 * 576, 1.0), 576);
        let k = upload(&cpu, &random.values(40 * 192, 1.0), 192);
        let mut outs = [0, 1, 2].map(|_| cpu.rows(40, 576).unwrap());
        for rows in [40, 7, 1, 12] {
            let rounds = (map(rows), RopeRows::new(1e4, 64, &vec![5; rows as usize]));
            let (n, ids) = (rows as usize, vec![3; rows as usize]);
            let [a, b, c] = &mut outs;
            let before = ALLOCATIONS.get();
            cpu.embed(&packed[0], &ids, &mut x);
            cpu.rms_norm(&x, &w, 1e-5, n, a);
            cpu.project(a, n, &[&packed[0], &packed[1]], &mut [b, c]);
            cpu.project(&x, n, &[&packed[2]], &mut [b]);
            cpu.rope(b, 9, 64, Pairing::Adjacent, &rounds.1);
            cpu.kv_write(&mut kv, &k, &k, &rounds.0);
            cpu.attention(b, &kv, &rounds.0, c);
            cpu.silu_mul(b, c, n, a);
            cpu.add(&mut x, a, n);
            let made = ALLOCATIONS.get() - before;
            assert!(rows == 40 || made == 0, "{name}: {made} allocations for {rows} rows");
        }
    }
}

#[test]
fn recurrent_ops_allocate_nothing_after_their_first_call() {
    let mut random = Random(32);
    let order = HeadOrder::Grouped;
    let shape = Gdn { keys: 4, values: 8, key_dim: 32, value_dim: 40, taps: 4, order };
    let (channels, width) = (shape.channels(), shape.value_width());
    for (name, cpu) in backends() {
        let vector = |n: usize| {
            let ones = 1.0_f32.to_le_bytes().repeat(n);
            cpu.vector(&Matrix { format: Format::F32, rows: 1, cols: n, bytes: &ones }).unwrap()
        };
        let (taps, w, heads) = (vector(4 * channels), vector(shape.value_dim), vector(8));
        let mut state = cpu.state(shape, 3).unwrap();
        let mut other = cpu.state(shape, 3).unwrap();
        let x = upload(&cpu, &random.values(40 * channels, 1.0), channels);
        let b = upload(&cpu, &random.values(40 * 8, 1.0), 8);
        let z = upload(&cpu, &random.values(40 * width, 1.0), width);
        let mut mixed = cpu.rows(40, channels).unwrap();
        let mut gates = cpu.rows(40, 16).unwrap();
        let mut out = cpu.rows(40, width).unwrap();
        for rows in [40, 7, 1, 12] {
            let walks = [
                Walk { rows: 0..rows / 2, from: Some(0), to: 0 },
                Walk { rows: rows / 2..rows, from: None, to: 2 },
            ];
            let before = ALLOCATIONS.get();
            cpu.convolve(&x, &taps, &mut state, &walks, &mut mixed);
            cpu.gates(&b, &b, &heads, &heads, rows, &mut gates);
            cpu.delta(&mixed, &gates, &mut state, &walks, &mut out);
            cpu.gated_norm(&mut out, &w, &z, 1e-6, rows);
            cpu.head_norm(&mut out, &w, 1e-6, rows);
            cpu.gate(&mut out, &z, rows);
            cpu.copy_state(&state, 2, &mut other, 1);
            let made = ALLOCATIONS.get() - before;
            assert!(rows == 40 || made == 0, "{name}: {made} allocations for {rows} rows");
        }
    }
}
