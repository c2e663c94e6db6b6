//! The backend over wgpu: the ops of [`backend::Backend`] on a GPU of Vulkan or Metal, byte-equal
//! to [`arith`] for any row count.
//!
//! Drivers are loaded when adapters are listed, so the binary builds and runs where there is none.
//! Kernels are `kernels/*.wgsl`. What WGSL leaves to devices (whether an fma is fused, how a
//! quotient is rounded) is made exact by one of several forms, which a probe chooses at the start
//! ([`Forms`], [`Verdict`]); a device that no form helps is taken where its own function is
//! allowed. Ops are recorded, and submitted where the host reads. What a driver refuses after that
//! is kept for [`Backend::failure`].

mod adapter;
mod attention;
mod buffer;
mod built;
mod clock;
mod device;
mod error;
mod forms;
mod gdn;
mod matrix;
mod metal;
mod planted;
mod probe;
mod project;
mod rows;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arith::base::Arith;
use arith::format::Matrix;
use arith::linear::Groups;
use backend::{Backend, BackendError, Gdn, Heads, KvDtype, Pairing, RopeRows, RowMap, Walk};

pub use adapter::{Adapter, adapters};
pub use attention::{HEAD_DIM_MAX, Kv};
pub use device::Tally;
pub use error::GpuError;
pub use forms::{Fma, Forms, Unit};
pub use gdn::{KEY_DIM_MAX, State, TAPS_MAX};
pub use matrix::Linear;
pub use metal::Msl;
pub use planted::Defect;
pub use probe::Verdict;
pub use rows::{Rows, Vector};

use buffer::Buffer;
use device::Device;
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
    parts: attention::Parts,
    walks: gdn::Walks,
}

impl Gpu {
    /// Opens adapter `ordinal` of [`adapters`] and probes what it computes. `cache` is a folder of
    /// pipelines, which drivers that give theirs build once.
    ///
    /// # Errors
    /// No such adapter, one that lacks what the kernels need, one that does not compute arith 1.
    pub fn open(ordinal: u32, cache: Option<&Path>) -> Result<Self, GpuError> {
        Self::open_own(ordinal, cache)?.only_one()
    }

    /// As [`Gpu::open`]; a device that computes a function of its own is taken too.
    ///
    /// # Errors
    /// As [`Gpu::open`] otherwise.
    pub fn open_own(ordinal: u32, cache: Option<&Path>) -> Result<Self, GpuError> {
        Self::probed(Device::open(ordinal, None, cache)?)
    }

    /// As [`Gpu::open`], or [`Gpu::open_own`] for `own`, with a fault planted in the kernels.
    ///
    /// # Errors
    /// As theirs.
    #[doc(hidden)]
    pub fn with_defect(ordinal: u32, defect: Defect, own: bool) -> Result<Self, GpuError> {
        let gpu = Self::probed(Device::open(ordinal, Some(defect), None)?)?;
        if own { Ok(gpu) } else { gpu.only_one() }
    }

    /// As [`Gpu::open`], in forms of the caller's choice.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    #[doc(hidden)]
    pub fn in_forms(ordinal: u32, forms: Forms) -> Result<Self, GpuError> {
        let mut device = Arc::new(Device::open(ordinal, None, None)?);
        let verdict = probe::holds(&mut device, forms)?;
        Self::of(device, verdict)?.only_one()
    }

    /// Has attention cut keys to chunks, not tiles, where tiles would leave more than `bytes`.
    #[doc(hidden)]
    pub fn limit_parts(&self, bytes: usize) {
        self.work().parts.limit(bytes);
    }

