//! An adapter, opened: the launches that wait to be submitted, and what it said.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use wgpu::{BufferUsages, Features};

use crate::adapter::{Adapter, described, found, now};
use crate::buffer::Buffer;
use crate::built::{Built, Kernel};
use crate::clock::Clock;
use crate::error::GpuError;
use crate::forms::Forms;
use crate::planted::Defect;

/// Launches of a command buffer: more than a stage's round has.
const LAUNCHES_MAX: usize = 4096;
/// Longest wait for what was submitted; a device that takes longer is lost.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Workgroups of a dimension of a launch, of those that are spread over two.
const ACROSS_MAX: usize = 32_768;

/// What waits to be submitted.
#[derive(Default)]
struct Recording {
    /// Before the encoder, since it ends first.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    launches: usize,
}

/// Launches of each kernel and their seconds.
pub(crate) type Profile = BTreeMap<String, (u64, f64)>;

/// Counts of what was done, for profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Launches of kernels.
    pub launches: u64,
    /// Command buffers.
    pub submits: u64,
    /// Waits of the host.
    pub waits: u64,
}

pub(crate) struct Device {
    ordinal: u32,
    adapter: Adapter,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    has_f64: bool,
    forms: Forms,
    built: Mutex<Built>,
    recording: Mutex<Recording>,
    /// Number of the command buffer at work, so that buffers know whether it uses them.
    epoch: AtomicU64,
    /// Buffers that were made.
    buffers: AtomicU64,
    readback: Mutex<Option<wgpu::Buffer>>,
    /// Times of the device, where it tells them.
    clock: Option<Clock>,
    failed: Arc<OnceLock<String>>,
    tally: [AtomicU64; 3],
    /// While there is one, launches are submitted and waited for one by one.
    profile: Mutex<Option<Profile>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub(crate) fn open(
        ordinal: u32,
        defect: Option<Defect>,
        cache: Option<&Path>,
    ) -> Result<Self, GpuError> {
        let mut all = found();
        let count = all.len();
        if ordinal as usize >= count {
            return Err(GpuError::NoAdapter { ordinal, found: count });
        }
        let adapter = all.swap_remove(ordinal as usize);
        let words = described(ordinal as usize, &adapter);
        let has = adapter.features();
        if !has.contains(Features::IMMEDIATES) {
            let feature = "immediates (push constants)".to_owned();
            return Err(GpuError::Unsupported { ordinal, name: words.name, feature });
        }
        let limits = adapter.limits();
        let wide = has & Features::SHADER_F64;
        let wanted = Features::PIPELINE_CACHE | Features::TIMESTAMP_QUERY | passed();
        let desc = wgpu::DeviceDescriptor {
            label: Some("baton"),
            required_features: Features::IMMEDIATES | wide | (has & wanted),
            required_limits: limits.clone(),
            experimental_features: experimental(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = now(adapter.request_device(&desc));
        let (device, queue) = opened.map_err(|error| GpuError::Open {
            ordinal,
            name: words.name.clone(),
            words: error.to_string(),
        })?;
        let failed = heard(&device);
        Ok(Self {
            ordinal,
            adapter: words,
            built: Mutex::new(Built::new(device.clone(), &adapter.get_info(), defect, cache)),
            clock: has.contains(Features::TIMESTAMP_QUERY).then(|| Clock::new(&device, &queue)),
            device,
            queue,
            limits,
            has_f64: !wide.is_empty(),
            forms: Forms::DEVICE,
            recording: Mutex::default(),
            epoch: AtomicU64::new(1),
            buffers: AtomicU64::new(0),
            readback: Mutex::default(),
            failed,
            tally: Default::default(),
            profile: Mutex::default(),
        })
    }

    pub(crate) fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub(crate) fn has_f64(&self) -> bool {
        self.has_f64
    }

    pub(crate) fn take_forms(&mut self, forms: Forms) {
        self.forms = forms;
    }

    /// Bytes of the largest buffer that a kernel takes.
    pub(crate) fn binding_bytes(&self) -> u64 {
        self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size)
    }

    /// Bytes of a workgroup's memory, and its most threads.
    pub(crate) fn workgroup(&self) -> (u32, u32) {
        let limits = &self.limits;
        let threads = limits.max_compute_invocations_per_workgroup;
        let threads = threads.min(limits.max_compute_workgroup_size_x);
        (limits.max_compute_workgroup_storage_size, threads)
    }

    pub(crate) fn tally(&self) -> Tally {
        let [launches, submits, waits] = [0, 1, 2].map(|i| self.tally[i].load(Ordering::Relaxed));
        Tally { launches, submits, waits }
    }

    fn count(&self, i: usize) {
        self.tally[i].fetch_add(1, Ordering::Relaxed);
    }

    /// What failed first: nothing that came from the device after it is right.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Keeps why the device can't be used any more; nothing is launched after that.
    pub(crate) fn fail(&self, words: String) {
        let _ = self.failed.set(words);
    }

    fn is_lost(&self) -> bool {
        self.failed.get().is_some()
    }

    /// Gives the adapter back before its time, as a driver that resets does.
    pub(crate) fn destroy(&self) {
        self.device.destroy();
    }

    /// What a driver says to the making of a kernel, if it refuses.
    pub(crate) fn try_kernel(&self, kernel: &Kernel) -> Result<(), GpuError> {
        let guard = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        locked(&self.built).pipeline(kernel, self.forms);
        match now(guard.pop()) {
            None => Ok(()),
            Some(error) => Err(GpuError::Kernel {
                ordinal: self.ordinal,
                kernel: format!("{kernel:?}"),
                words: error.to_string(),
            }),
        }
    }

    /// Workgroups along x and y for `groups` of them, and the number along x.
    pub(crate) fn spread(groups: usize) -> ([u32; 3], u32) {
        let across = groups.clamp(1, ACROSS_MAX);
        ([across as u32, groups.div_ceil(across) as u32, 1], across as u32)
    }

    /// Launches a kernel over buffers by their bindings. The first word of its parameters, which
    /// is 0, is put before `params`.
    pub(crate) fn launch(
        &self,
        kernel: &Kernel,
        buffers: &[(u32, &Buffer)],
        params: &[u32],
        grid: [u32; 3],
    ) {
        if grid.contains(&0) || self.is_lost() {
            return;
        }
        let (pipeline, group) = {
            let built = &mut *locked(&self.built);
            let pipeline = built.pipeline(kernel, self.forms);
            let bound: Vec<_> =
                buffers.iter().map(|(at, buffer)| (*at, buffer.number(), buffer.raw())).collect();
            let group = built.group(&pipeline, &bound);
            (pipeline.pipeline, group)
        };
        let mut bytes = vec![0; 4];
        bytes.extend(params.iter().flat_map(|word| word.to_le_bytes()));
        let recording = &mut *locked(&self.recording);
        let epoch = self.epoch.load(Ordering::Relaxed);
        for (_, buffer) in buffers {
            buffer.use_in(epoch);
        }
        if recording.pass.is_none() {
            let times = self.clock.as_ref().and_then(Clock::begin);
            let encoder = self.encoder(recording);
            let pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: times,
            });
            recording.pass = Some(pass.forget_lifetime());
        }
        if let Some(pass) = &mut recording.pass {
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.set_immediates(0, &bytes);
            pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
        }
        self.count(0);
        recording.launches += 1;
        if let Some(profile) = &mut *locked(&self.profile) {
            let started = Instant::now();
            self.submit(recording);
            self.poll();
            let (launches, seconds) = profile.entry(kernel.entry.to_owned()).or_default();
            *launches += 1;
            *seconds += started.elapsed().as_secs_f64();
        }
        if recording.launches >= LAUNCHES_MAX {
            self.submit(recording);
        }
    }

    fn encoder<'a>(&self, recording: &'a mut Recording) -> &'a mut wgpu::CommandEncoder {
        let new = || self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        recording.encoder.get_or_insert_with(new)
    }

    fn submit(&self, recording: &mut Recording) {
        recording.pass = None;
        if let Some(encoder) = recording.encoder.take() {
            self.queue.submit([encoder.finish()]);
            self.count(1);
        }
        recording.launches = 0;
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Submits what waits.
    pub(crate) fn flush(&self) {
        self.submit(&mut locked(&self.recording));
    }

    /// Submits what waits if a buffer is used by it: what is written goes before the command
    /// buffer that is being made.
    pub(crate) fn flush_before(&self, buffer: &Buffer) {
        if buffer.is_used_in(self.epoch.load(Ordering::Relaxed)) {
            self.flush();
        }
    }

    /// Copies bytes between two buffers.
    pub(crate) fn copy(&self, from: &Buffer, at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        if bytes == 0 || self.is_lost() {
            return;
        }
        let recording = &mut *locked(&self.recording);
        recording.pass = None;
        let epoch = self.epoch.load(Ordering::Relaxed);
        from.use_in(epoch);
        to.use_in(epoch);
        self.encoder(recording).copy_buffer_to_buffer(from.raw(), at, to.raw(), to_at, bytes);
    }

    /// A buffer's memory, and its number; `None` where there is none left.
    pub(crate) fn allocate(&self, what: &str, bytes: u64) -> Option<(wgpu::Buffer, u64)> {
        let guard = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let raw = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size: bytes,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let number = self.buffers.fetch_add(1, Ordering::Relaxed);
        now(guard.pop()).is_none().then_some((raw, number))
    }

    /// A buffer is gone.
    pub(crate) fn forget(&self) {
        locked(&self.built).forget();
    }

    /// Writes bytes to a buffer, before the next command buffer.
    pub(crate) fn write(&self, to: &wgpu::Buffer, at: u64, bytes: &[u8]) {
        if !self.is_lost() {
            self.queue.write_buffer(to, at, bytes);
        }
    }

    /// Waits until all that was asked for is done.
    pub(crate) fn wait(&self) {
        self.flush();
        self.poll();
    }

    fn poll(&self) {
        self.count(2);
        let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(WAIT_MAX) };
        if let Err(error) = self.device.poll(wait) {
            self.fail(format!("no answer: {error}"));
        }
    }

    /// Seconds that the passes of what `work` asks for take on the device; on the host's clock
    /// where the device has none.
    pub(crate) fn timed(&self, work: impl FnOnce()) -> f64 {
        self.wait();
        let started = Instant::now();
        let Some(clock) = &self.clock else {
            work();
            self.wait();
            return started.elapsed().as_secs_f64();
        };
        clock.start();
        work();
        self.flush();
        let seconds = clock.stop(&self.device, &self.queue);
        seconds.unwrap_or_else(|| started.elapsed().as_secs_f64())
    }

    /// Launches of each kernel that `work` asks for and their seconds, by the host's clock, each
    /// waited for by itself.
    pub(crate) fn profiled(&self, work: impl FnOnce()) -> Profile {
        self.wait();
        *locked(&self.profile) = Some(Profile::new());
        work();
        locked(&self.profile).take().unwrap_or_default()
    }

    /// Reads a buffer back after all that was asked for; leaves `to` alone where the device fails.
    pub(crate) fn read(&self, from: &Buffer, at: u64, to: &mut [u8]) {
        if self.is_lost() {
            return;
        }
        let bytes = to.len() as u64;
        let mut readback = locked(&self.readback);
        if readback.as_ref().is_none_or(|buffer| buffer.size() < bytes) {
            *readback = Some(self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("read back"),
                size: bytes.next_power_of_two().max(4096),
                usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }));
        }
        let Some(staging) = readback.as_ref() else { return };
        {
            let recording = &mut *locked(&self.recording);
            recording.pass = None;
            let encoder = self.encoder(recording);
            encoder.copy_buffer_to_buffer(from.raw(), at, staging, 0, bytes);
            self.submit(recording);
        }
        let slice = staging.slice(..bytes);
        slice.map_async(wgpu::MapMode::Read, |_| {});
        self.poll();
        match slice.get_mapped_range() {
            Ok(view) => to.copy_from_slice(&view),
            Err(error) => return self.fail(format!("reading back: {error}")),
        }
        staging.unmap();
        locked(&self.built).settle();
    }
}

/// What kernels that are passed through need.
fn passed() -> Features {
    if cfg!(target_vendor = "apple") { Features::PASSTHROUGH_SHADERS } else { Features::empty() }
}

#[cfg(target_vendor = "apple")]
fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: of those features one alone is asked for, passing kernels through.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

#[cfg(not(target_vendor = "apple"))]
fn experimental() -> wgpu::ExperimentalFeatures {
    wgpu::ExperimentalFeatures::disabled()
}

/// Where a device's first error is kept, by what tells of it.
fn heard(device: &wgpu::Device) -> Arc<OnceLock<String>> {
    let failed = Arc::new(OnceLock::new());
    let on_error = Arc::clone(&failed);
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        let _ = on_error.set(one_line(&error.to_string()));
    }));
    let on_loss = Arc::clone(&failed);
    device.set_device_lost_callback(move |reason, words| {
        let _ = on_loss.set(one_line(&format!("the device is lost ({reason:?}): {words}")));
    });
    failed
}

/// A driver's words in one line.
fn one_line(words: &str) -> String {
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}
