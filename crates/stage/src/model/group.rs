//! Where the members of a group meet inside a layer: rows go from device to device, or leave the
//! device, are gathered, and come back whole.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use arith::linear::join;
use backend::{Backend, BackendError, Together};

use super::choice::Way;
use super::division::{Close, Pieces};
use super::loader::Loader;
use super::merge::Merge;
use crate::{Exchange, ExchangeError, Fault, StageError};

/// Values of some rows on their way to the other members, and what came from all.
pub(super) struct Parcel {
    index: usize,
    fault: Option<Fault>,
    own: Vec<f32>,
    sizes: Vec<usize>,
    all: Vec<f32>,
    whole: Vec<f32>,
    /// Which of two that may be on their way at once.
    lane: usize,
    /// Whether devices give each other rows by themselves, and whether they do these.
    direct: bool,
    by_device: bool,
}

impl Parcel {
    /// Of member `index`.
    pub(super) fn new(index: usize, lane: usize, fault: Option<Fault>) -> Self {
        let (own, sizes, all, whole) = Default::default();
        Self { index, fault, own, sizes, all, whole, lane, direct: false, by_device: false }
    }

    /// Whether devices give each other rows by themselves.
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Takes `rows` rows from the device, or has it give them.
    fn pack<B: Backend>(
        &mut self,
        backend: &B,
        (from, rows): (&B::Rows, usize),
        together: Together<'_>,
    ) {
        self.sizes.clear();
        let members = 0..together.members();
        self.sizes.extend(members.map(|member| rows * together.values(member)));
        self.by_device = self.direct && backend.gives(rows, together);
        if self.by_device {
            return backend.give(self.lane, from, rows, together);
        }
        self.own.resize(self.sizes[self.index], 0.0);
        backend.download(from, 0, &mut self.own);
    }

    /// Puts the pieces that came into whole rows.
    fn place(&mut self, pieces: &Pieces, to: &mut [f32]) {
        if self.fault == Some(Fault::SwappedPieces) {
            self.all.rotate_left(self.sizes[0]);
        }
        let mut rest = &self.all[..];
        for (runs, size) in pieces.members().iter().zip(&self.sizes) {
            let (mut piece, others) = rest.split_at(*size);
            rest = others;
            for to in to.chunks_exact_mut(pieces.width) {
                for run in runs {
                    let (values, later) = piece.split_at(run.len());
                    to[run.clone()].copy_from_slice(values);
                    piece = later;
                }
            }
        }
    }

    /// The same, back onto the device.
    fn unpack<B: Backend>(
        &mut self,
        backend: &B,
        pieces: &Pieces,
        (to, rows): (&mut B::Rows, usize),
    ) {
        if self.by_device {
            return backend.take(self.lane, to, rows, pieces.together());
        }
        let mut whole = std::mem::take(&mut self.whole);
        whole.resize(rows * pieces.width, 0.0);
        self.place(pieces, &mut whole);
        backend.upload(&whole, to);
        self.whole = whole;
    }

    /// Adds the nodes that came, of `rows` rows, in the tree's order.
    fn join<B: Backend>(&mut self, backend: &B, close: &Close, (y, rows): (&mut B::Rows, usize)) {
        let width = close.output.width;
        if self.by_device {
            return backend.take(self.lane, y, rows, close.nodes());
        }
        if self.fault == Some(Fault::OtherTree) {
            self.all.rotate_left(rows * width);
        }
        self.whole.resize(rows * width, 0.0);
        join(&self.all, &mut self.whole);
        backend.upload(&self.whole, y);
    }
}

/// A member's way to the others.
pub(super) struct Group {
    exchange: Box<dyn Exchange>,
    parcel: Parcel,
    merge: Merge,
}

impl Group {
    pub(super) fn new(exchange: Box<dyn Exchange>, fault: Option<Fault>) -> Self {
        let parcel = Parcel::new(exchange.member().index, 0, fault);
        Self { exchange, parcel, merge: Merge::new(fault) }
    }