    fn probed(device: Device) -> Result<Self, GpuError> {
        let mut device = Arc::new(device);
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
                parts: attention::Parts::new(&device)?,
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

    /// Seconds on the device that what `work` asks for takes.
    #[doc(hidden)]
    pub fn timed(&self, work: impl FnOnce()) -> f64 {
        self.device.timed(work)
    }

    /// Launches and seconds of each kernel that `work` asks for, each waited for by itself.
    #[doc(hidden)]
    pub fn profiled(&self, work: impl FnOnce()) -> std::collections::BTreeMap<String, (u64, f64)> {
        self.device.profiled(work)
    }

    /// Gives the adapter back before its time, as a driver that resets does.
    #[doc(hidden)]
    pub fn fail(&self) {
        self.device.destroy();
    }

    /// Scratch that the device can't hold any more, or a device that has failed: the sizes were
    /// agreed before, so nothing after it is right.
    fn held(&self, made: Result<(), BackendError>) -> bool {
        if let Err(error) = &made {
            self.device.fail(error.to_string());
        }
        made.is_ok()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts words into a buffer that is grown to hold them.
fn put(
    device: &Arc<Device>,
    buffer: &mut Buffer,
    what: &str,
    words: &[u32],
) -> Result<(), BackendError> {
    if buffer.bytes() < 4 * words.len() {
        let bytes = (4 * words.len()).next_power_of_two();
        *buffer = Buffer::new(device, what, bytes as u128)?;
    }
    buffer.upload(0, words);
    Ok(())
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
    type Berths = backend::berths::None;

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

    fn failure(&self) -> Option<BackendError> {
        let words = self.device.failure()?.to_owned();
        Some(BackendError::Failed { device: self.device(), words })
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
        let taken = put(&self.device, &mut work.ids, "token ids", ids);
        if !ids.is_empty() && self.held(taken) {
            matrix::embed(&self.device, table, &work.ids, ids.len(), out);
        }
    }

    fn rms_norm(&self, x: &Rows, w: &Vector, eps: f32, rows: usize, out: &mut Rows) {
        rows::norm(&self.device, &Norm::Rows(x), w, eps, rows, out);
    }

    fn project(&self, x: &Rows, rows: usize, weights: &[&Linear], outs: &mut [&mut Rows]) {
        let scratch = &mut self.work().scratch;
        self.held(project::project(&self.device, scratch, x, rows, weights, outs));
    }

    fn rope(&self, x: &mut Rows, heads: usize, dim: usize, pairing: Pairing, rope: &RopeRows) {
        let work = &mut *self.work();
        if *rope != work.rope_rows {
            let [cosines, sines] = &mut work.rope;
            self.held(put(&self.device, cosines, "cosines", &bits(&rope.cos)));
            self.held(put(&self.device, sines, "sines", &bits(&rope.sin)));
            work.rope_rows.clone_from(rope);
        }
        rows::rope(&self.device, x, heads, dim, pairing, rope, &work.rope);
    }

    fn kv_write(&self, kv: &mut Kv, k: &Rows, v: &Rows, map: &RowMap) {
        let work = &mut *self.work();
        if self.held(work.map.take(&self.device, map, kv.pages())) {
            attention::kv_write(&self.device, kv, k, v, &work.map);
        }
    }

    fn attention(&self, q: &Rows, kv: &Kv, map: &RowMap, out: &mut Rows) {
        let work = &mut *self.work();
        if self.held(work.map.take(&self.device, map, kv.pages())) {
            let parts = &mut work.parts;
            self.held(attention::attention(&self.device, q, kv, &work.map, parts, out));
        }
    }

    fn head_norm(&self, x: &mut Rows, w: &Vector, eps: f32, rows: usize) {
        rows::norm(&self.device, &Norm::Heads, w, eps, rows, x);
    }

    fn gate(&self, x: &mut Rows, gate: &Rows, rows: usize) {
        rows::pairwise(&self.device, "gate", gate, None, rows, x);
    }

    fn convolve(&self, x: &Rows, taps: &Vector, state: &mut State, walks: &[Walk], out: &mut Rows) {
        let work = &mut *self.work();
        if self.held(work.walks.take(&self.device, walks, state.places())) {
            gdn::convolve(&self.device, x, taps, state, &work.walks, out);
        }
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
        if self.held(work.walks.take(&self.device, walks, state.places())) {
            gdn::delta(&self.device, x, gates, state, &work.walks, out);
        }
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
