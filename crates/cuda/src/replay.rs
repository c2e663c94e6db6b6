//! Launches that come again. A decode step launches hundreds of small kernels, the same ones with
//! the same operands as the step before: positions, pages and places change in the card's memory
//! alone. What is launched between two copies or waits is cut into stretches; a stretch that came
//! twice is recorded as a graph. When its first launch comes again it is held back with those that
//! follow, each compared with the recorded one, and they run as one launch of the graph. If another
//! comes instead, it may be the next of a stretch that began alike; else those held back are
//! launched one by one, and noted with what follows as if none had been held: stretches end where
//! they did, and a step that changes is all graphs again the next time but one.

use std::any::Any;
use std::ffi::c_void;

use crate::device::Params;
use crate::library::Handle;

/// Most stretches that are remembered.
const STRETCHES_MAX: usize = 128;
/// Fewest launches of a stretch worth a graph.
const LAUNCHES_MIN: usize = 4;
/// Launches of the first stretch after a copy or a wait, how many times as many each next one has,
/// and most: the card starts on the first while the next is compared.
const FIRST_LAUNCHES: usize = 16;
const GROWTH: usize = 4;
const LAUNCHES_MAX: usize = 512;

/// What launches, one by one or many at once.
pub(crate) trait Card {
    /// Launches in a row, made one.
    type Exec;
    /// Launches a kernel with operands of its own kind.
    fn submit(&self, shape: &Shape, operands: *mut c_void);
    /// Records what `work` submits; none where that can't be.
    fn recorded(&self, work: impl FnOnce()) -> Option<Self::Exec>;
    /// Launches what was recorded.
    fn replay(&self, exec: &Self::Exec);
    /// Ends what was recorded, once it does not run any more.
    fn forget(&self, exec: Self::Exec);
}

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
    fn copied(&self) -> Box<dyn Operands>;
    fn equals(&self, other: &dyn Any) -> bool;
    fn at(&self) -> *mut c_void;
}

impl<P: Params> Operands for P {
    fn any(&self) -> &dyn Any {
        self
    }

    fn copied(&self) -> Box<dyn Operands> {
        Box::new(*self)
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

    fn equals(&self, other: &Self) -> bool {
        self.shape == other.shape && self.operands.equals(other.operands.any())
    }

    fn copied(&self) -> Self {
        Self { shape: self.shape, operands: self.operands.copied() }
    }

    fn run(&self, card: &impl Card) {
        card.submit(&self.shape, self.operands.at());
    }
}

/// Launches in a row, and their graph once they came twice.
struct Stretch<E> {
    launches: Vec<Launch>,
    exec: Option<E>,
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

/// The stretches of a card, and where it stands.
pub(crate) struct Replays<C: Card> {
    stretches: Vec<Stretch<C::Exec>>,
    now: Now,
    /// Stretches since the last copy or wait.
    index: u32,
    uses: u64,
    /// A planted fault: launches are told apart by kernel and size alone, not by their operands.
    blind: bool,
}

impl<C: Card> Default for Replays<C> {
    fn default() -> Self {
        let now = Now::Noted(Vec::new());
        Self { stretches: Vec::new(), now, index: 0, uses: 0, blind: false }
    }
}

impl<C: Card> Replays<C> {
    /// None as yet, with the fault planted.
    pub(crate) fn blind() -> Self {
        Self { blind: true, ..Self::default() }
    }

    /// Launches a kernel, now or with those that follow.
    pub(crate) fn launch<P: Params>(&mut self, card: &C, shape: Shape, params: &P) {
        if self.held(card, &shape, params) {
            return;
        }
        // What came instead of another may begin a stretch of its own.
        if self.begins(&shape, params) && self.held(card, &shape, params) {
            return;
        }
        let Now::Noted(noted) = &mut self.now else { unreachable!("nothing is held back") };
        noted.push(Launch { shape, operands: Box::new(*params) });
        card.submit(&shape, std::ptr::from_ref(params).cast_mut().cast());
        let most = FIRST_LAUNCHES * GROWTH.pow(self.index.min(4));
        if noted.len() >= most.min(LAUNCHES_MAX) {
            self.remember(card);
            self.index += 1;
        }
    }

