//! Launches that come again. A decode step launches hundreds of small kernels, the same ones with
//! the same operands as the step before: positions, pages and places change in the card's memory
//! alone. What is launched between two copies or waits is cut into stretches; a stretch that came
//! twice is recorded as a graph. When its first launch comes again it is held back with those that
//! follow, each compared with the recorded one, and they run as one launch of the graph; if another
//! comes instead, those held back are launched one by one.

use std::any::Any;
use std::ffi::c_void;

use crate::device::{Device, Exec, Params};
use crate::library::Handle;

/// Most stretches that are remembered.
const STRETCHES_MAX: usize = 64;
/// Fewest launches of a stretch worth a graph.
const LAUNCHES_MIN: usize = 4;
/// Launches of the first stretch after a copy or a wait, how many times as many each next one has,
/// and most: the card starts on the first while the next is compared.
const FIRST_LAUNCHES: usize = 16;
const GROWTH: usize = 4;
const LAUNCHES_MAX: usize = 512;

/// A kernel and how it is launched, without its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) function: Handle,
    pub(crate) name: &'static str,
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    pub(crate) shared: u32,
}

/// Operands that are kept.
trait Operands {
    fn any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn Any) -> bool;
    fn at(&self) -> *mut c_void;
}

impl<P: Params> Operands for P {
    fn any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<P>().is_some_and(|other| self == other)
    }

    fn at(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

struct Launch {
    shape: Shape,
    operands: Box<dyn Operands>,
}

impl Launch {
    fn is<P: Params>(&self, shape: &Shape, params: &P, blind: bool) -> bool {
        self.shape == *shape && (blind || self.operands.equals(params))
    }

    fn run(&self, device: &Device) {
        device.submit(&self.shape, self.operands.at());
    }
}

/// Launches in a row, and their graph once they came twice.
struct Stretch {
    launches: Vec<Launch>,
    exec: Option<Exec>,
    used: u64,
    /// Whether another launch came instead of one of its own, the last time that it began.
    missed: bool,
}

/// What became of the launches since the last stretch ended.
enum Now {
    /// Launched as they came, and noted.
    Noted(Vec<Launch>),
    /// Held back: the first ones of a stretch.
    Held { stretch: usize, count: usize },
}

/// The stretches of a device, and where it stands.
pub(crate) struct Replays {
    stretches: Vec<Stretch>,
    now: Now,
    /// Stretches since the last copy or wait.
    index: u32,
    uses: u64,
    /// A planted fault: launches are told apart by kernel and size alone, not by their operands.
    blind: bool,
}

impl Default for Replays {
    fn default() -> Self {
        let now = Now::Noted(Vec::new());
        Self { stretches: Vec::new(), now, index: 0, uses: 0, blind: false }
    }
}

impl Replays {
    /// None as yet, with the fault planted.
    pub(crate) fn blind() -> Self {
        Self { blind: true, ..Self::default() }
    }

    /// Launches a kernel, now or with those that follow.
    pub(crate) fn launch<P: Params>(&mut self, device: &Device, shape: Shape, params: &P) {
        if self.held(device, &shape, params) {
            return;
        }
        // What came instead of another may begin a stretch of its own.
        if self.begins(&shape, params) && self.held(device, &shape, params) {
            return;
        }
        let Now::Noted(noted) = &mut self.now else { unreachable!("nothing is held back") };
        noted.push(Launch { shape, operands: Box::new(*params) });
        device.submit(&shape, std::ptr::from_ref(params).cast_mut().cast());
        let most = FIRST_LAUNCHES * GROWTH.pow(self.index.min(4));
        if noted.len() >= most.min(LAUNCHES_MAX) {
            self.remember(device);
            self.index += 1;
        }
    }

    /// Whether a launch begins a recorded stretch, where one may begin.
    fn begins<P: Params>(&mut self, shape: &Shape, params: &P) -> bool {
        if !matches!(&self.now, Now::Noted(noted) if noted.is_empty()) {
            return false;
        }
        let blind = self.blind;
        let begins = |s: &Stretch| s.exec.is_some() && s.launches[0].is(shape, params, blind);
        match self.stretches.iter().position(begins) {
            Some(stretch) => {
                self.now = Now::Held { stretch, count: 0 };
                true
            }
            None => false,
        }
    }

    /// Holds a launch back if it is the next of the stretch that is held, and runs the stretch with
    /// its last.
    fn held<P: Params>(&mut self, device: &Device, shape: &Shape, params: &P) -> bool {
        let Now::Held { stretch, count } = &mut self.now else { return false };
        let held = &mut self.stretches[*stretch];
        if !held.launches[*count].is(shape, params, self.blind) {
            self.let_go(device, true);
            return false;
        }
        *count += 1;
        if *count == held.launches.len() {
            self.uses += 1;
            (held.used, held.missed) = (self.uses, false);
            held.exec.iter().for_each(|exec| device.replay(exec));
            self.now = Now::Noted(Vec::new());
            self.index += 1;
        }
        true
    }

    /// Launches what was held back, before a copy, a wait or another's use of the stream.
    pub(crate) fn settle(&mut self, device: &Device) {
        match self.now {
            Now::Held { .. } => self.let_go(device, false),
            Now::Noted(_) => self.remember(device),
        }
        self.index = 0;
    }

    /// As [`Replays::settle`] where another stream comes in, as between any two layers of a prompt:
    /// what was launched since is not remembered, or so many stretches would displace all others.
    pub(crate) fn part(&mut self, device: &Device) {
        match &mut self.now {
            Now::Held { .. } => self.let_go(device, false),
            Now::Noted(launches) => launches.clear(),
        }
        self.index = 0;
    }

    /// Launches one by one what is held back. A stretch that others end twice is forgotten.
    fn let_go(&mut self, device: &Device, missed: bool) {
        let Now::Held { stretch, count } = self.now else { return };
        self.now = Now::Noted(Vec::new());
        let held = &mut self.stretches[stretch];
        held.launches[..count].iter().for_each(|launch| launch.run(device));
        if missed && std::mem::replace(&mut held.missed, missed) {
            self.forget(device, stretch);
        }
    }

    /// Keeps the stretch that was noted; records it if it is kept already.
    fn remember(&mut self, device: &Device) {
        let Now::Noted(launches) = &mut self.now else { return };
        let launches = std::mem::take(launches);
        if launches.len() < LAUNCHES_MIN {
            return;
        }
        self.uses += 1;
        let used = self.uses;
        let same = |s: &Stretch| {
            let mut pairs = s.launches.iter().zip(&launches);
            s.launches.len() == launches.len()
                && pairs.all(|(a, b)| a.shape == b.shape && a.operands.equals(b.operands.any()))
        };
        if let Some(stretch) = self.stretches.iter_mut().find(|stretch| same(stretch)) {
            stretch.used = used;
            if stretch.exec.is_none() {
                let all = || stretch.launches.iter().for_each(|launch| launch.run(device));
                stretch.exec = device.recorded(all);
            }
            return;
        }
        if self.stretches.len() == STRETCHES_MAX {
            let oldest = (0..STRETCHES_MAX).min_by_key(|&i| self.stretches[i].used);
            oldest.into_iter().for_each(|oldest| self.forget(device, oldest));
        }
        self.stretches.push(Stretch { launches, exec: None, used, missed: false });
    }

    fn forget(&mut self, device: &Device, stretch: usize) {
        if let Some(exec) = self.stretches.swap_remove(stretch).exec {
            device.forget(exec);
        }
    }
}
