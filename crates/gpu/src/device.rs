//! An adapter, opened: buffers, kernels, and the launches that wait to be submitted.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use backend::BackendError;
use wgpu::{BufferUsages, Features};

use crate::error::GpuError;
use crate::forms::{Forms, Unit};
use crate::planted::Defect;

/// Launches of a command buffer: more than a stage's round has.
const LAUNCHES_MAX: usize = 4096;
/// Longest wait for what was submitted; a device that takes longer is lost.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Workgroups of a dimension of a launch, of those that are spread over two.
const ACROSS_MAX: usize = 32_768;

/// An adapter in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The number of `gpu:N`.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Vulkan or Metal.
    pub api: String,
    /// The driver's name and version.
    pub driver: String,
    /// Whether it is a CPU in disguise, or shares the CPU's memory.
    pub shares_memory: bool,
}

/// Adapters in the order of their numbers: cards first, CPUs last.
fn found() -> Vec<wgpu::Adapter> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL;
    let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
    desc.backends = backends;
    let instance = wgpu::Instance::new(desc);
    let mut all = now(instance.enumerate_adapters(backends));
    all.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    all
}

fn described(ordinal: usize, adapter: &wgpu::Adapter) -> Adapter {
    let info = adapter.get_info();
    let shared = matches!(
        info.device_type,
        wgpu::DeviceType::Cpu | wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Other
    );
    Adapter {
        ordinal: ordinal as u32,
        name: info.name,
        api: format!("{:?}", info.backend),
        driver: [info.driver, info.driver_info].join(" ").trim().to_owned(),
        shares_memory: shared,
    }
}

/// The adapters of this machine. None where there is no driver.
pub fn adapters() -> Vec<Adapter> {
    found().iter().enumerate().map(|(ordinal, adapter)| described(ordinal, adapter)).collect()
}

/// The value of a future of wgpu that is ready at once, as all are off the web.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("native futures of wgpu are ready at once"),
    }
}

/// A kernel: its unit, its entry point and its pipeline constants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) unit: Unit,
    pub(crate) entry: &'static str,
    pub(crate) constants: Vec<(&'static str, u32)>,
}

impl Kernel {
    pub(crate) fn new(unit: Unit, entry: &'static str) -> Self {
        Self { unit, entry, constants: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self
    }
}

#[derive(Clone)]
struct Pipeline {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// What is made of sources, as it is asked for.
#[derive(Default)]
struct Built {
    modules: HashMap<(Unit, Forms), wgpu::ShaderModule>,
    pipelines: HashMap<(Kernel, Forms), Pipeline>,
}

/// What waits to be submitted.
#[derive(Default)]
struct Recording {
    /// Before the encoder, since it ends first.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    launches: usize,
}

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
    defect: Option<Defect>,
    built: Mutex<Built>,
    recording: Mutex<Recording>,
    /// Number of the command buffer at work, so that buffers know whether it uses them.
    epoch: AtomicU64,
    readback: Mutex<Option<wgpu::Buffer>>,
    lost: Arc<Mutex<Option<String>>>,
    tally: [AtomicU64; 3],
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub(crate) fn open(ordinal: u32, defect: Option<Defect>) -> Result<Self, GpuError> {
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
        let desc = wgpu::DeviceDescriptor {
            label: Some("baton"),
            required_features: Features::IMMEDIATES | wide,
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = now(adapter.request_device(&desc));
        let (device, queue) = opened.map_err(|error| GpuError::Open {
            ordinal,
            name: words.name.clone(),
            words: error.to_string(),
        })?;
        let lost = Arc::new(Mutex::new(None));
        let first = |lost: &Arc<Mutex<Option<String>>>| {
            let lost = Arc::clone(lost);
            move |words: String| {
                locked(&lost).get_or_insert(words);
            }
        };
        let (on_error, on_loss) = (first(&lost), first(&lost));
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| on_error(error.to_string())));
        device.set_device_lost_callback(move |reason, words| {
            if reason != wgpu::DeviceLostReason::Destroyed {
                on_loss(format!("the device is lost: {words}"));
            }
        });
        Ok(Self {
            ordinal,
            adapter: words,
            device,
            queue,
            limits,
            has_f64: !wide.is_empty(),
            forms: Forms::DEVICE,
            defect,
            built: Mutex::default(),
            recording: Mutex::default(),
            epoch: AtomicU64::new(1),
            readback: Mutex::default(),
            lost,
            tally: Default::default(),
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

    pub(crate) fn tally(&self) -> Tally {
        let [launches, submits, waits] = [0, 1, 2].map(|i| self.tally[i].load(Ordering::Relaxed));
        Tally { launches, submits, waits }
    }

    fn count(&self, i: usize) {
        self.tally[i].fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the process where the driver said that something failed: nothing after it is right.
    fn check(&self) {
        if let Some(words) = locked(&self.lost).as_ref() {
            panic!("gpu:{} ({}): {words}", self.ordinal, self.adapter.name);
        }
    }

    /// What a driver says to the making of a kernel, if it refuses.
    pub(crate) fn try_kernel(&self, kernel: &Kernel) -> Result<(), GpuError> {
        let guard = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        self.pipeline(kernel);
        match now(guard.pop()) {
            None => Ok(()),
            Some(error) => Err(GpuError::Kernel {
                ordinal: self.ordinal,
                kernel: format!("{kernel:?}"),
                words: error.to_string(),
            }),
        }
    }

    fn pipeline(&self, kernel: &Kernel) -> Pipeline {
        let built = &mut *locked(&self.built);
        let key = (kernel.clone(), self.forms);
        if let Some(pipeline) = built.pipelines.get(&key) {
            return pipeline.clone();
        }
        let module = built.modules.entry((kernel.unit, self.forms)).or_insert_with(|| {
            let mut source = kernel.unit.source(self.forms);
            if let Some(defect) = self.defect {
                source = defect.planted(kernel.unit, source);
            }
            self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(&format!("{:?}", kernel.unit)),
                source: wgpu::ShaderSource::Wgsl(source.into()),
            })
        });
        let constants: Vec<(&str, f64)> =
            kernel.constants.iter().map(|&(name, value)| (name, f64::from(value))).collect();
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.entry),
            layout: None,
            module,
            entry_point: Some(kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                // Every kernel writes its workgroup memory before it reads it.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        let layout = pipeline.get_bind_group_layout(0);
        let pipeline = Pipeline { pipeline, layout };
        built.pipelines.insert(key, pipeline.clone());
        pipeline
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
        if grid.contains(&0) {
            return;
        }
        let Pipeline { pipeline, layout } = self.pipeline(kernel);
        let entries: Vec<_> = buffers
            .iter()
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding: *binding,
                resource: buffer.raw.as_entire_binding(),
            })
            .collect();
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &layout,
            entries: &entries,
        });
        let mut bytes = vec![0; 4];
        bytes.extend(params.iter().flat_map(|word| word.to_le_bytes()));
        let recording = &mut *locked(&self.recording);
        let epoch = self.epoch.load(Ordering::Relaxed);
        for (_, buffer) in buffers {
            buffer.used.store(epoch, Ordering::Relaxed);
        }
        if recording.pass.is_none() {
            let encoder = self.encoder(recording);
            let pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
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
        self.check();
    }

    /// Submits what waits.
    pub(crate) fn flush(&self) {
        self.submit(&mut locked(&self.recording));
    }

    /// Copies bytes between two buffers.
    fn copy(&self, from: &Buffer, at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let recording = &mut *locked(&self.recording);
        recording.pass = None;
        let epoch = self.epoch.load(Ordering::Relaxed);
        from.used.store(epoch, Ordering::Relaxed);
        to.used.store(epoch, Ordering::Relaxed);
        self.encoder(recording).copy_buffer_to_buffer(&from.raw, at, &to.raw, to_at, bytes);
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
            locked(&self.lost).get_or_insert(format!("no answer: {error}"));
        }
        self.check();
    }

    fn read(&self, from: &Buffer, at: u64, to: &mut [u8]) {
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
            encoder.copy_buffer_to_buffer(&from.raw, at, staging, 0, bytes);
            self.submit(recording);
        }
        let slice = staging.slice(..bytes);
        slice.map_async(wgpu::MapMode::Read, |_| {});
        self.poll();
        match slice.get_mapped_range() {
            Ok(view) => to.copy_from_slice(&view),
            Err(error) => panic!("gpu:{}: reading back: {error}", self.ordinal),
        }
        staging.unmap();
    }
}

