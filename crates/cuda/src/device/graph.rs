//! Launches that are recorded and launched as one, and the time that launches take.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::Device;
use crate::CudaError;
use crate::library::Handle;
use crate::replay::{Card, Replays, Shape};

/// Whatever other threads ask of other streams meanwhile.
const RELAXED: u32 = 2;

impl Device {
    pub(super) fn replays(&self) -> MutexGuard<'_, Replays<Self>> {
        self.replays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether launches that come again run as graphs; they do unless told otherwise.
    pub(crate) fn set_replays(&self, on: bool) {
        self.settle();
        self.direct.store(!on, Ordering::Relaxed);
    }

    /// Plants a fault: replays that don't look at operands.
    pub(crate) fn plant_blind_replays(&self) {
        self.settle();
        // Graphs of buffers that are gone must not run.
        *self.replays() = Replays::blind();
    }

    /// Graphs launched for launches that came again.
    pub(crate) fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    /// Seconds on the card between the start and the end of what `work` launches.
    pub(crate) fn timed(&self, work: impl FnOnce()) -> f64 {
        let [mut start, mut end] = [std::ptr::null_mut(); 2];
        self.settle();
        let (mut ms, driver) = (0.0_f32, &self.driver);
        // SAFETY: places for two events, which are recorded, waited for and destroyed here.
        unsafe {
            self.must("cuEventCreate", (driver.event_create)(&mut start, 0));
            self.must("cuEventCreate", (driver.event_create)(&mut end, 0));
            self.must("cuEventRecord", (driver.event_record)(start, self.stream));
            work();
            self.settle();
            self.must("cuEventRecord", (driver.event_record)(end, self.stream));
            self.must("cuEventSynchronize", (driver.event_wait)(end));
            self.must("cuEventElapsedTime", (driver.event_elapsed)(&mut ms, start, end));
            (driver.event_destroy)(start);
            (driver.event_destroy)(end);
        }
        f64::from(ms) / 1e3
    }

    /// Records what `work` launches, so that it can be launched again as one.
    pub(crate) fn record(self: &Arc<Self>, work: impl FnOnce()) -> Graph {
        self.settle();
        let direct = self.direct.swap(true, Ordering::Relaxed);
        let exec = self.recorded(|| {
            work();
            self.flush();
        });
        self.direct.store(direct, Ordering::Relaxed);
        Graph { device: self.clone(), exec }
    }
}

impl Card for Device {
    type Exec = Exec;

    fn submit(&self, shape: &Shape, operands: *mut c_void) {
        self.submit(shape, operands);
    }

    fn replay(&self, exec: &Exec) {
        // Its operands were asked for just now, or are the caller's.
        self.must("cuGraphLaunch", exec.launch(self, self.stream));
    }

    fn recorded(&self, work: impl FnOnce()) -> Option<Exec> {
        let asked = || {
            work();
            Ok(())
        };
        match Exec::of(self, self.stream, asked) {
            Err(CudaError::Call {
                call: call @ ("cuStreamBeginCapture" | "cuStreamEndCapture"),
                words,
            }) => {
                self.fail(format!("{call}: {words}"));
                None
            }
            made => made.ok(),
        }
    }

    fn forget(&self, exec: Exec) {
        // It may still run.
        self.finish();
        exec.destroy(self);
    }
}

/// An executable graph.
pub(crate) struct Exec(Handle);

// SAFETY: a handle of the driver, which any thread may use once its context is the current one.
unsafe impl Send for Exec {}

impl Exec {
    /// Records what `work` asks of a stream that nobody else uses meanwhile, from whichever thread.
    pub(super) fn of(
        device: &Device,
        stream: Handle,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let [mut graph, mut exec] = [std::ptr::null_mut(); 2];
        let driver = &device.driver;
        // SAFETY: the graph is destroyed once it has been made executable, or was not.
        unsafe {
            let begun = (driver.capture_begin)(stream, RELAXED);
            device.call("cuStreamBeginCapture", begun)?;
            let asked = work();
            let ended = (driver.capture_end)(stream, &mut graph);
            let made = asked.and_then(|()| {
                device.call("cuStreamEndCapture", ended)?;
                let code = (driver.graph_instantiate)(&mut exec, graph, 0);
                device.call("cuGraphInstantiate", code).map(|()| Self(exec))
            });
            if !graph.is_null() {
                (driver.graph_destroy)(graph);
            }
            made
        }
    }

    /// Launches it; the driver's code of `cuGraphLaunch`.
    pub(super) fn launch(&self, device: &Device, stream: Handle) -> c_int {
        device.replayed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: an executable graph of this device, whose memory is the caller's to keep.
        unsafe { (device.driver.graph_launch)(self.0, stream) }
    }

    pub(super) fn destroy(self, device: &Device) {
        // SAFETY: a graph that is not used again.
        unsafe { (device.driver.graph_exec_destroy)(self.0) };
    }
}

/// Launches that are launched as one.
pub struct Graph {
    device: Arc<Device>,
    exec: Option<Exec>,
}

impl Graph {
    /// Launches them after all that was launched before.
    pub fn launch(&self) {
        self.device.settle();
        // Its memory is the caller's to keep.
        self.exec.iter().for_each(|exec| self.device.replay(exec));
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.device.settle();
        self.exec.take().into_iter().for_each(|exec| self.device.forget(exec));
    }
}
