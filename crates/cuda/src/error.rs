//! Why a card can't be used.

/// What keeps a CUDA device from computing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No driver on this machine.
    #[error("no CUDA driver here ({reason}); install the card's driver or use --device cpu")]
    NoDriver {
        /// What the system said.
        reason: String,
    },
    /// No compiler, and no cubin that was made before.
    #[error(
        "no CUDA compiler here ({reason}) and no compiled kernels in the cache; install the \
         package nvidia-cuda-nvrtc and name its libnvrtc in BATON_NVRTC, or run once where it is"
    )]
    NoCompiler {
        /// What the system said.
        reason: String,
    },
    /// No NCCL on this machine.
    #[error(
        "no NCCL here ({reason}); install the package nvidia-nccl-cu13, or -cu12 beside CUDA 12, \
         and name its libnccl.so.2 in BATON_NCCL"
    )]
    NoNccl {
        /// What the system said.
        reason: String,
    },
    /// A call of NCCL that failed, or was given up on.
    #[error("NCCL: {call}: {words}")]
    Nccl {
        /// The call.
        call: &'static str,
        /// The library's words.
        words: String,
    },
    /// A library without a function that is needed.
    #[error("the CUDA {what} here lacks {symbol}; expected one of CUDA 12 or newer")]
    OldLibrary {
        /// Which library.
        what: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// A device that is not there.
    #[error("cuda:{ordinal}: this machine has {found} CUDA devices")]
    NoDevice {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        found: i32,
    },
    /// A card without the instructions that the kernels need.
    #[error("cuda:{ordinal}: {name} is of compute capability {found}, expected 8.0 or newer")]
    OldDevice {
        /// The device.
        ordinal: u32,
        /// Its name.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// A call that failed.
    #[error("CUDA: {call}: {words}")]
    Call {
        /// The call.
        call: &'static str,
        /// The driver's words.
        words: String,
    },
    /// A card without room for the least.
    #[error("CUDA: {words}")]
    Memory {
        /// What did not fit.
        words: String,
    },
    /// Kernels that don't compile.
    #[error("kernels `{unit}` for {arch}: {log}")]
    Compile {
        /// The source.
        unit: &'static str,
        /// The architecture.
        arch: String,
        /// What the compiler said.
        log: String,
    },
}
