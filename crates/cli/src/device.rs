//! What a rank computes on.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use arith::base::{Arith, Rank};
use backend::Backend;
use cpu::{Cpu, Isa};
use cuda::Cuda;
#[cfg(feature = "gpu")]
use gpu::Gpu;
use wire::layout::Layout;

use crate::source;

/// What the words of a device that computes a function of its own hold, before the rule.
pub const OWN_ARITH: &str = "arith: own, by rule";

/// A device as `--device` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// This machine's cores.
    #[default]
    Cpu,
    /// A CUDA card, by its number.
    Cuda(u32),
    /// A GPU of Metal or Vulkan, by its number.
    Gpu(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Gpu(ordinal) => write!(f, "gpu:{ordinal}"),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, ordinal) = text.split_once(':').unwrap_or((text, "0"));
        match (kind, ordinal.parse()) {
            ("cpu", _) if text == kind => Ok(Self::Cpu),
            ("cuda", Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
            ("gpu", Ok(ordinal)) => Ok(Self::Gpu(ordinal)),
            _ => Err("expected cpu, cuda:N or gpu:N".into()),
        }
    }
}

/// A device a machine, in the order of ranks and, of one, of the members of its group; begun again
/// where there are fewer: `cpu|cuda:0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(pub Vec<Device>);

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(Device::to_string).collect();
        write!(f, "{}", names.join("|"))
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split('|').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl Default for Devices {
    fn default() -> Self {
        Self(vec![Device::default()])
    }
}

/// Which of `devices` that of `member` of `rank` is.
pub fn of(devices: &[Device], layout: &Layout, rank: Rank, member: usize) -> Device {
    let before: u32 = (0..rank.0).map(|rank| layout.members(Rank(rank))).sum();
    let machine = before as usize + member;
    devices.get(machine % devices.len().max(1)).copied().unwrap_or_default()
}

impl Device {
    /// Opens it; `threads` are the CPU's. With `own` a GPU may compute a function of its own.
    ///
    /// # Errors
    /// What is missing on this machine, and an arithmetic that the device does not compute.
    pub fn open(self, threads: usize, arith: Arith, own: bool) -> Result<Seat> {
        ensure!(
            !matches!(self, Self::Gpu(_)) || arith == Arith::One,
            "--device {self} computes arith 1; take --arith 1, or --device cpu or cuda:N"
        );
        match self {
            Self::Cpu => Ok(Seat::Cpu(Arc::new(Cpu::new(threads, Isa::Auto, arith)?))),
            #[cfg(feature = "gpu")]
            Self::Gpu(ordinal) => {
                let cache = source::cache_dir().ok().map(|folder| folder.join("pipelines"));
                let open = if own { Gpu::open_own } else { Gpu::open };
                Ok(Seat::Gpu(Arc::new(open(ordinal, cache.as_deref())?)))
            }
            #[cfg(not(feature = "gpu"))]
            Self::Gpu(_) => anyhow::bail!(
                "--device {self}: this binary was built without the feature gpu; take --device cpu"
            ),
            Self::Cuda(ordinal) => {
                let cache = source::cache_dir().ok().map(|folder| folder.join("cubin"));
                Ok(Seat::Cuda(Arc::new(Cuda::open(ordinal, cache.as_deref())?.in_arith(arith))))
            }
        }
    }

    /// Bytes that may be taken of its memory, where that is known.
    ///
    /// # Errors
    /// What is missing on this machine.
    pub fn free_bytes(self, arith: Arith, own: bool) -> Result<Option<u64>> {
        match self {
            Self::Cpu => Ok(cpu::free_bytes()),
            Self::Cuda(_) | Self::Gpu(_) => Ok(self.open(1, arith, own)?.free_bytes()),
        }
    }
}

/// An open device.
#[derive(Clone)]
pub enum Seat {
    /// Cores.
    Cpu(Arc<Cpu>),
    /// A card.
    Cuda(Arc<Cuda>),
    /// A GPU.
    #[cfg(feature = "gpu")]
    Gpu(Arc<Gpu>),
}

impl Seat {
    /// The backend's short name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cpu(cpu) => cpu.name(),
            Self::Cuda(cuda) => cuda.name(),
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu) => gpu.name(),
        }
    }

    /// The device in words.
    pub fn device(&self) -> String {
        match self {
            Self::Cpu(cpu) => cpu.device(),
            Self::Cuda(cuda) => cuda.device(),
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu) => gpu.device(),
        }
    }

    /// The rule of arith 1 that it breaks, where it computes a function of its own.
    pub fn own_arith(&self) -> Option<&'static str> {
        match self {
            Self::Cpu(_) | Self::Cuda(_) => None,
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu) => match gpu.verdict() {
                gpu::Verdict::Own { rule, .. } => Some(rule),
                gpu::Verdict::One(_) => None,
            },
        }
    }

    /// How weights lie in its memory.
    pub fn runs(&self) -> placement::Runs {
        match self {
            Self::Cpu(_) if cfg!(target_os = "linux") => {
                let (bytes, gap_bytes) = cpu::runs();
                placement::Runs { bytes, gap_bytes }
            }
            _ => placement::Runs::default(),
        }
    }

    /// Bytes that may be taken of its memory, where that is known.
    pub fn free_bytes(&self) -> Option<u64> {
        match self {
            Self::Cpu(_) => cpu::free_bytes(),
            Self::Cuda(cuda) => Some(cuda.free_bytes()),
            // A GPU with memory of its own does not say how much of it is free.
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu) => gpu.adapter().shares_memory.then(cpu::free_bytes).flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_name_leads_back_to_it() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(7), Device::Gpu(1)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        assert_eq!("gpu".parse(), Ok(Device::Gpu(0)));
        let both = Devices(vec![Device::Cpu, Device::Cuda(1)]);
        assert_eq!("cpu|cuda:1".parse(), Ok(both));
        for wrong in ["", "gpu:", "npu", "cuda:", "cuda:x", "cuda:-1", "cpu:0"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn devices_are_of_machines_in_the_order_of_ranks_and_members() {
        let layout = Layout::parse("0:2@shards2,2:3,3:8@rows3").unwrap_or_else(|e| panic!("{e}"));
        let devices = [Device::Cuda(0), Device::Cuda(1), Device::Cpu];
        let places = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 2)];
        let found = places.map(|(rank, member)| of(&devices, &layout, Rank(rank), member));
        assert_eq!(found, [0, 1, 2, 0, 2].map(|at| devices[at]));
        assert_eq!(of(&devices[..1], &layout, Rank(2), 2), Device::Cuda(0));
    }

    #[test]
    fn a_gpu_is_not_asked_for_another_arithmetic() {
        let error = Device::Gpu(0).open(1, Arith::Two, false).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("--arith 1")));
    }
}