    /// Whether a launch begins a recorded stretch, where one may begin.
    fn begins<P: Params>(&mut self, shape: &Shape, params: &P) -> bool {
        if !matches!(&self.now, Now::Noted(noted) if noted.is_empty()) {
            return false;
        }
        let blind = self.blind;
        let begins = |s: &Stretch<_>| s.exec.is_some() && s.launches[0].is(shape, params, blind);
        match self.stretches.iter().position(begins) {
            Some(stretch) => {
                self.now = Now::Held { stretch, count: 0 };
                true
            }
            None => false,
        }
    }

    /// Holds a launch back if it is the next of the stretch that is held, or of one that began as
    /// that did, and runs the stretch with its last.
    fn held<P: Params>(&mut self, card: &C, shape: &Shape, params: &P) -> bool {
        let Now::Held { stretch: first, count } = self.now else { return false };
        let blind = self.blind;
        let is_next = |stretch: &Stretch<_>| {
            stretch.launches.get(count).is_some_and(|next| next.is(shape, params, blind))
        };
        let began = &self.stretches[first].launches[..count];
        let goes_on = |stretch: &Stretch<_>| {
            let mut pairs = stretch.launches.iter().zip(began);
            stretch.exec.is_some() && is_next(stretch) && pairs.all(|(a, b)| a.equals(b))
        };
        let stretch = match is_next(&self.stretches[first]) {
            true => Some(first),
            false => self.stretches.iter().position(goes_on),
        };
        let Some(stretch) = stretch else {
            self.let_go(card, true);
            return false;
        };
        let held = &mut self.stretches[stretch];
        self.now = Now::Held { stretch, count: count + 1 };
        if count + 1 == held.launches.len() {
            self.uses += 1;
            (held.used, held.missed) = (self.uses, false);
            held.exec.iter().for_each(|exec| card.replay(exec));
            self.now = Now::Noted(Vec::new());
            self.index += 1;
        }
        true
    }

    /// Launches what was held back, before a copy, a wait or another's use of the stream.
    pub(crate) fn settle(&mut self, card: &C) {
        match self.now {
            Now::Held { .. } => self.let_go(card, false),
            Now::Noted(_) => self.remember(card),
        }
        self.index = 0;
    }

    /// As [`Replays::settle`] where another stream comes in, as between any two layers of a prompt:
    /// what was launched since is not remembered, or so many stretches would displace all others.
    pub(crate) fn part(&mut self, card: &C) {
        match &mut self.now {
            Now::Held { .. } => self.let_go(card, false),
            Now::Noted(launches) => launches.clear(),
        }
        self.index = 0;
    }

    /// Launches one by one what is held back; noted where another launch comes instead of the next.
    /// A stretch that others end twice is forgotten.
    fn let_go(&mut self, card: &C, missed: bool) {
        let Now::Held { stretch, count } = self.now else { return };
        let held = &mut self.stretches[stretch];
        let came = &held.launches[..count];
        came.iter().for_each(|launch| launch.run(card));
        let noted = if missed { came.iter().map(Launch::copied).collect() } else { Vec::new() };
        self.now = Now::Noted(noted);
        if missed && std::mem::replace(&mut held.missed, missed) {
            self.forget(card, stretch);
        }
    }

    /// Keeps the stretch that was noted; records it if it is kept already.
    fn remember(&mut self, card: &C) {
        let Now::Noted(launches) = &mut self.now else { return };
        let launches = std::mem::take(launches);
        if launches.len() < LAUNCHES_MIN {
            return;
        }
        self.uses += 1;
        let used = self.uses;
        let same = |s: &Stretch<_>| {
            let mut pairs = s.launches.iter().zip(&launches);
            s.launches.len() == launches.len() && pairs.all(|(a, b)| a.equals(b))
        };
        if let Some(stretch) = self.stretches.iter_mut().find(|stretch| same(stretch)) {
            stretch.used = used;
            if stretch.exec.is_none() {
                let all = || stretch.launches.iter().for_each(|launch| launch.run(card));
                stretch.exec = card.recorded(all);
            }
            return;
        }
        if self.stretches.len() == STRETCHES_MAX {
            let oldest = (0..STRETCHES_MAX).min_by_key(|&i| self.stretches[i].used);
            oldest.into_iter().for_each(|oldest| self.forget(card, oldest));
        }
        self.stretches.push(Stretch { launches, exec: None, used, missed: false });
    }