    /// Whether devices give each other rows by themselves, the same on every member.
    pub(super) fn is_direct(&mut self) -> Result<bool, ExchangeError> {
        self.exchange.is_direct()
    }

    /// Says before rows go through layers how their parcels will go.
    pub(super) fn begin<'a>(
        &mut self,
        parcels: impl IntoIterator<Item = &'a mut Parcel>,
    ) -> Result<(), ExchangeError> {
        let direct = self.exchange.is_direct()?;
        parcels.into_iter().for_each(|parcel| parcel.direct = direct);
        Ok(())
    }

    /// Gives what is packed; what all members gave comes in.
    pub(super) fn meet(&mut self, parcel: &mut Parcel) -> Result<(), ExchangeError> {
        meet(&mut *self.exchange, parcel)
    }

    /// Whether what has come from the device is to be believed.
    pub(super) fn settled(&mut self) -> Result<(), ExchangeError> {
        self.exchange.settled()
    }

    /// Runs `work` beside a thread that meets the others for it, or devices that do so themselves.
    pub(super) fn aside(
        &mut self,
        direct: bool,
        work: impl FnOnce(&mut Aside<'_>) -> Result<(), ExchangeError>,
    ) -> Result<(), ExchangeError> {
        let exchange = &mut *self.exchange;
        if direct {
            return work(&mut Aside::Devices(exchange));
        }
        std::thread::scope(|scope| {
            let (give, jobs) = sync_channel::<Parcel>(LANES);
            let (done, take) = sync_channel(LANES);
            scope.spawn(move || {
                for mut parcel in jobs {
                    let met = exchange.gather(&parcel.own, &parcel.sizes, &mut parcel.all);
                    let failed = met.is_err();
                    if done.send(met.map(|()| parcel)).is_err() || failed {
                        return;
                    }
                }
            });
            let mut aside = Aside::Thread { give, take };
            let done = work(&mut aside);
            // Lets the thread end.
            drop(aside);
            done
        })
    }

    /// Puts rows of the head behind `to` on the first member: `from` holds this member's pieces,
    /// and `best` logits are needed of each.
    pub(super) fn merge<B: Backend>(
        &mut self,
        backend: &B,
        (from, best): (&B::Rows, &[u32]),
        pieces: &Pieces,
        to: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let index = self.parcel.index;
        if !pieces.is_divided() {
            if index == 0 {
                backend.candidates((from, pieces.width), 0, best, to);
            }
            return Ok(());
        }
        let Self { exchange, parcel, merge } = self;
        parcel.own.clear();
        let (share, first) = (pieces.values(index), pieces.runs(index)[0].start);
        backend.candidates((from, share), first as u32, best, &mut parcel.own);
        merge.run(&mut **exchange, pieces, (&parcel.own, best), to)
    }

    /// Whether all members say yes.
    pub(super) fn agree(&mut self, yes: bool) -> Result<bool, ExchangeError> {
        let count = self.exchange.member().count;
        if count == 1 {
            return Ok(yes);
        }
        let Self { exchange, parcel, .. } = self;
        exchange.gather(&[f32::from(u8::from(yes))], &vec![1; count], &mut parcel.all)?;
        Ok(parcel.all.iter().all(|said| *said == 1.0))
    }
}

/// Lanes that meet the others in turn.
const LANES: usize = 2;

fn meet(exchange: &mut dyn Exchange, parcel: &mut Parcel) -> Result<(), ExchangeError> {
    if parcel.by_device {
        let (own, all) = (parcel.sizes[parcel.index], parcel.sizes.iter().sum::<usize>());
        return exchange.passed(own * (parcel.sizes.len() - 1), all - own);
    }
    exchange.gather(&parcel.own, &parcel.sizes, &mut parcel.all)
}

/// Who meets the other members, parcel by parcel in order.
pub(super) enum Aside<'a> {
    Thread { give: SyncSender<Parcel>, take: Receiver<Result<Parcel, ExchangeError>> },
    Devices(&'a mut dyn Exchange),
}

