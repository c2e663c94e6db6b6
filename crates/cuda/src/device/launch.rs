//! Launches of kernels, and what waits to be launched.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::Device;
use crate::fuse::Op;
use crate::library::{Attribute, Config};
use crate::replay::Shape;

/// Programmatic stream serialisation.
const EARLY: u32 = 6;

/// What may be a kernel's one parameter.
///
/// # Safety
/// `repr(C)`, as the kernel's source declares it; its pointers are of the device.
pub(crate) unsafe trait Params: Copy + PartialEq + 'static {}

impl Device {
    /// Counts of copies and waits: a kernel that was launched at another count is done, and so is
    /// all it wrote, before one that is launched now begins.
    pub(crate) fn barriers(&self) -> u64 {
        self.barriers.load(Ordering::Relaxed)
    }

    /// Launches what waits and what is held back.
    pub(super) fn settle(&self) {
        self.flush();
        self.enter();
        self.replays().settle(self);
    }

    /// Launches what waits and what is held back, before another stream comes in.
    pub(super) fn part(&self) {
        self.flush();
        self.enter();
        self.replays().part(self);
    }

    /// Launches all that was asked for, before a copy or a wait.
    pub(super) fn barrier(&self) {
        self.settle();
        self.barriers.fetch_add(1, Ordering::Relaxed);
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Op>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets an op wait, after those that wait already if it may follow them.
    pub(crate) fn defer(&self, op: Op) {
        if !op.follows(&self.waiting()) {
            self.flush();
        }
        self.waiting().push(op);
    }

    /// Takes the ops that wait, if `wanted` says so: they are the caller's to run.
    pub(crate) fn take(&self, wanted: impl FnOnce(&[Op]) -> bool) -> Vec<Op> {
        let mut waiting = self.waiting();
        if wanted(&waiting) { std::mem::take(&mut waiting) } else { Vec::new() }
    }

    /// Launches the ops that wait: whatever comes next may read what they give.
    pub(crate) fn flush(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.iter().for_each(|op| op.launch(self));
    }

    /// Launches a kernel after all that was asked for before.
    pub(crate) fn launch<P: Params>(&self, name: &str, grid: [u32; 3], block: u32, params: &P) {
        self.flush();
        self.launch_now(name, grid, block, params);
    }

    /// Launches a kernel that takes the place of what waited.
    pub(crate) fn launch_now<P: Params>(&self, name: &str, grid: [u32; 3], block: u32, params: &P) {
        self.launch_with(name, grid, block, u32::MAX, params);
    }

    /// As [`Device::launch_now`], with no more than so much shared memory.
    pub(crate) fn launch_with<P: Params>(
        &self,
        name: &str,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        params: &P,
    ) {
        if grid.contains(&0) || self.is_lost() {
            return;
        }
        let Some((&name, &(function, most))) = self.kernels.get_key_value(name) else {
            panic!("no kernel {name}")
        };
        self.enter();
        let shape = Shape { function, name, grid, block, shared: shared.min(most) };
        match self.direct.load(Ordering::Relaxed) {
            true => self.submit(&shape, std::ptr::from_ref(params).cast_mut().cast()),
            false => self.replays().launch(self, shape, params),
        }
    }

    /// Gives a launch to the driver, whose operands lie at `params`.
    pub(crate) fn submit(&self, shape: &Shape, params: *mut c_void) {
        let &Shape { function, name, grid, block, shared } = shape;
        let mut arguments = [params];
        // The kernel may come while the one before it still runs: it waits by itself.
        let early = Attribute { id: EARLY, padding: [0; 4], value: 1, rest: [0; 60] };
        let config = Config {
            grid,
            block: [block, 1, 1],
            shared_bytes: shared,
            stream: self.stream,
            attributes: &early,
            attributes_count: u32::from(self.early),
        };
        let none = std::ptr::null_mut();
        // SAFETY: a function of a loaded module and its one parameter, which the driver copies.
        let code = unsafe { (self.driver.launch)(&config, function, arguments.as_mut_ptr(), none) };
        if code != 0 {
            self.must(&format!("kernel {name} of {grid:?} x {block}"), code);
        }
    }
}
