//! Adapters of this machine, in the order of `gpu:N`.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

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
pub(crate) fn found() -> Vec<wgpu::Adapter> {
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

pub(crate) fn described(ordinal: usize, adapter: &wgpu::Adapter) -> Adapter {
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
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("native futures of wgpu are ready at once"),
    }
}
