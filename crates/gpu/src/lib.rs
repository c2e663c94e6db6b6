//! The backend over wgpu: the ops of [`backend::Backend`] on a GPU of Vulkan or Metal, byte-equal
//! to [`arith`] for any row count.
//!
//! Drivers are loaded when adapters are listed, so the binary builds and runs where there is none.
//! Kernels are `kernels/*.wgsl`. What WGSL leaves to devices (whether an fma is fused, how a
//! quotient is rounded) is made exact by one of several forms, which a probe chooses at the start
//! ([`Forms`], [`Verdict`]); a device that no form helps is not taken. Ops are recorded, and
//! submitted where the host reads. What a driver refuses after that ends the process by name.

mod attention;
mod device;
mod error;
mod forms;
mod gdn;
mod matrix;
mod planted;
mod probe;
mod project;
mod rows;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arith::base::Arith;
use arith::format::Matrix;
use arith::linear::Groups;
use backend::{Backend, BackendError, Gdn, Heads, KvDtype, Pairing, RopeRows, RowMap, Walk};

pub use attention::{HEAD_DIM_MAX, Kv};
pub use device::{Adapter, Tally, adapters};
pub use error::GpuError;
pub use forms::{Fma, Forms, Unit};
pub use gdn::{KEY_DIM_MAX, State, TAPS_MAX};
pub use matrix::Linear;
pub use planted::Defect;
pub use probe::Verdict;
pub use rows::{Rows, Vector};

use device::{Buffer, Device};
use rows::Norm;

/// A GPU.
pub struct Gpu {
    device: Arc<Device>,
    verdict: Verdict,
    work: Mutex<Work>,
}

/// What ops need besides their operands; grown at first use, then kept.
struct Work {
    scratch: project::Scratch,
    ids: Buffer,
    rope: [Buffer; 2],
    rope_rows: RopeRows,
    map: attention::Map,
    parts: Buffer,
    walks: gdn::Walks,
}

impl Gpu {
    /// Opens adapter `ordinal` of [`adapters`] and probes what it computes.
    ///
    /// # Errors
    /// No such adapter, one that lacks what the kernels need, one that does not compute arith 1.
    pub fn open(ordinal: u32) -> Result<Self, GpuError> {
        Self::probed(ordinal, None)?.only_one()
    }

    /// As [`Gpu::open`]; a device that computes a function of its own is taken too.
    ///
    /// # Errors
    /// As [`Gpu::open`] otherwise.
    pub fn open_own(ordinal: u32) -> Result<Self, GpuError> {
        Self::probed(ordinal, None)
    }

    /// As [`Gpu::open_own`], with a fault planted in the kernels.
    ///
    /// # Errors
    /// As [`Gpu::open_own`].
    #[doc(hidden)]
    pub fn with_defect(ordinal: u32, defect: Defect) -> Result<Self, GpuError> {
        Self::probed(ordinal, Some(defect))
    }

    /// As [`Gpu::open`], in forms of the caller's choice.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    #[doc(hidden)]
    pub fn in_forms(ordinal: u32, forms: Forms) -> Result<Self, GpuError> {
        let mut device = Arc::new(Device::open(ordinal, None)?);
        let verdict = probe::holds(&mut device, forms)?;
        Self::of(device, verdict)?.only_one()
    }

    fn probed(ordinal: u32, defect: Option<Defect>) -> Result<Self, GpuError> {
        let mut device = Arc::new(Device::open(ordinal, defect)?);
        let verdict = probe::probe(&mut device)?;
        Self::of(device, verdict)
    }

    fn only_one(self) -> Result<Self, GpuError> {
        match &self.verdict {
            Verdict::One(_) => Ok(self),
            Verdict::Own { rule, case } => Err(GpuError::Own {
                ordinal: self.device.ordinal(),
                name: self.device.adapter().name.clone(),
                rule,
                case: case.clone(),
            }),
        }
    }

