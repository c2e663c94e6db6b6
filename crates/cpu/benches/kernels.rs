//! Every kernel in its usual sizes: one table of medians with their spread, beside what the
//! machine can do at most.
//!
//! `cargo bench -p baton-cpu --bench kernels -- [--threads N] [--arith N] [--isa NAME]
//! [--processor-time] [NAME...]`
//!
//! A NAME is a part of a row's name; with some, only rows that have all of them run, also those of
//! other shapes that one names. One row of activations reads
//! its weights from memory, so its share is that of the read bandwidth; 512 rows are held against
//! the peak rate of integer products. `--processor-time` counts the process's own time in place
//! of the clock's, by thread: on a busy machine, with one thread, that leaves neighbours out.
#![allow(clippy::unwrap_used, reason = "a measuring tool")]

use std::sync::Arc;

use arith::attention::{Heads, KvDtype};
use arith::base::Arith;
use arith::format::{Format, Matrix, Mlx, Scales};
use backend::{Backend, Gdn, HeadOrder, Pairing, RopeRows, RowAt, RowMap, Walk};
use baton_cpu::{Cpu, Isa, Limits, Linear, Rows, limits_by};

/// Runs of each case, those of a format in turn.
const RUNS: usize = 15;
/// Bytes of packed weights that one row walks through: more than caches hold.
const FOOTPRINT_BYTES: usize = 96 << 20;
/// Outputs and K of a matrix, and what it is. A table has the first shape; others only run by name.
type Shape = (usize, usize, &'static str);

/// K of the first is a multiple of every format's unit.
const SHAPES: [Shape; 7] = [
    (2048, 2048, "2,048 wide"),
    (5120, 5120, "5,120 wide"),
    (960, 576, "smollm2 qkv"),
    (3072, 576, "smollm2 gate and up"),
    (576, 1536, "smollm2 down"),
    (49152, 576, "smollm2 head"),
    (7168, 1024, "qwen3_5 gate and up"),
];
/// Rows at once.
const COUNTS: [usize; 7] = [1, 2, 4, 8, 16, 24, CHUNK];
/// Rows of a prompt's chunk.
const CHUNK: usize = 512;

const fn mlx(bits: u8, scales: Scales) -> Format {
    Format::Mlx(Mlx { bits, group: 64, scales })
}

const FORMATS: [Format; 17] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    mlx(2, Scales::Bf16),
    mlx(3, Scales::Bf16),
    mlx(4, Scales::Bf16),
    mlx(5, Scales::Bf16),
    mlx(6, Scales::Bf16),
    mlx(8, Scales::Bf16),
    Format::F16,
    Format::Bf16,
    Format::F32,
];

/// What the command line asks for.
struct Asked {
    threads: usize,
    arith: Arith,
    isa: Isa,
    processor_time: bool,
    names: Vec<String>,
}

fn asked() -> Asked {
    let mut asked = Asked {
        threads: 1,
        arith: Arith::One,
        isa: Isa::Auto,
        processor_time: false,
        names: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--threads" => asked.threads = words.next().unwrap().parse().unwrap(),
            "--arith" => asked.arith = words.next().unwrap().parse().unwrap(),
            "--isa" => asked.isa = isa(&words.next().unwrap()),
            "--processor-time" => asked.processor_time = true,
            // What cargo passes to every benchmark.
            "--bench" => {}
            _ => asked.names.push(word),
        }
    }
    asked
}

fn isa(name: &str) -> Isa {
    let all =
        [Isa::Auto, Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon, Isa::NeonDot, Isa::NeonMatrix];
    let named = |isa: &Isa| format!("{isa:?}").eq_ignore_ascii_case(name);
    all.into_iter().find(named).unwrap_or_else(|| panic!("{name} is none of {all:?}"))
}

impl Asked {
    /// Seconds since some moment: the clock's, or those that each thread ran.
    fn seconds(&self) -> f64 {
        let id = match self.processor_time {
            true => libc::CLOCK_PROCESS_CPUTIME_ID,
            false => libc::CLOCK_MONOTONIC,
        };
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is a timespec to write to.
        unsafe { libc::clock_gettime(id, &mut t) };
        let seconds = t.tv_sec as f64 + t.tv_nsec as f64 / 1e9;
        if self.processor_time { seconds / self.threads as f64 } else { seconds }
    }
}

/// What a run does.
type Work<'a> = Box<dyn FnMut() + 'a>;

/// One row of the table: what a run of `work` does.
struct Case<'a> {
    name: String,
    /// Bytes read that are in no cache.
    bytes: usize,
    /// Integer multiply-adds.
    macs: usize,
    /// Values a run is counted by.
    values: usize,
    work: Work<'a>,
}

/// The table and what its shares are of.
struct Table {
    asked: Asked,
    cpu: Cpu,
    limits: Limits,
}

