//! The device's own clock, for measurements.

use std::sync::atomic::{AtomicU32, Ordering};

/// Passes that one measurement holds.
const PASSES_MAX: u32 = 64;

/// Times at the begin and the end of passes.
pub(crate) struct Clock {
    times: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    read: wgpu::Buffer,
    /// Seconds of a tick.
    tick: f64,
    /// Passes of the measurement at work; [`PASSES_MAX`] where there is none.
    passes: AtomicU32,
}

impl Clock {
    pub(crate) fn new(device: &wgpu::Device, queue: &wgpu::Queue) -> Self {
        let buffer = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("times"),
                size: u64::from(PASSES_MAX) * 16,
                usage,
                mapped_at_creation: false,
            })
        };
        use wgpu::BufferUsages as Usages;
        Self {
            times: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: 2 * PASSES_MAX,
            }),
            resolved: buffer(Usages::QUERY_RESOLVE | Usages::COPY_SRC),
            read: buffer(Usages::COPY_DST | Usages::MAP_READ),
            tick: f64::from(queue.get_timestamp_period()) * 1e-9,
            passes: AtomicU32::new(PASSES_MAX),
        }
    }

    pub(crate) fn start(&self) {
        self.passes.store(0, Ordering::Relaxed);
    }

    /// What a pass writes, if it is measured.
    pub(crate) fn begin(&self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let pass = self.passes.load(Ordering::Relaxed);
        if pass >= PASSES_MAX {
            return None;
        }
        self.passes.store(pass + 1, Ordering::Relaxed);
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &self.times,
            beginning_of_pass_write_index: Some(2 * pass),
            end_of_pass_write_index: Some(2 * pass + 1),
        })
    }

    /// Seconds of the passes since `start`, together; `None` for none, and where they were too
    /// many.
    pub(crate) fn stop(&self, device: &wgpu::Device, queue: &wgpu::Queue) -> Option<f64> {
        let passes = self.passes.swap(PASSES_MAX, Ordering::Relaxed);
        if passes == 0 || passes >= PASSES_MAX {
            return None;
        }
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.resolve_query_set(&self.times, 0..2 * passes, &self.resolved, 0);
        let bytes = u64::from(passes) * 16;
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.read, 0, bytes);
        queue.submit([encoder.finish()]);
        let slice = self.read.slice(..bytes);
        slice.map_async(wgpu::MapMode::Read, |_| {});
        device.poll(wgpu::PollType::wait_indefinitely()).ok()?;
        let ticks = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let sum = {
            let view = slice.get_mapped_range().ok()?;
            let spans = view
                .chunks_exact(16)
                .map(|pair| ticks(&pair[8..]).saturating_sub(ticks(&pair[..8])));
            spans.sum::<u64>()
        };
        self.read.unmap();
        Some(sum as f64 * self.tick)
    }
}