    fn of(device: Arc<Device>, verdict: Verdict) -> Result<Self, GpuError> {
        let small = |what: &str| Buffer::new(&device, what, 4096);
        let work = (|| {
            Ok::<_, BackendError>(Work {
                scratch: project::Scratch::default(),
                ids: small("token ids")?,
                rope: [small("cosines")?, small("sines")?],
                rope_rows: RopeRows::default(),
                map: attention::Map::new(&device)?,
                parts: small("parts of attention")?,
                walks: gdn::Walks::new(&device)?,
            })
        })();
        let ordinal = device.ordinal();
        let work = work.map_err(|error| GpuError::Memory { ordinal, words: error.to_string() })?;
        Ok(Self { device, verdict, work: Mutex::new(work) })
    }

    /// What the device computes, and how.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// The adapter.
    pub fn adapter(&self) -> &Adapter {
        self.device.adapter()
    }

    /// What was launched, submitted and waited for since the device was opened.
    pub fn tally(&self) -> Tally {
        self.device.tally()
    }

    /// Waits until all ops are done.
    pub fn wait(&self) {
        self.device.wait();
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scratch that the device can't hold any more: the sizes were agreed before, so this rank ends.
fn held<T>(made: Result<T, BackendError>) -> T {
    made.unwrap_or_else(|error| panic!("{error}"))
}

/// Puts words into a buffer that is grown to hold them.
fn put(device: &Arc<Device>, buffer: &mut Buffer, what: &str, words: &[u32]) {
    if buffer.bytes() < 4 * words.len() {
        let bytes = (4 * words.len()).next_power_of_two();
        *buffer = held(Buffer::new(device, what, bytes as u128));
    }
    buffer.upload(0, words);
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

impl Backend for Gpu {
    type Rows = Rows;
    type Linear = Linear;
    type Vector = Vector;
    type Kv = Kv;
    type State = State;

    fn name(&self) -> &'static str {
        "gpu"
    }

    fn arith(&self) -> Arith {
        Arith::One
    }

    fn device(&self) -> String {
        let Adapter { ordinal, name, api, .. } = self.device.adapter();
        let how = match &self.verdict {
            Verdict::One(forms) => forms.to_string(),
            Verdict::Own { rule, .. } => format!("arith: own, by rule `{rule}`"),
        };
        format!("{name}, gpu:{ordinal} over {api}, {how}")
    }

    fn rows(&self, rows_max: usize, width: usize) -> Result<Rows, BackendError> {
        Rows::new(&self.device, rows_max, width)
    }

    fn upload(&self, data: &[f32], to: &mut Rows) {
        assert!(data.len().is_multiple_of(to.width.max(1)), "whole rows of {to:?}");
        to.holds(data.len() / to.width.max(1));
        to.buffer.upload(0, &bits(data));
    }

    fn download(&self, from: &Rows, first: usize, to: &mut [f32]) {
        from.buffer.download(first * from.width * 4, to);
    }

    fn linear(&self, matrix: &Matrix<'_>) -> Result<Linear, BackendError> {
        Linear::new(&self.device, matrix, Groups::of(matrix.cols))
    }

    fn has_shares(&self) -> bool {
        true
    }

    fn linear_share(&self, matrix: &Matrix<'_>, groups: Groups) -> Result<Linear, BackendError> {
        Linear::new(&self.device, matrix, groups)
    }

    fn vector(&self, matrix: &Matrix<'_>) -> Result<Vector, BackendError> {
        matrix::vector(&self.device, matrix)
    }

    fn kv(&self, dtype: KvDtype, pages: usize, heads: Heads) -> Result<Kv, BackendError> {
        Kv::new(&self.device, dtype, pages, heads)
    }

    fn state(&self, shape: Gdn, places: usize) -> Result<State, BackendError> {
        State::new(&self.device, shape, places)
    }

    fn copy_rows(&self, from: &Rows, first: usize, rows: usize, to: &mut Rows, at: usize) {
        let width = from.width * 4;
        assert_eq!(from.width, to.width, "{from:?} to {to:?}");
        to.buffer.copy_from(&from.buffer, first * width, at * width, rows * width);
    }

    fn copy_page(&self, kv: &mut Kv, from: u32, to: u32) {
        kv.copy_page(from, to);
    }

    fn copy_state(&self, from: &State, place: usize, to: &mut State, to_place: usize) {
        to.copy_from(from, place, to_place);
    }

    fn download_state(&self, state: &State, place: usize, s: &mut [f32], tail: &mut [f32]) {
        state.download(place, s, tail);
    }

    fn embed(&self, table: &Linear, ids: &[u32], out: &mut Rows) {
        let mut work = self.work();
        for id in ids {
            assert!((*id as usize) < table.rows, "token {id} of {}", table.rows);
        }
        if !ids.is_empty() {
            put(&self.device, &mut work.ids, "token ids", ids);
            matrix::embed(&self.device, table, &work.ids, ids.len(), out);
        }
    }

    fn rms_norm(&self, x: &Rows, w: &Vector, eps: f32, rows: usize, out: &mut Rows) {
        rows::norm(&self.device, &Norm::Rows(x), w, eps, rows, out);
    }

    fn project(&self, x: &Rows, rows: usize, weights: &[&Linear], outs: &mut [&mut Rows]) {
        let scratch = &mut self.work().scratch;
        held(project::project(&self.device, scratch, x, rows, weights, outs));
    }

    fn rope(&self, x: &mut Rows, heads: usize, dim: usize, pairing: Pairing, rope: &RopeRows) {
        let work = &mut *self.work();
        if *rope != work.rope_rows {
            let [cosines, sines] = &mut work.rope;
            put(&self.device, cosines, "cosines", &bits(&rope.cos));
            put(&self.device, sines, "sines", &bits(&rope.sin));
            work.rope_rows.clone_from(rope);
        }
        rows::rope(&self.device, x, heads, dim, pairing, rope, &work.rope);
    }

    fn kv_write(&self, kv: &mut Kv, k: &Rows, v: &Rows, map: &RowMap) {
        let work = &mut *self.work();
        held(work.map.take(&self.device, map, kv.pages()));
        attention::kv_write(&self.device, kv, k, v, &work.map);
    }

    fn attention(&self, q: &Rows, kv: &Kv, map: &RowMap, out: &mut Rows) {
        let work = &mut *self.work();
        held(work.map.take(&self.device, map, kv.pages()));
        let parts = &mut work.parts;
        held(attention::attention(&self.device, q, kv, &work.map, parts, out));
    }

    fn head_norm(&self, x: &mut Rows, w: &Vector, eps: f32, rows: usize) {
        rows::norm(&self.device, &Norm::Heads, w, eps, rows, x);
    }

    fn gate(&self, x: &mut Rows, gate: &Rows, rows: usize) {
        rows::pairwise(&self.device, "gate", gate, None, rows, x);
    }

    fn convolve(&self, x: &Rows, taps: &Vector, state: &mut State, walks: &[Walk], out: &mut Rows) {
        let work = &mut *self.work();
        held(work.walks.take(&self.device, walks, state.places()));
        gdn::convolve(&self.device, x, taps, state, &work.walks, out);
    }

    fn gates(
        &self,
        b: &Rows,
        a: &Rows,
        dt_bias: &Vector,
        amplitude: &Vector,
        rows: usize,
        out: &mut Rows,
    ) {
        rows::gates(&self.device, [b, a], dt_bias, amplitude, rows, out);
    }

    fn delta(&self, x: &Rows, gates: &Rows, state: &mut State, walks: &[Walk], out: &mut Rows) {
        let work = &mut *self.work();
        held(work.walks.take(&self.device, walks, state.places()));
        gdn::delta(&self.device, x, gates, state, &work.walks, out);
    }

    fn gated_norm(&self, x: &mut Rows, w: &Vector, z: &Rows, eps: f32, rows: usize) {
        rows::norm(&self.device, &Norm::Gated(z), w, eps, rows, x);
    }

    fn silu_mul(&self, gate: &Rows, up: &Rows, rows: usize, out: &mut Rows) {
        rows::pairwise(&self.device, "silu_mul", gate, Some(up), rows, out);
    }

    fn add(&self, x: &mut Rows, y: &Rows, rows: usize) {
        rows::pairwise(&self.device, "add", y, None, rows, x);
    }
}
