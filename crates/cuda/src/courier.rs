//! Rows of rounds that NCCL carries from a rank's card to the next one's, of this machine or of
//! another.
//!
//! Each pair of neighbours has a communicator of two and a stream of its own, so that no pair waits
//! for another one. The rank whose berths they are draws the id, which the rank before learns over
//! the ring's links. Before rows pass, each end greets the other by the library itself: a way that
//! does not carry is found then, and rows go over the link.
//!
//! The card's own stream waits for no neighbour. It is the host that looks, up to a limit, whether
//! rows have come, or gone from where others are to be put; and a thread aborts the communicator
//! once the epoch is over, which ends what waits on the side stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use backend::berths::Over;

use crate::communicator::{self, Communicator, Move, failed, look};
use crate::device::{Buffer, Device, Event, Side};
use crate::end::Offer;
use crate::library::Nccl as Library;
use crate::{Cuda, CudaError};

/// How long the rank after may take to greet, and either one once both have found each other.
const GREETING_MS_MAX: u64 = 20_000;
/// How long rows may take that both ends have asked for.
const ROWS_MS_MAX: u64 = 10_000;
/// How often a thread looks whether the epoch is over.
const LOOK: Duration = Duration::from_millis(50);
/// What finds the other end.
const FINDS: &str = "ncclCommInitRankConfig";
/// Words of a greeting.
const GREETING: usize = 8;

/// What an end says of its berths.
pub(crate) type Greeting = [u32; GREETING];

/// NCCL as a card's way to its neighbours in a ring, until rows do not come by it.
pub(crate) struct Mail {
    library: Arc<Library>,
    /// What was given up on; nobody tries it again.
    spoilt: OnceLock<String>,
}

impl Mail {
    fn open(path: Option<&str>) -> Result<Self, CudaError> {
        Ok(Self { library: Arc::new(Library::open(path)?), spoilt: OnceLock::new() })
    }

    /// The library's version.
    fn version(&self) -> String {
        communicator::version(&self.library)
    }

    /// Whether it may be tried.
    fn works(&self) -> Result<(), CudaError> {
        let words = |spoilt: &String| {
            format!("{spoilt}; it is not tried again until this rank is started anew")
        };
        self.spoilt.get().map_or(Ok(()), |spoilt| Err(failed("ncclRecv", words(spoilt))))
    }
}

impl Cuda {
    /// From the next epoch on, rows go to neighbours in a ring by NCCL, not by cards' memory. Loads
    /// it from `path`, else as [`crate::nccl::Nccl::open`] does; its version.
    ///
    /// # Errors
    /// `NoNccl` or `OldLibrary`.
    pub fn mail_by_nccl(&self, path: Option<&str>) -> Result<String, CudaError> {
        if self.mail.get().is_none() {
            let _ = self.mail.set(Arc::new(Mail::open(path)?));
        }
        Ok(self.mail.get().map(|mail| mail.version()).unwrap_or_default())
    }
}

/// One end of a pair's way.
pub(crate) struct Courier {
    line: Arc<Line>,
    /// Aborts the communicator once the epoch is over; an owner's greets first.
    keeper: Option<JoinHandle<()>>,
    places: Buffer,
    /// Of each berth, when the rows that were asked for last have gone, or come.
    done: Vec<Event>,
    computed: Event,
}

/// What both the engine's thread and the keeper use.
struct Line {
    mail: Arc<Mail>,
    side: Arc<Side>,
    communicator: Arc<Communicator>,
    /// This end's, then the other's.
    greetings: Buffer,
    over: Over,
    /// The other end, of two.
    peer: usize,
    /// Whether both have greeted.
    met: OnceLock<Result<(), CudaError>>,
    ended: AtomicBool,
}

impl Courier {
    /// The end of the rank whose berths they are, `count` places of so many bytes, and by what the
    /// rank before finds it. Does not wait for that one.
    pub(crate) fn own(
        cuda: &Cuda,
        mail: &Arc<Mail>,
        greeting: &Greeting,
        (count, bytes): (usize, u128),
        over: Over,
    ) -> Result<(Self, Offer), CudaError> {
        mail.works()?;
        let id = communicator::draw(&mail.library)?;
        let line = Line::new(&cuda.device, mail, greeting, (&id, 0), over)?;
        Self::new(cuda, line, (count, bytes), true).map(|courier| (courier, id))
    }

