//! The CUDA backend: the ops of [`backend::Backend`] on a card of compute capability 8.0 or newer,
//! byte-equal to [`arith`] for any row count.
//!
//! Driver and run-time compiler are loaded when a card is opened, so the binary builds and runs
//! where there is no CUDA. Kernels are `kernels/*.cu`, without headers, compiled for the card at
//! hand and kept as cubins ([`compile`]). Ops are launched on one stream and waited for where the
//! host reads. A call of a card that fails is named by [`Backend::failure`]: nothing on that card
//! works after it.

#[cfg(not(all(unix, target_endian = "little")))]
compile_error!("the CUDA backend wants a little-endian Unix");

mod attention;
mod berths;
mod best;
mod carried;
mod communicator;
pub mod compile;
mod courier;
pub mod defects;
mod device;
pub mod end;
mod error;
mod fuse;
mod gdn;
mod library;
mod map;
mod matrix;
mod meet;
pub mod nccl;
pub mod peers;
mod pinned;
mod project;
mod project_a8;
mod replay;
mod rows;
mod twice;
pub mod units;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arith::base::Arith;
use arith::format::{Format, Matrix};
use arith::linear::Groups;
use backend::{
    Backend, BackendError, Gdn, Heads, KvDtype, Offer, Over, Pairing, RopeRows, RowMap, Together,
    Walk,
};

pub use attention::{HEAD_DIM_MAX, Kv};
pub use berths::Berths;
pub use device::Graph;
pub use error::CudaError;
pub use gdn::{KEY_DIM_MAX, State, TAPS_MAX};
pub use matrix::Linear;
pub use rows::{Rows, Vector};

use device::{Buffer, Device};

/// A card.
pub struct Cuda {
    device: Arc<Device>,
    ordinal: u32,
    arith: Arith,
    work: Mutex<Work>,
    /// Where the members of a group meet, while they do.
    meeting: Mutex<Option<meet::Meeting>>,
    /// How rows go to neighbours in a ring and come from them, where not by memory.
    mail: OnceLock<Arc<courier::Mail>>,
}

/// What ops need besides their operands; grown at first use, then kept.
struct Work {
    scratch: project::Scratch,
    ids: Buffer,
    rope: twice::Twice<RopeRows>,
    map: map::Map,
    parts: Option<Buffer>,
    best: Buffer,
    walks: gdn::Walks,
}

impl Cuda {
    /// Opens card `ordinal`. Kernels come from `cache`, or are compiled and kept there.
    ///
    /// # Errors
    /// No driver, no such card or an older one; kernels that neither are in the cache nor can be
    /// compiled; too little memory.
    pub fn open(ordinal: u32, cache: Option<&Path>) -> Result<Self, CudaError> {
        Self::with(ordinal, false, |arch| compile::cubins(cache, arch))
    }

    /// As [`Cuda::open`], with a defect in one kernel.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    #[doc(hidden)]
    pub fn with_defect(
        ordinal: u32,
        cache: Option<&Path>,
        defect: &defects::Defect,
    ) -> Result<Self, CudaError> {
        Self::with(ordinal, false, |arch| compile::planted(cache, arch, defect))
    }

    /// As [`Cuda::open`], with what cards of every architecture have, to test that too.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    #[doc(hidden)]
    pub fn plain(ordinal: u32, cache: Option<&Path>) -> Result<Self, CudaError> {
        Self::with(ordinal, true, |arch| compile::cubins(cache, arch))
    }

    fn with(
        ordinal: u32,
        plain: bool,
        cubins: impl FnOnce(&str) -> Result<Vec<Vec<u8>>, CudaError>,
    ) -> Result<Self, CudaError> {
        let device = Arc::new(Device::open(ordinal, plain, cubins)?);
        let small = |what: &str| Buffer::new(&device, what, 4096);
        let work = (|| {
            Ok::<_, BackendError>(Work {
                scratch: project::Scratch::default(),
                ids: small("token ids")?,
                rope: twice::Twice::new(&device, "angles")?,
                map: map::Map::new(&device)?,
                parts: None,
                best: small("candidates")?,
                walks: gdn::Walks::new(&device)?,
            })
        })();
        let work = work.map_err(|error| CudaError::Memory { words: error.to_string() })?;
        let (meeting, mail) = (Mutex::default(), OnceLock::new());
        Ok(Self { device, ordinal, arith: Arith::One, work: Mutex::new(work), meeting, mail })
    }

    /// The same card, computing `arith`.
    pub fn in_arith(self, arith: Arith) -> Self {
        Self { arith, ..self }
    }

    /// As [`Cuda::open`], with rows in the host's memory, as where that is the card's too.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    #[doc(hidden)]
    pub fn unified(ordinal: u32, cache: Option<&Path>) -> Result<Self, CudaError> {
        let cuda = Self::open(ordinal, cache)?;
        cuda.device.set_unified();
        Ok(cuda)
    }

