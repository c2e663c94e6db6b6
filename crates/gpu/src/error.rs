//! Why a GPU can't be used.

/// What keeps a GPU from computing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No adapter of that number.
    #[error(
        "gpu:{ordinal}: this machine has {found} adapters of Vulkan or Metal; `baton probe` lists \
         them, --device cpu needs none (Mesa's driver for CPUs is the package mesa-vulkan-drivers)"
    )]
    NoAdapter {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        found: usize,
    },
    /// A driver that lacks what the kernels need.
    #[error("gpu:{ordinal}: {name} lacks {feature}; use another driver or --device cpu")]
    Unsupported {
        /// The device.
        ordinal: u32,
        /// Its name.
        name: String,
        /// What is missing.
        feature: String,
    },
    /// An adapter that gives no device.
    #[error("gpu:{ordinal}: {name} can't be opened: {words}")]
    Open {
        /// The device.
        ordinal: u32,
        /// Its name.
        name: String,
        /// The driver's words.
        words: String,
    },
    /// A kernel that the driver refuses.
    #[error("gpu:{ordinal}: kernel {kernel} is refused: {words}")]
    Kernel {
        /// The device.
        ordinal: u32,
        /// Which kernel.
        kernel: String,
        /// The driver's words.
        words: String,
    },
    /// A device without room for the least.
    #[error("gpu:{ordinal}: {words}")]
    Memory {
        /// The device.
        ordinal: u32,
        /// What did not fit.
        words: String,
    },
    /// A device that computes another function.
    #[error(
        "gpu:{ordinal}: {name} does not compute arith 1: rule `{rule}` failed ({case}); use \
         --device cpu, or --allow-own-arith for replies that hold for one placement alone"
    )]
    Own {
        /// The device.
        ordinal: u32,
        /// Its name.
        name: String,
        /// The rule of the probe.
        rule: &'static str,
        /// The first operands that showed it.
        case: String,
    },
}
