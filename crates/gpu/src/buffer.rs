//! Memory on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use backend::BackendError;

/// Memory on the device.
pub(crate) struct Buffer {
    device: Arc<Device>,
    raw: wgpu::Buffer,
    /// No other buffer of the device has it.
    number: u64,
    bytes: u64,
    /// The last command buffer that uses it.
    used: AtomicU64,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.device.forget();
    }
}

impl Buffer {
    /// Zeroed.
    pub(crate) fn new(device: &Arc<Device>, what: &str, bytes: u128) -> Result<Self, BackendError> {
        let limit = device.binding_bytes();
        let size = bytes.next_multiple_of(4).max(16);
        if size > u128::from(limit) {
            return Err(BackendError::Shape {
                what: format!("{what} on gpu:{}", device.ordinal()),
                expected: format!("at most {limit} bytes in one buffer"),
                found: bytes.to_string(),
            });
        }
        let name = || format!("gpu:{} ({})", device.ordinal(), device.adapter().name);
        if let Some(words) = device.failure() {
            return Err(BackendError::Failed { device: name(), words: words.to_owned() });
        }
        let Some((raw, number)) = device.allocate(what, size as u64) else {
            return Err(BackendError::OutOfMemory {
                device: name(),
                what: what.to_owned(),
                need_bytes: size as u64,
                free_bytes: 0,
            });
        };
        let (device, used) = (Arc::clone(device), AtomicU64::new(0));
        Ok(Self { device, raw, number, bytes: size as u64, used })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn use_in(&self, epoch: u64) {
        self.used.store(epoch, Ordering::Relaxed);
    }

    pub(crate) fn is_used_in(&self, epoch: u64) -> bool {
        self.used.load(Ordering::Relaxed) == epoch
    }

    /// Host to device, after all that was asked for before.
    pub(crate) fn upload(&self, at: usize, words: &[u32]) {
        if words.is_empty() {
            return;
        }
        self.device.flush_before(self);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.device.write(&self.raw, at as u64, &bytes);
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