    /// The end of the rank before, found by an offer, and what the other one says; it still lacks
    /// places ([`Courier::with_places`]).
    pub(crate) fn find(
        cuda: &Cuda,
        mail: &Arc<Mail>,
        offer: &Offer,
        over: Over,
    ) -> Result<(Self, Greeting), CudaError> {
        mail.works()?;
        let line = Line::new(&cuda.device, mail, &[0; GREETING], (offer, 1), over)?;
        let courier = Self::new(cuda, line, (0, 0), false)?;
        courier.line.greet_soon()?;
        let mut greeting = [0; GREETING];
        courier.line.greetings.download(size_of::<Greeting>(), &mut greeting);
        Ok((courier, greeting))
    }

    fn new(
        cuda: &Cuda,
        line: Line,
        (count, bytes): (usize, u128),
        greets: bool,
    ) -> Result<Self, CudaError> {
        let (line, device) = (Arc::new(line), &cuda.device);
        let mut courier = Self {
            keeper: None,
            places: Buffer::new(device, "berths of rows", bytes).map_err(memory)?,
            done: (0..count).map(|_| Event::new(device)).collect::<Result<_, _>>()?,
            computed: Event::new(device)?,
            line: line.clone(),
        };
        // Zeros that are still on their way are no rows, and no greeting.
        device.wait();
        let keeper = std::thread::Builder::new().name("baton-courier".into());
        let keeper = keeper.spawn(move || line.keep(greets));
        courier.keeper = Some(keeper.map_err(memory)?);
        Ok(courier)
    }

    /// With `count` places of so many bytes for rows that go.
    pub(crate) fn with_places(
        mut self,
        device: &Arc<Device>,
        (count, bytes): (usize, u128),
    ) -> Result<Self, CudaError> {
        self.places = Buffer::new(device, "rows for the rank after", bytes).map_err(memory)?;
        self.done = (0..count).map(|_| Event::new(device)).collect::<Result<_, _>>()?;
        device.wait();
        Ok(self)
    }

    /// Where the first place begins.
    pub(crate) fn at(&self) -> u64 {
        self.places.at()
    }

    /// Waits until a berth's rows from before have gone.
    pub(crate) fn free(&self, berth: usize) -> Result<(), CudaError> {
        self.line.wait(&self.done[berth], "ncclSend")
    }

    /// Has `values` values of a berth at `at` go once they are computed.
    pub(crate) fn send(&self, berth: usize, at: u64, values: usize) -> Result<(), CudaError> {
        self.line.side.follow(&self.computed);
        self.pass(berth, Move { peer: self.line.peer, comes: false, at, values })
    }

    /// Waits until `values` values of a berth at `at` have come.
    pub(crate) fn come(&self, berth: usize, at: u64, values: usize) -> Result<(), CudaError> {
        self.line.wait_met()?;
        self.pass(berth, Move { peer: self.line.peer, comes: true, at, values })?;
        self.line.wait(&self.done[berth], "ncclRecv")
    }

    fn pass(&self, berth: usize, one: Move) -> Result<(), CudaError> {
        let line = &self.line;
        let passed = line.communicator.pass(&[one], &line.patience(ROWS_MS_MAX));
        line.side.pass(&self.done[berth]);
        passed
    }

    /// Ends what is on its way.
    pub(crate) fn end(&self) {
        self.line.ended.store(true, Ordering::Release);
        self.line.communicator.abort();
    }
}

impl Drop for Courier {
    /// The keeper goes first: buffers are freed by the engine's thread alone, and once nothing on
    /// the card waits.
    fn drop(&mut self) {
        self.end();
        if let Some(keeper) = self.keeper.take() {
            keeper.thread().unpark();
            let _ = keeper.join();
        }
    }
}