    /// Bytes of the card that may still be taken.
    pub fn free_bytes(&self) -> u64 {
        self.device.free_bytes()
    }

    /// As [`Cuda::open`], with the kernels of a folder, for work on them.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    #[doc(hidden)]
    pub fn from_folder(ordinal: u32, folder: &Path) -> Result<Self, CudaError> {
        Self::with(ordinal, false, |arch| compile::from_folder(folder, arch))
    }

    /// A matrix without meaning, for measurements.
    ///
    /// # Errors
    /// Too little memory.
    pub fn noise(&self, format: Format, rows: usize, cols: usize) -> Result<Linear, BackendError> {
        Linear::noise(&self.device, format, (rows, cols), Groups::of(cols))
    }

    /// The same of a share of K, of `cols` values.
    ///
    /// # Errors
    /// Too little memory.
    pub fn noise_share(
        &self,
        format: Format,
        groups: Groups,
        rows: usize,
        cols: usize,
    ) -> Result<Linear, BackendError> {
        Linear::noise(&self.device, format, (rows, cols), groups)
    }

    /// Has the card write where no memory is, to test what becomes of it.
    #[doc(hidden)]
    pub fn fail(&self) {
        matrix::write_nowhere(&self.device);
    }

    /// Records what `work` launches, to be launched again as one. `work` must have run before with
    /// the same operands, so that nothing is allocated or uploaded in it.
    pub fn record(&self, work: impl FnOnce()) -> Graph {
        self.device.record(work)
    }

    /// Whether launches that come again run as graphs; they do unless told otherwise.
    #[doc(hidden)]
    pub fn set_replays(&self, on: bool) {
        self.device.set_replays(on);
    }

    /// Plants a fault: launches come again that have other operands.
    #[doc(hidden)]
    pub fn plant_blind_replays(&self) {
        self.device.plant_blind_replays();
    }

    /// Graphs launched for launches that came again.
    pub fn replayed(&self) -> u64 {
        self.device.replayed()
    }

    /// Waits until all ops are done.
    pub fn wait(&self) {
        self.device.wait();
    }

    /// Seconds on the card between the start and the end of what `work` launches.
    pub fn timed(&self, work: impl FnOnce()) -> f64 {
        self.device.timed(work)
    }

