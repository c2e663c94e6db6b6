//! Rates of the kernels, a JSON line each: billions of multiply-adds a second, by the clock and
//! by the processor time of the process (which leaves busy neighbours out; good for one thread).
//!
//! `cargo run --release -p baton-cpu --example kernels [THREADS...] [FORMATS...] [SHAPES...]`
//!
//! A shape is named by a part of its name; with one, only linear layers run. `--arith=2` takes the
//! other arithmetic.
#![allow(clippy::unwrap_used, reason = "a measuring tool")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use arith::attention::{Heads, KvDtype};
use arith::base::Arith;
use arith::format::{Format, Matrix, Mlx, Scales};
use backend::{Backend, RowAt, RowMap};
use baton_cpu::{Cpu, Isa, Linear, Rows};

/// How long each case is repeated; the best of its runs counts.
const CASE: Duration = Duration::from_millis(400);
/// Bytes of packed weights that a case walks through, so that one row finds them in memory.
const FOOTPRINT_BYTES: usize = 96 << 20;

/// Outputs, K, what it is.
const SHAPES: [(usize, usize, &str); 6] = [
    (960, 576, "smollm2 qkv"),
    (3072, 576, "smollm2 gate up"),
    (576, 1536, "smollm2 down"),
    (49152, 576, "smollm2 head"),
    (2048, 2048, "2048 wide"),
    (5120, 5120, "5120 wide"),
];

const fn mlx(bits: u8, group: u8, scales: Scales) -> Format {
    Format::Mlx(Mlx { bits, group, scales })
}

/// Of MLX, each width in its usual group, and the 4 bits in all.
const FORMATS: [Format; 20] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    mlx(2, 64, Scales::Bf16),
    mlx(3, 64, Scales::Bf16),
    mlx(4, 32, Scales::Bf16),
    mlx(4, 64, Scales::Bf16),
    mlx(4, 64, Scales::F16),
    mlx(4, 128, Scales::F32),
    mlx(5, 64, Scales::Bf16),
    mlx(6, 64, Scales::Bf16),
    mlx(8, 64, Scales::Bf16),
    Format::F16,
    Format::Bf16,
    Format::F32,
];

fn main() {
    // Numbers are thread counts, other words formats or parts of shapes; none asks for all.
    let (threads, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.parse::<usize>().is_ok());
    let (arith, words): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|a| a.starts_with("--arith="));
    let arith: Arith = arith.first().map_or(Arith::One, |a| a[8..].parse().unwrap());
    let threads: Vec<usize> = threads.iter().map(|a| a.parse().unwrap()).collect();
    let threads = if threads.is_empty() { vec![1, 2] } else { threads };
    let (formats, shapes): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|a| a.parse::<Format>().is_ok());
    let known = |format: &Format| formats.is_empty() || formats.contains(&format.to_string());
    let asked = |shape: &str| shapes.is_empty() || shapes.iter().any(|a| shape.contains(a));
    for threads in threads {
        let cpu = Cpu::new(threads, Isa::Auto, arith).unwrap();
        for format in FORMATS.into_iter().filter(known) {
            for shape in SHAPES.into_iter().filter(|&(_, _, name)| asked(name)) {
                linear(&cpu, format, shape);
            }
        }
        if !shapes.is_empty() {
            continue;
        }
        for (rows, keys) in [(1, 512), (1, 4096), (512, 512)] {
            attention(&cpu, rows, keys);
        }
        for rows in [1, 512] {
            rowwise(&cpu, rows);
        }
        for rows in [1, 4, 512] {
            model(&cpu, rows);
        }
    }
}

/// The best times of one run of some work, in seconds.
#[derive(Clone, Copy)]
struct Best {
    wall: f64,
    cpu: f64,
}

impl Best {
    fn over(self, n: usize) -> Self {
        Self { wall: self.wall / n as f64, cpu: self.cpu / n as f64 }
    }

    /// The fields that all lines share.
    fn json(self, macs: usize) -> String {
        format!(
            "\"us\":{:.2},\"gmacs\":{:.1},\"cpu_us\":{:.2},\"gmacs_a_cpu_s\":{:.1}",
            self.wall * 1e6,
            macs as f64 / self.wall / 1e9,
            self.cpu * 1e6,
            macs as f64 / self.cpu / 1e9,
        )
    }
}

