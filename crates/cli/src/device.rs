//! What a rank computes on.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use arith::base::Arith;
use backend::Backend;
use cpu::{Cpu, Isa};
use cuda::Cuda;

use crate::source;

/// A device as `--device` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// This machine's cores.
    #[default]
    Cpu,
    /// A CUDA card, by its number.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ordinal = || text.strip_prefix("cuda:")?.parse().ok();
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => ordinal().map(Self::Cuda).ok_or_else(|| "expected cpu or cuda:N".into()),
        }
    }
}

/// A device a rank, begun again where there are fewer: `cpu|cuda:0`.
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

impl Device {
    /// Opens it; `threads` are the CPU's.
    ///
    /// # Errors
    /// What is missing on this machine, and an arithmetic that the device does not compute.
    pub fn open(self, threads: usize, arith: Arith) -> Result<Seat> {
        match self {
            Self::Cpu => Ok(Seat::Cpu(Arc::new(Cpu::new(threads, Isa::Auto, arith)?))),
            Self::Cuda(ordinal) => {
                ensure!(
                    arith == Arith::One,
                    "--device {self} computes arith 1; take --arith 1, or --device cpu"
                );
                let cache = source::cache_dir().ok().map(|folder| folder.join("cubin"));
                Ok(Seat::Cuda(Arc::new(Cuda::open(ordinal, cache.as_deref())?)))
            }
        }
    }

    /// Bytes that may be taken of its memory, where that is known.
    ///
    /// # Errors
    /// What is missing on this machine.
    pub fn free_bytes(self, arith: Arith) -> Result<Option<u64>> {
        match self {
            Self::Cpu => Ok(cpu::free_bytes()),
            Self::Cuda(_) => Ok(self.open(1, arith)?.free_bytes()),
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
}

impl Seat {
    /// The backend's short name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cpu(cpu) => cpu.name(),
            Self::Cuda(cuda) => cuda.name(),
        }
    }

    /// The device in words.
    pub fn device(&self) -> String {
        match self {
            Self::Cpu(cpu) => cpu.device(),
            Self::Cuda(cuda) => cuda.device(),
        }
    }

    /// Bytes that may be taken of its memory, where that is known.
    pub fn free_bytes(&self) -> Option<u64> {
        match self {
            Self::Cpu(_) => cpu::free_bytes(),
            Self::Cuda(cuda) => Some(cuda.free_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_name_leads_back_to_it() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(7)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        let both = Devices(vec![Device::Cpu, Device::Cuda(1)]);
        assert_eq!("cpu|cuda:1".parse(), Ok(both));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_card_is_not_asked_for_another_arithmetic() {
        let error = Device::Cuda(0).open(1, Arith::Two).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("--arith 1")));
    }
}