impl Aside<'_> {
    /// Hands a packed parcel over.
    pub(super) fn start(&self, parcel: &mut Parcel) {
        let Self::Thread { give, .. } = self else { return };
        let empty = Parcel::new(parcel.index, parcel.lane, parcel.fault);
        // Refused where an earlier one has failed, which `finish` says.
        drop(give.send(std::mem::replace(parcel, empty)));
    }

    /// Takes the parcel back that was handed over first.
    pub(super) fn finish(&mut self, parcel: &mut Parcel) -> Result<(), ExchangeError> {
        match self {
            Self::Thread { take, .. } => {
                *parcel = take.recv().expect("a parcel that was handed over comes back")?;
                Ok(())
            }
            Self::Devices(exchange) => meet(&mut **exchange, parcel),
        }
    }
}

/// The projection that ends a block, divided as its [`Close`] says.
pub(super) struct Closing<B: Backend> {
    linear: B::Linear,
}

/// Its row buffers, where it needs some.
pub(super) struct ClosingRows<B: Backend> {
    /// The whole input, and this member's outputs.
    input: Option<B::Rows>,
    output: Option<B::Rows>,
}

impl<B: Backend> ClosingRows<B> {
    pub(super) fn new(
        backend: &B,
        close: &Close,
        index: usize,
        rows_max: usize,
    ) -> Result<Self, BackendError> {
        let rows = |divided: bool, width: usize| match close.way == Way::Outputs && divided {
            true => backend.rows(rows_max, width).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            input: rows(close.input.is_divided(), close.input.width)?,
            output: rows(close.output.is_divided(), close.output.values(index))?,
        })
    }
}

impl<B: Backend> Closing<B> {
    pub(super) fn load(
        loader: &mut Loader<'_, B>,
        name: &str,
        close: &Close,
        index: usize,
    ) -> Result<Self, StageError> {
        let linear = match close.way {
            Way::Whole => loader.linear(name)?,
            Way::Nodes => loader.groups(name, close.input.width, close.groups(index))?,
            Way::Outputs => loader.rows(name, &close.output.runs(index))?,
        };
        Ok(Self { linear })
    }

    /// What is to do before exchange `met` of this projection, over `rows` rows of `x` of which
    /// each member has its piece. `true` where a parcel is packed for it; else `y` holds the
    /// outputs.
    pub(super) fn step(
        &self,
        backend: &B,
        (close, met): (&Close, usize),
        (x, rows): (&B::Rows, usize),
        (b, parcel): (&mut ClosingRows<B>, &mut Parcel),
        y: &mut B::Rows,
    ) -> bool {
        let linear = [&self.linear];
        match (close.way, met) {
            (Way::Whole, _) => {
                backend.project(x, rows, &linear, &mut [y]);
                false
            }
            (Way::Nodes, 0) => {
                backend.project(x, rows, &linear, &mut [&mut *y]);
                parcel.pack(backend, (y, rows), close.nodes());
                true
            }
            (Way::Nodes, _) => {
                parcel.join(backend, close, (y, rows));
                false
            }
            (Way::Outputs, met) => {
                let ClosingRows { input, output } = b;
                let output = output.as_mut().expect("outputs have rows");
                match (input, met) {
                    (Some(_), 0) => parcel.pack(backend, (x, rows), close.input.together()),
                    (Some(input), 1) => {
                        parcel.unpack(backend, &close.input, (&mut *input, rows));
                        backend.project(input, rows, &linear, &mut [&mut *output]);
                        parcel.pack(backend, (output, rows), close.output.together());
                    }
                    (None, 0) => {
                        backend.project(x, rows, &linear, &mut [&mut *output]);
                        parcel.pack(backend, (output, rows), close.output.together());
                    }
                    _ => {
                        parcel.unpack(backend, &close.output, (y, rows));
                        return false;
                    }
                }
                true
            }
        }
    }
}