/// Processor time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn best(mut work: impl FnMut()) -> Best {
    let start = Instant::now();
    let mut best = Best { wall: f64::INFINITY, cpu: f64::INFINITY };
    while start.elapsed() < CASE {
        let (run, cpu) = (Instant::now(), cpu_seconds());
        work();
        best.cpu = best.cpu.min(cpu_seconds() - cpu);
        best.wall = best.wall.min(run.elapsed().as_secs_f64());
    }
    best
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 2003) as f32 / 1000.0 - 1.0).collect()
}

fn upload(cpu: &Cpu, rows: usize, width: usize) -> Rows {
    let mut buffer = cpu.rows(rows, width).unwrap();
    cpu.upload(&values(rows * width), &mut buffer);
    buffer
}

fn stored(format: Format, values: usize) -> Vec<u8> {
    let bytes = values / format.unit_values() * format.unit_bytes();
    // High bytes stay below 0x3f: every scale and float is small and finite.
    (0..bytes).map(|i| (i * 31 % 61) as u8).collect()
}

fn linear(cpu: &Cpu, format: Format, (outputs, cols, what): (usize, usize, &str)) {
    if !cols.is_multiple_of(format.unit_values()) {
        return;
    }
    let bytes = stored(format, outputs * cols);
    let matrix = Matrix { format, rows: outputs, cols, bytes: &bytes };
    let copies = (FOOTPRINT_BYTES / bytes.len()).clamp(1, 64);
    let packed: Vec<Linear> = (0..copies).map(|_| cpu.linear(&matrix).unwrap()).collect();
    for rows in [1, 2, 4, 8, 512] {
        if rows == 512 && outputs > 10_000 {
            continue;
        }
        let x = upload(cpu, rows, cols);
        let mut out = cpu.rows(rows, outputs).unwrap();
        let walk = if rows > 8 { 1 } else { copies };
        let best = self::best(|| {
            for weights in &packed[..walk] {
                cpu.project(&x, rows, &[weights], &mut [&mut out]);
            }
        });
        let best = best.over(walk);
        println!(
            "{{\"op\":\"project\",\"format\":\"{format}\",\"shape\":\"{what}\",\
             \"outputs\":{outputs},\"k\":{cols},\"rows\":{rows},\"threads\":{},\"arith\":{},{},\
             \"weight_gb_a_cpu_s\":{:.1}}}",
            cpu.threads(),
            cpu.arith(),
            best.json(rows * outputs * cols),
            bytes.len() as f64 / best.cpu / 1e9,
        );
    }
}

fn attention(cpu: &Cpu, rows: usize, keys: usize) {
    let heads = Heads { query: 9, kv: 3, dim: 64 };
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let pages = keys.div_ceil(64);
        let table: Arc<[u32]> = (0..pages as u32).collect();
        let row = |position: u32| RowAt { table: 0, position };
        let map = |from: usize, to: usize| RowMap {
            rows: (from as u32..to as u32).map(row).collect(),
            tables: vec![Arc::clone(&table)],
        };
        let mut kv = cpu.kv(dtype, pages, heads).unwrap();
        let (k, v) = (upload(cpu, keys, 192), upload(cpu, keys, 192));
        let write = self::best(|| cpu.kv_write(&mut kv, &k, &v, &map(0, keys)));
        let q = upload(cpu, rows, 576);
        let mut out = cpu.rows(rows, 576).unwrap();
        let asked = map(keys - rows, keys);
        let best = self::best(|| cpu.attention(&q, &kv, &asked, &mut out));
        let seen: usize = asked.rows.iter().map(|at| at.position as usize + 1).sum();
        println!(
            "{{\"op\":\"attention\",\"kv\":\"{}\",\"rows\":{rows},\"keys\":{keys},\
             \"threads\":{},{},\"write_ns_a_row\":{:.0}}}",
            dtype.name(),
            cpu.threads(),
            best.json(2 * seen * 576),
            write.cpu * 1e9 / keys as f64,
        );
    }
}