impl Line {
    fn new(
        device: &Arc<Device>,
        mail: &Arc<Mail>,
        greeting: &Greeting,
        (id, index): (&Offer, usize),
        over: Over,
    ) -> Result<Self, CudaError> {
        let (side, bytes) = (Arc::new(Side::new(device)?), 2 * size_of::<Greeting>());
        let greetings = Buffer::new(device, "greetings", bytes as u128).map_err(memory)?;
        greetings.upload(0, greeting);
        device.wait();
        let (communicator, begun) = Communicator::begin(&mail.library, &side, id, (index, 2));
        begun?;
        let (mail, met, ended) = (mail.clone(), OnceLock::new(), AtomicBool::new(false));
        Ok(Self { mail, side, communicator, greetings, over, peer: 1 - index, met, ended })
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire) || (self.over)()
    }

    /// Whether nobody waits any more, or it took too long.
    fn patience(&self, ms_max: u64) -> impl Fn() -> bool {
        let start = Instant::now();
        move || self.is_over() || start.elapsed() > Duration::from_millis(ms_max)
    }

    /// Greets the other end, which was found, until `over`.
    fn greet(&self, over: &dyn Fn() -> bool) -> Result<(), CudaError> {
        let (peer, at, theirs) = (self.peer, self.greetings.at(), size_of::<Greeting>() as u64);
        let moves = [
            Move { peer, comes: false, at, values: GREETING },
            Move { peer, comes: true, at: at + theirs, values: GREETING },
        ];
        self.communicator.pass(&moves, over)?;
        let came = self.side.event()?;
        self.side.pass(&came);
        match self.is_done(&came, "ncclRecv", over)? {
            true => Ok(()),
            false => Err(failed("ncclRecv", self.silent())),
        }
    }

    /// Finds the rank after and greets it, up to a limit past which nobody tries again.
    fn greet_soon(&self) -> Result<(), CudaError> {
        let late = self.patience(GREETING_MS_MAX);
        let found = self.communicator.settle(FINDS, &late);
        found.and_then(|()| self.greet(&late)).inspect_err(|_| {
            if late() && !self.is_over() {
                let _ = self.mail.spoilt.set(format!("no greeting came in {GREETING_MS_MAX} ms"));
            }
        })
    }

    /// Greets the rank before once it comes, which it may never do. One that is there is not waited
    /// for long: whatever is freed on this card waits for the greeting too.
    fn greet_late(&self) -> Result<(), CudaError> {
        while !self.communicator.is_settled(FINDS)? {
            if self.is_over() {
                return Err(failed(FINDS, "the epoch is over".into()));
            }
            std::thread::park_timeout(LOOK);
        }
        self.greet(&self.patience(GREETING_MS_MAX))
    }

    fn is_done(
        &self,
        event: &Event,
        call: &'static str,
        over: &dyn Fn() -> bool,
    ) -> Result<bool, CudaError> {
        look(over, || {
            let done = event.is_done()?;
            self.communicator.state(call).map(|_| done)
        })
    }

    /// Waits for rows.
    fn wait(&self, event: &Event, call: &'static str) -> Result<(), CudaError> {
        let done = self.is_done(event, call, &self.patience(ROWS_MS_MAX));
        if let Ok(true) = done {
            return Ok(());
        }
        // Whether its keeper has aborted the communicator by now or not.
        if self.is_over() {
            return Err(failed(call, "the epoch is over".into()));
        }
        done?;
        let words = format!("rows were on their way for {ROWS_MS_MAX} ms");
        let _ = self.mail.spoilt.set(words.clone());
        Err(failed(call, words))
    }

    /// Waits until the keeper has greeted: the other end has, since it sends rows.
    fn wait_met(&self) -> Result<(), CudaError> {
        look(&self.patience(ROWS_MS_MAX), || Ok(self.met.get().is_some()))?;
        self.met.get().cloned().unwrap_or_else(|| Err(failed("ncclRecv", self.silent())))
    }

    fn silent(&self) -> String {
        let who = if self.peer == 0 { "after" } else { "before" };
        format!("the rank {who} did not greet")
    }

    /// The keeper's work.
    fn keep(&self, greets: bool) {
        if greets {
            let met = self.greet_late();
            if met.is_err() {
                // What it asked for would wait on the card as long as the ring lives.
                self.communicator.abort();
            }
            let _ = self.met.set(met);
        }
        while !self.is_over() {
            std::thread::park_timeout(LOOK);
        }
        self.communicator.abort();
    }
}

fn memory(error: impl ToString) -> CudaError {
    CudaError::Memory { words: error.to_string() }
}