impl Table {
    fn wants(&self, name: &str) -> bool {
        self.asked.names.iter().all(|part| name.contains(part))
    }

    fn head(&self) {
        let (read, peak) = (self.limits.read_bytes / 1e9, self.peak().unwrap_or(0.0) / 1e9);
        println!("{}, arith {}", self.cpu.device(), self.asked.arith);
        println!("limits: {read:.1} GB/s of reads, {peak:.0} G integer multiply-adds/s\n");
        println!(
            "| kernel | median us | spread | GB/s | of reads | GMAC/s | of peak | ns a value |"
        );
        println!("|---|---|---|---|---|---|---|---|");
    }

    /// The integer rate that the arithmetic's linear layers are held against.
    fn peak(&self) -> Option<f64> {
        match self.asked.arith {
            Arith::One => self.limits.multiply_16,
            Arith::Two => self.limits.multiply_8,
        }
    }

    /// Runs the cases in turn and prints a row for each: spread is half of what lies between the
    /// quartiles, in parts of the median.
    fn measure(&self, cases: Vec<Case<'_>>) {
        let mut cases: Vec<_> = cases.into_iter().filter(|c| self.wants(&c.name)).collect();
        let mut times = vec![Vec::with_capacity(RUNS); cases.len()];
        for run in 0..=RUNS {
            for (case, times) in cases.iter_mut().zip(&mut times) {
                let start = self.asked.seconds();
                (case.work)();
                // The first run warms up.
                if run > 0 {
                    times.push(self.asked.seconds() - start);
                }
            }
        }
        for (case, mut times) in cases.iter().zip(times) {
            times.sort_by(f64::total_cmp);
            let at = |part: usize| times[RUNS * part / 4];
            let (median, spread) = (at(2), (at(3) - at(1)) / 2.0 / at(2));
            let share = |of: f64, limit: Option<f64>| match limit {
                Some(limit) if of > 0.0 => {
                    (format!("{:.1}", of / 1e9), format!("{:.0} %", 100.0 * of / limit))
                }
                _ => ("".to_owned(), "".to_owned()),
            };
            let (bytes, reads) = share(case.bytes as f64 / median, Some(self.limits.read_bytes));
            let (macs, peak) = share(case.macs as f64 / median, self.peak());
            println!(
                "| {} | {:.1} | {:.0} % | {bytes} | {reads} | {macs} | {peak} | {:.3} |",
                case.name,
                median * 1e6,
                spread * 100.0,
                median * 1e9 / case.values as f64
            );
        }
    }
}

fn main() {
    let asked = asked();
    let cpu = Cpu::new(asked.threads, asked.isa, asked.arith).unwrap();
    let limits = limits_by(asked.threads, &|| asked.seconds());
    let table = Table { asked, cpu, limits };
    table.head();
    for format in FORMATS {
        for shape in SHAPES {
            linear(&table, format, shape);
        }
    }
    attention(&table);
    delta(&table);
    for rows in [1, CHUNK] {
        rowwise(&table, rows);
    }
}

fn said(rows: usize) -> String {
    format!("{rows} row{}", if rows == 1 { "" } else { "s" })
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 2003) as f32 / 1000.0 - 1.0).collect()
}

fn upload(cpu: &Cpu, rows: usize, width: usize) -> Rows {
    let mut buffer = cpu.rows(rows, width).unwrap();
    cpu.upload(&values(rows * width), &mut buffer);
    buffer
}

fn linear(table: &Table, format: Format, (outputs, cols, shape): Shape) {
    let cpu = &table.cpu;
    let counts = COUNTS.map(|rows| (rows, format!("project {format}, {shape}, {}", said(rows))));
    let first = shape == SHAPES[0].2;
    let asked = first || table.asked.names.iter().any(|name| shape.contains(name.as_str()));
    let wanted = counts.iter().any(|(_, name)| table.wants(name));
    if !asked || !wanted || !cols.is_multiple_of(format.unit_values()) {
        return;
    }
    let bytes = outputs * cols / format.unit_values() * format.unit_bytes();
    // High bytes stay below 0x3f: every scale and float is small and finite.
    let stored: Vec<u8> = (0..bytes).map(|i| (i * 31 % 61) as u8).collect();
    let matrix = Matrix { format, rows: outputs, cols, bytes: &stored };
    let copies = FOOTPRINT_BYTES.div_ceil(bytes);
    let packed: Vec<Linear> = (0..copies).map(|_| cpu.linear(&matrix).unwrap()).collect();
    let case = |(rows, name): (usize, String)| {
        let (x, mut out) = (upload(cpu, rows, cols), cpu.rows(rows, outputs).unwrap());
        let walk = if rows < CHUNK { copies } else { 1 };
        let packed = &packed[..walk];
        let macs = if format.is_float() { 0 } else { walk * rows * outputs * cols };
        Case {
            name,
            bytes: if rows < CHUNK { walk * bytes } else { 0 },
            macs,
            values: walk * rows * outputs,
            work: Box::new(move || {
                for weights in packed {
                    cpu.project(&x, rows, &[weights], &mut [&mut out]);
                }
            }),
        }
    };
    table.measure(counts.map(case).into());
}