fn rowwise(cpu: &Cpu, rows: usize) {
    let bytes: Vec<u8> = values(576).iter().flat_map(|x| x.to_le_bytes()).collect();
    let w = Matrix { format: Format::F32, rows: 1, cols: 576, bytes: &bytes };
    let w = cpu.vector(&w).unwrap();
    let (x, mut y) = (upload(cpu, rows, 576), upload(cpu, rows, 576));
    let positions: Vec<u32> = (0..rows as u32).collect();
    let rope = backend::RopeRows::new(1e5, 64, &positions);
    let (gate, up) = (upload(cpu, rows, 1536), upload(cpu, rows, 1536));
    let mut hidden = cpu.rows(rows, 1536).unwrap();
    let cases = [
        ("rms_norm", best(|| cpu.rms_norm(&x, &w, 1e-5, rows, &mut y))),
        ("rope", best(|| cpu.rope(&mut y, 9, 64, backend::Pairing::Adjacent, &rope))),
        ("silu_mul", best(|| cpu.silu_mul(&gate, &up, rows, &mut hidden))),
        ("add", best(|| cpu.add(&mut y, &x, rows))),
    ];
    for (op, best) in cases {
        let times = best.json(0);
        println!("{{\"op\":\"{op}\",\"rows\":{rows},\"threads\":{},{times}}}", cpu.threads());
    }
}

/// Layers of the shape of SmolLM2-135M in Q4_1, then the head for the last row.
fn model(cpu: &Cpu, rows: usize) {
    const LAYERS: usize = 30;
    let heads = Heads { query: 9, kv: 3, dim: 64 };
    let packed = |outputs: usize, cols: usize| {
        let bytes = stored(Format::Q4_1, outputs * cols);
        cpu.linear(&Matrix { format: Format::Q4_1, rows: outputs, cols, bytes: &bytes }).unwrap()
    };
    let layer = || {
        let shapes = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576)];
        let mut all: Vec<Linear> = shapes.iter().map(|&(n, k)| packed(n, k)).collect();
        all.push(packed(576, 1536));
        (all, cpu.kv(KvDtype::F16, 9, heads).unwrap())
    };
    let mut layers: Vec<_> = (0..LAYERS).map(|_| layer()).collect();
    let head = packed(49152, 576);
    let ones = 1.0_f32.to_le_bytes().repeat(576);
    let w = Matrix { format: Format::F32, rows: 1, cols: 576, bytes: &ones };
    let w = cpu.vector(&w).unwrap();
    let first = if rows == 512 { 0 } else { 512 };
    let map = RowMap {
        rows: (first..first + rows as u32).map(|position| RowAt { table: 0, position }).collect(),
        tables: vec![(0..9).collect()],
    };
    let positions: Vec<u32> = map.rows.iter().map(|at| at.position).collect();
    let rope = backend::RopeRows::new(1e5, 64, &positions);
    let buffer = |width| cpu.rows(rows, width).unwrap();
    let (mut x, mut y, mut q, mut k, mut v) =
        (buffer(576), buffer(576), buffer(576), buffer(192), buffer(192));
    let (mut gate, mut up, mut hidden) = (buffer(1536), buffer(1536), buffer(1536));
    let mut logits = cpu.rows(1, 49152).unwrap();
    let start = values(rows * 576);
    let best = self::best(|| {
        cpu.upload(&start, &mut x);
        for (w_layer, kv) in &mut layers {
            let [wq, wk, wv, wo, wg, wu, wd] = &w_layer[..] else { unreachable!() };
            cpu.rms_norm(&x, &w, 1e-5, rows, &mut y);
            cpu.project(&y, rows, &[wq, wk, wv], &mut [&mut q, &mut k, &mut v]);
            cpu.rope(&mut q, 9, 64, backend::Pairing::Adjacent, &rope);
            cpu.rope(&mut k, 3, 64, backend::Pairing::Adjacent, &rope);
            cpu.kv_write(kv, &k, &v, &map);
            cpu.attention(&q, kv, &map, &mut y);
            cpu.project(&y, rows, &[wo], &mut [&mut q]);
            cpu.add(&mut x, &q, rows);
            cpu.rms_norm(&x, &w, 1e-5, rows, &mut y);
            cpu.project(&y, rows, &[wg, wu], &mut [&mut gate, &mut up]);
            cpu.silu_mul(&gate, &up, rows, &mut hidden);
            cpu.project(&hidden, rows, &[wd], &mut [&mut y]);
            cpu.add(&mut x, &y, rows);
        }
        cpu.rms_norm(&x, &w, 1e-5, 1, &mut y);
        cpu.project(&y, 1, &[&head], &mut [&mut logits]);
    });
    println!(
        "{{\"op\":\"smollm2 shape\",\"rows\":{rows},\"threads\":{},\"ms\":{:.2},\
         \"rows_a_s\":{:.0},\"rows_a_cpu_s\":{:.0}}}",
        cpu.threads(),
        best.wall * 1e3,
        rows as f64 / best.wall,
        rows as f64 / best.cpu,
    );
}