    fn forget(&mut self, card: &C, stretch: usize) {
        if let Some(exec) = self.stretches.swap_remove(stretch).exec {
            card.forget(exec);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct One(u32);

    // SAFETY: no kernel takes it.
    unsafe impl Params for One {}

    /// What ran, in order, and by how many launches of what.
    #[derive(Default)]
    struct Ran {
        values: RefCell<Vec<u32>>,
        recording: Cell<bool>,
        alone: Cell<usize>,
        graphs: Cell<usize>,
        kept: Cell<usize>,
    }

    impl Card for Ran {
        type Exec = Vec<u32>;

        fn submit(&self, _: &Shape, operands: *mut c_void) {
            // SAFETY: what `step` launches has operands of this kind.
            let One(value) = unsafe { *operands.cast::<One>() };
            self.values.borrow_mut().push(value);
            self.alone.update(|alone| alone + usize::from(!self.recording.get()));
        }

        fn recorded(&self, work: impl FnOnce()) -> Option<Vec<u32>> {
            let before = self.values.borrow().len();
            self.recording.set(true);
            work();
            self.recording.set(false);
            self.kept.update(|kept| kept + 1);
            Some(self.values.borrow_mut().split_off(before))
        }

        fn replay(&self, exec: &Vec<u32>) {
            self.values.borrow_mut().extend(exec);
            self.graphs.update(|graphs| graphs + 1);
        }

        fn forget(&self, _: Vec<u32>) {
            self.kept.update(|kept| kept - 1);
        }
    }

    const SHAPE: Shape =
        Shape { function: std::ptr::null_mut(), name: "one", grid: [1; 3], block: 1, shared: 0 };

    /// A step of these operands; how many launches came alone and how many graphs.
    fn step(replays: &mut Replays<Ran>, ran: &Ran, values: &[u32]) -> (usize, usize) {
        ran.values.borrow_mut().clear();
        let before = (ran.alone.get(), ran.graphs.get());
        values.iter().for_each(|&value| replays.launch(ran, SHAPE, &One(value)));
        replays.settle(ran);
        assert_eq!(*ran.values.borrow(), values);
        (ran.alone.get() - before.0, ran.graphs.get() - before.1)
    }

    /// Launches of a step, those of attention with an operand that the length decides.
    fn decode(length: u32) -> Vec<u32> {
        (0..600).map(|at| if at % 40 == 33 { 1_000 * length + at } else { at }).collect()
    }

    #[test]
    fn a_step_that_comes_again_is_graphs_from_its_third_time_on() {
        let (mut replays, ran) = (Replays::default(), Ran::default());
        let again: Vec<_> = (0..4).map(|_| step(&mut replays, &ran, &decode(1))).collect();
        assert_eq!(again, [(600, 0), (600, 0), (0, 4), (0, 4)]);
        // Another length: the first stretch has no attention.
        let longer: Vec<_> = (0..4).map(|_| step(&mut replays, &ran, &decode(2))).collect();
        assert_eq!(longer, [(584, 1), (584, 1), (0, 4), (0, 4)]);
        assert_eq!(ran.kept.get(), 4, "those of the other length are gone");
    }

    #[test]
    fn steps_in_turn_that_begin_alike_are_graphs_both() {
        let (mut replays, ran) = (Replays::default(), Ran::default());
        let mut last = Vec::new();
        for turn in 0..12 {
            last.push(step(&mut replays, &ran, &decode(1 + turn % 2)));
        }
        assert_eq!(last[8..], [(0, 4); 4]);
    }

    #[test]
    fn whatever_comes_runs_once_and_in_order() {
        let (mut replays, ran) = (Replays::default(), Ran::default());
        let mut drawn = 1_u64;
        let mut below = |end: u64| {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (drawn >> 33) % end
        };
        for _ in 0..3_000 {
            let mut values = decode(below(4) as u32);
            // Now and then one that is cut short, or otherwise from some place on.
            match below(6) {
                0 => values.truncate(below(600) as usize),
                1 => values[below(600) as usize..].iter_mut().for_each(|value| *value += 1),
                _ => {}
            }
            step(&mut replays, &ran, &values);
            assert!(replays.stretches.len() <= STRETCHES_MAX);
        }
        assert!(ran.graphs.get() > 1_000, "{} graphs", ran.graphs.get());
    }
}