/// The heads of SmolLM2-135M.
const HEADS: Heads = Heads { query: 9, kv: 3, dim: 64 };

fn attention(table: &Table) {
    let cpu = &table.cpu;
    let case = |dtype: KvDtype, rows: usize, keys: usize| {
        let pages = keys.div_ceil(64);
        let map = |from: usize, to: usize| RowMap {
            rows: (from..to).map(|i| RowAt { table: 0, position: i as u32 }).collect(),
            tables: vec![Arc::from_iter(0..pages as u32)],
        };
        let [wide, narrow] = [HEADS.query, HEADS.kv].map(|heads| heads * HEADS.dim);
        let mut kv = cpu.kv(dtype, pages, HEADS).unwrap();
        let (k, v) = (upload(cpu, keys, narrow), upload(cpu, keys, narrow));
        cpu.kv_write(&mut kv, &k, &v, &map(0, keys));
        let (q, mut out) = (upload(cpu, rows, wide), cpu.rows(rows, wide).unwrap());
        let asked = map(keys - rows, keys);
        Case {
            name: format!("attention {}, {rows} of {keys} keys", dtype.name()),
            bytes: 0,
            macs: 0,
            values: asked.rows.iter().map(|at| at.position as usize + 1).sum::<usize>() * wide,
            work: Box::new(move || cpu.attention(&q, &kv, &asked, &mut out)),
        }
    };
    let mut cases = Vec::new();
    for dtype in [KvDtype::F16, KvDtype::F32] {
        cases.extend([(1, 512), (1, 4096), (CHUNK, CHUNK)].map(|(r, k)| case(dtype, r, k)));
    }
    table.measure(cases);
}

fn delta(table: &Table) {
    let cpu = &table.cpu;
    let shape = Gdn {
        keys: 16,
        values: 16,
        key_dim: 128,
        value_dim: 128,
        taps: 4,
        order: HeadOrder::Grouped,
    };
    let values = |rows: usize| rows * shape.values * shape.key_dim * shape.value_dim;
    let case = |rows: usize| {
        let mut state = cpu.state(shape, 1).unwrap();
        let x = upload(cpu, rows, shape.channels());
        let gates = upload(cpu, rows, 2 * shape.values);
        let mut out = cpu.rows(rows, shape.value_width()).unwrap();
        let walk = Walk { rows: 0..rows, from: None, to: 0 };
        Case {
            name: format!("delta rule, {}", said(rows)),
            bytes: 0,
            macs: 0,
            values: values(rows),
            work: Box::new(move || {
                let walk = std::slice::from_ref(&walk);
                cpu.delta(&x, &gates, &mut state, walk, &mut out);
            }),
        }
    };
    table.measure(vec![case(1), case(CHUNK)]);
}

fn rowwise(table: &Table, rows: usize) {
    /// Values of a row, and of the hidden rows between gate and down.
    const ROW: usize = 576;
    const HIDDEN: usize = 1536;
    let cpu = &table.cpu;
    let stored: Vec<u8> = values(ROW).iter().flat_map(|x| x.to_le_bytes()).collect();
    let w = Matrix { format: Format::F32, rows: 1, cols: ROW, bytes: &stored };
    let w = cpu.vector(&w).unwrap();
    let (w, x) = (&w, &upload(cpu, rows, ROW));
    let positions: Vec<u32> = (0..rows as u32).collect();
    let rope = RopeRows::new(1e5, HEADS.dim, &positions);
    let (gate, up) = (upload(cpu, rows, HIDDEN), upload(cpu, rows, HIDDEN));
    let mut outs: [Rows; 3] = std::array::from_fn(|_| upload(cpu, rows, ROW));
    let mut hidden = cpu.rows(rows, HIDDEN).unwrap();
    let [normed, turned, added] = &mut outs;
    let works: [(&str, usize, Work<'_>); 4] = [
        ("norm", ROW, Box::new(|| cpu.rms_norm(x, w, 1e-5, rows, normed))),
        (
            "rope",
            ROW,
            Box::new(|| cpu.rope(turned, HEADS.query, HEADS.dim, Pairing::Adjacent, &rope)),
        ),
        ("silu and product", HIDDEN, Box::new(|| cpu.silu_mul(&gate, &up, rows, &mut hidden))),
        ("add", ROW, Box::new(|| cpu.add(added, x, rows))),
    ];
    let named = works.map(|(op, width, work)| Case {
        name: format!("{op}, {}", said(rows)),
        bytes: 0,
        macs: 0,
        values: rows * width,
        work,
    });
    table.measure(named.into());
}
