//! A PTX text as kernels that can be launched.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::built::{Function, function};
use crate::ptx::{Entry, Text, read};
use crate::run::{Launch, Options, launch};
use crate::source::{Source, source};

/// The kernels of one PTX text.
pub struct Module {
    kernels: Vec<Kernel>,
}

impl Module {
    /// Reads `ptx`; what is compiled of it is kept in `cache`. A kernel is compiled when it is
    /// first launched.
    ///
    /// # Errors
    ///
    /// Words, if the text is not understood.
    pub fn load(ptx: &str, cache: &Path) -> Result<Arc<Self>, String> {
        let text = read(ptx)?;
        let kernels = text.entries.iter().map(|entry| Kernel::new(&text, entry, cache)).collect();
        Ok(Arc::new(Self { kernels }))
    }

    /// The kernel `name`, if the text has it.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        self.kernels.iter().find(|kernel| kernel.inner.name == name).cloned()
    }

    /// The names of all kernels.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|kernel| kernel.inner.name.as_str())
    }
}

/// One kernel of a module.
#[derive(Clone)]
pub struct Kernel {
    /// Where each parameter lies in what `launch` is given, and its size in bytes.
    pub params: Vec<(usize, usize)>,
    /// Bytes of shared memory that the kernel itself declares.
    pub static_shared_bytes: u32,
    /// How long blocks that look for what others write may look without one that ends [default:
    /// two minutes].
    pub patience: Duration,
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    cache: PathBuf,
    source: Result<Source, String>,
    function: OnceLock<Result<Function, String>>,
}

const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes behind the parameters that may be read with the last of them.
const SLACK: usize = 16;
/// Dynamic shared memory begins at a multiple of this.
const SHARED_ALIGN: u32 = 16;

impl Kernel {
    fn new(text: &Text, entry: &Entry, cache: &Path) -> Self {
        let source = source(text, entry);
        let static_shared_bytes = source.as_ref().map_or(0, |found| found.static_shared_bytes);
        let params = entry.params.iter().map(|param| (param.offset, param.bytes)).collect();
        let (name, cache) = (entry.name.clone(), cache.to_owned());
        let inner = Inner { name, cache, source, function: OnceLock::new() };
        Self { params, static_shared_bytes, patience: PATIENCE, inner: Arc::new(inner) }
    }

    /// Compiles it, if it is not yet.
    ///
    /// # Errors
    ///
    /// What is not emulated of it, or the compiler's words.
    pub fn compile(&self) -> Result<(), String> {
        self.built().map(|_| ())
    }

    fn built(&self) -> Result<(&Source, Function), String> {
        let Inner { name, cache, source, function: built } = &*self.inner;
        let source = source.as_ref().map_err(|what| format!("kernel {name}: {what}"))?;
        let found = built.get_or_init(|| function(name, &source.text, cache));
        Ok((source, found.clone()?))
    }

    /// Runs the kernel to its end on the calling thread. `params` holds all parameters at the
    /// places that [`Kernel::params`] says.
    ///
    /// # Errors
    ///
    /// Words, with kernel, block, thread and what, if a thread faults.
    pub fn launch(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared_bytes: u32,
        params: &[u8],
    ) -> Result<(), String> {
        let options = Options::of_environment()?;
        if options.idle {
            return Ok(());
        }
        let (source, entry) = self.built()?;
        let name = &self.inner.name;
        let wanted = self.params.last().map_or(0, |(offset, bytes)| offset + bytes);
        if params.len() < wanted {
            let found = params.len();
            return Err(format!("kernel {name}: {found} bytes of parameters, of {wanted}"));
        }
        // Aligned for any of them.
        let mut held = vec![0_u128; (params.len() + SLACK).div_ceil(size_of::<u128>())];
        // SAFETY: as many bytes, of integers.
        let held: &mut [u8] = unsafe {
            std::slice::from_raw_parts_mut(held.as_mut_ptr().cast(), size_of_val(&held[..]))
        };
        held[..params.len()].copy_from_slice(params);
        let own = self.static_shared_bytes.next_multiple_of(SHARED_ALIGN);
        launch(&Launch {
            name,
            entry,
            grid,
            block,
            shared_bytes: own + dynamic_shared_bytes,
            params: held,
            stack_bytes: source.stack_bytes,
            looks: source.looks,
            patience: self.patience,
            options,
        })
    }
}