    fn meeting(&self) -> MutexGuard<'_, Option<meet::Meeting>> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_meeting(&self, meeting: Option<meet::Meeting>) {
        *self.meeting() = meeting;
    }

    pub(crate) fn end_meeting(&self) {
        self.meeting().iter_mut().for_each(|meeting| meeting.end());
    }

    /// What went wrong in the meeting, if there is one.
    pub(crate) fn meeting_trouble(&self) -> Option<String> {
        self.meeting().as_ref().and_then(|meeting| meeting.trouble().map(str::to_owned))
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scratch that the card can't hold any more: the sizes were agreed before, so this rank ends.
fn held<T>(made: Result<T, BackendError>) -> T {
    made.unwrap_or_else(|error| panic!("{error}"))
}

/// Puts words at the start of a buffer that is grown to hold them.
fn put(device: &Arc<Device>, buffer: &mut Buffer, what: &str, bytes: usize) {
    if buffer.bytes() < bytes {
        *buffer = held(Buffer::new(device, what, bytes.next_power_of_two() as u128));
    }
}

impl Backend for Cuda {
    type Rows = Rows;
    type Linear = Linear;
    type Vector = Vector;
    type Kv = Kv;
    type State = State;
    type Berths = Berths;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn arith(&self) -> Arith {
        self.arith
    }

    fn device(&self) -> String {
        format!("{}, cuda:{}", self.device.name(), self.ordinal)
    }

    // A line through what 512, 1,024 and 2,048 rows take: docs/performance/cuda.md.
    fn chunk_cost_rows(&self) -> u32 {
        128
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
        to.buffer.upload(0, data);
    }

    fn download(&self, from: &Rows, first: usize, to: &mut [f32]) {
        from.buffer.download(first * from.width * 4, to);
    }

    fn candidates(&self, from: (&Rows, usize), first: u32, best: &[u32], to: &mut Vec<f32>) {
        best::candidates(&self.device, &mut self.work().best, from, (first, best), to);
    }

    fn linear(&self, matrix: &Matrix<'_>) -> Result<Linear, BackendError> {
        self.linear_share(matrix, Groups::of(matrix.cols))
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

    fn gives(&self, rows: usize, together: Together<'_>) -> bool {
        meet::fits(rows, together)
    }

    fn give(&self, lane: usize, own: &Rows, rows: usize, together: Together<'_>) {
        let mut meeting = self.meeting();
        meeting.as_mut().expect("members have met").give(lane, own, rows, together);
    }

    fn take(&self, lane: usize, to: &mut Rows, rows: usize, together: Together<'_>) {
        let mut meeting = self.meeting();
        meeting.as_mut().expect("members have met").take(lane, to, rows, together);
    }

    fn berths(
        &self,
        count: usize,
        rows: usize,
        width: usize,
        over: Over,
    ) -> Result<(Berths, Offer), String> {
        Berths::new(self, (count, rows, width), over)
    }

    fn reach(
        &self,
        offer: &Offer,
        rows: usize,
        width: usize,
        over: Over,
    ) -> Result<(Berths, u32), String> {
        Berths::find(self, offer, (rows, width), over)
    }

    fn put(
        &self,
        from: &Rows,
        rows: (usize, usize),
        to: &Berths,
        at: (u32, usize),
    ) -> Result<(), String> {
        to.put(from, rows, at)
    }

    fn send(&self, to: &Berths, berth: u32, values: usize) -> Result<(), String> {
        to.send(berth, values)
    }

    fn come(&self, own: &Berths, berth: u32, values: usize) -> Result<(), String> {
        own.come(berth, values)
    }

    fn part(&self, berths: &Berths) -> bool {
        berths.part()
    }

    fn fetch(&self, from: &Berths, berth: u32, rows: (usize, usize), to: &mut Rows, at: usize) {
        from.fetch(berth, rows, to, at);
    }

    fn copy_rows(&self, from: &Rows, first: usize, rows: usize, to: &mut Rows, at: usize) {
        rows::copy(from, first, rows, to, at);
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
        matrix::embed(&self.device, &mut self.work().ids, table, ids, out);
    }

    fn rms_norm(&self, x: &Rows, w: &Vector, eps: f32, rows: usize, out: &mut Rows) {
        rows::rms_norm(&self.device, x, w, eps, rows, out);
    }

    fn project(&self, x: &Rows, rows: usize, weights: &[&Linear], outs: &mut [&mut Rows]) {
        let scratch = &mut self.work().scratch;
        held(match self.arith {
            Arith::One => project::project(&self.device, scratch, x, rows, weights, outs),
            Arith::Two => project_a8::project(&self.device, scratch, x, rows, weights, outs),
        });
    }

    fn rope(&self, x: &mut Rows, heads: usize, dim: usize, pairing: Pairing, rope: &RopeRows) {
        let work = &mut *self.work();
        held(work.rope.take(rope, 8 * rope.cos.len(), |angles| {
            angles.upload(0, &rope.cos);
            angles.upload(angles.bytes() / 2, &rope.sin);
        }));
        rows::rope(&self.device, x, heads, dim, pairing, rope, work.rope.buffer());
    }

    fn kv_write(&self, kv: &mut Kv, k: &Rows, v: &Rows, map: &RowMap) {
        let work = &mut *self.work();
        held(work.map.take(map, kv.pages()));
        attention::kv_write(&self.device, kv, k, v, &work.map);
    }

    fn attention(&self, q: &Rows, kv: &Kv, map: &RowMap, out: &mut Rows) {
        let work = &mut *self.work();
        held(work.map.take(map, kv.pages()));
        let parts = &mut work.parts;
        held(attention::attention(&self.device, q, kv, &work.map, parts, out));
    }

    fn head_norm(&self, x: &mut Rows, w: &Vector, eps: f32, rows: usize) {
        rows::head_norm(&self.device, x, w, None, eps, rows);
    }

    fn gate(&self, x: &mut Rows, gate: &Rows, rows: usize) {
        x.holds(rows);
        rows::each(&self.device, "gate", x.at(), gate, rows, (x.at(), x.width));
    }

    fn convolve(&self, x: &Rows, taps: &Vector, state: &mut State, walks: &[Walk], out: &mut Rows) {
        let work = &mut *self.work();
        held(work.walks.take(walks, state.places()));
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
        held(work.walks.take(walks, state.places()));
        gdn::delta(&self.device, x, gates, state, &work.walks, out);
    }

    fn gated_norm(&self, x: &mut Rows, w: &Vector, z: &Rows, eps: f32, rows: usize) {
        rows::head_norm(&self.device, x, w, Some(z), eps, rows);
    }

    fn silu_mul(&self, gate: &Rows, up: &Rows, rows: usize, out: &mut Rows) {
        gate.holds(rows);
        out.holds(rows);
        rows::each(&self.device, "silu_mul", gate.at(), up, rows, (out.at(), out.width));
    }

    fn add(&self, x: &mut Rows, y: &Rows, rows: usize) {
        x.holds(rows);
        rows::each(&self.device, "add", x.at(), y, rows, (x.at(), x.width));
    }
}