/// Memory on the device.
pub(crate) struct Buffer {
    device: Arc<Device>,
    raw: wgpu::Buffer,
    bytes: u64,
    /// The last command buffer that uses it.
    used: AtomicU64,
}

impl Buffer {
    /// Zeroed.
    pub(crate) fn new(device: &Arc<Device>, what: &str, bytes: u128) -> Result<Self, BackendError> {
        let limit = device.binding_bytes();
        let size = bytes.next_multiple_of(4).max(16);
        if size > u128::from(limit) {
            return Err(BackendError::Shape {
                what: format!("{what} on gpu:{}", device.ordinal),
                expected: format!("at most {limit} bytes in one buffer"),
                found: bytes.to_string(),
            });
        }
        let guard = device.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let raw = device.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size: size as u64,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        if now(guard.pop()).is_some() {
            return Err(BackendError::OutOfMemory {
                device: format!("gpu:{} ({})", device.ordinal, device.adapter.name),
                what: what.to_owned(),
                need_bytes: size as u64,
                free_bytes: 0,
            });
        }
        Ok(Self { device: Arc::clone(device), raw, bytes: size as u64, used: AtomicU64::new(0) })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Host to device, after all that was asked for before.
    pub(crate) fn upload(&self, at: usize, words: &[u32]) {
        if words.is_empty() {
            return;
        }
        // What is written goes before the command buffer that is being made.
        if self.used.load(Ordering::Relaxed) == self.device.epoch.load(Ordering::Relaxed) {
            self.device.flush();
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.device.queue.write_buffer(&self.raw, at as u64, &bytes);
    }

    /// Device to host.
    pub(crate) fn download(&self, at: usize, to: &mut [f32]) {
        if to.is_empty() {
            return;
        }
        let mut bytes = vec![0; size_of_val(to)];
        self.device.read(self, at as u64, &mut bytes);
        for (to, bytes) in to.iter_mut().zip(bytes.chunks_exact(4)) {
            *to = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }

    /// From another buffer.
    pub(crate) fn copy_from(&self, from: &Self, at: usize, to_at: usize, bytes: usize) {
        self.device.copy(from, at as u64, self, to_at as u64, bytes as u64);
    }
}
