//! A PTX text as kernels that can be launched.

use std::path::Path;
use std::sync::Arc;

/// The kernels of one PTX text.
pub struct Module {}

impl Module {
    /// Reads `ptx`; what is compiled of it is kept in `cache`.
    ///
    /// # Errors
    ///
    /// Words, if the text holds what is not emulated.
    pub fn load(_ptx: &str, _cache: &Path) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {}))
    }

    /// The kernel `name`, if the text has it.
    #[must_use]
    pub fn kernel(&self, _name: &str) -> Option<Kernel> {
        None
    }
}

/// One kernel of a module.
#[derive(Clone)]
pub struct Kernel {
    /// Where each parameter lies in what `launch` is given, and its size in bytes.
    pub params: Vec<(usize, usize)>,
    /// Bytes of shared memory that the kernel itself declares.
    pub static_shared_bytes: u32,
}

impl Kernel {
    /// Runs the kernel to its end on the calling thread. `params` holds all parameters at the
    /// places that [`Kernel::params`] says.
    ///
    /// # Errors
    ///
    /// Words, with kernel, block, thread and what, if a thread faults.
    pub fn launch(
        &self,
        _grid: [u32; 3],
        _block: [u32; 3],
        _dynamic_shared_bytes: u32,
        _params: &[u8],
    ) -> Result<(), String> {
        Err("not emulated yet".into())
    }
}
