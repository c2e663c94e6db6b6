//! An engine without a model: what it replies stands in the prompt, as `[[word:argument]]`.
//!
//! `say:TEXT` one token a byte · `break:N` N tokens, then the ring fails · `nan:N` N tokens, then
//! spoilt logits · `endless` tokens up to the limit, one a round · `burst` the same at once ·
//! `queue`, `away` refusals · `mute` admitted, no token · `silent` no verdict. A round is 1 ms.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ring::head::{Command, Driver, Facts, Handle, RingState, Seat, Tally, pair};
use sched::sample::Logprobs;
use sched::{Event, Failure, Finish, Refusal, Request, RequestId};
use tokio::sync::mpsc;

pub const CONTEXT_MAX: u32 = 100_000;
const ROUND: Duration = Duration::from_millis(1);

/// What the engine saw.
#[derive(Clone, Debug)]
pub enum Seen {
    Submitted(RequestId, Box<Request>),
    /// With the tokens sent to the stream before.
    Cancelled(RequestId, u32),
    Drain,
}

type Log = Arc<Mutex<Vec<Seen>>>;

pub struct Fake {
    pub handle: Handle,
    pub log: Log,
    states: Sender<RingState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    OneARound,
    AtOnce,
    Never,
}

struct Stream {
    events: mpsc::Sender<Event>,
    script: Events,
    pace: Pace,
    sent: u32,
}

impl Fake {
    /// Starts it, ready.
    pub fn start() -> Self {
        let (handle, driver) = pair();
        let (states, asked) = channel();
        let log = Log::default();
        let mut engine = Engine {
            driver,
            streams: BTreeMap::new(),
            ended: BTreeMap::new(),
            unanswered: Vec::new(),
            rounds: 0,
            log: log.clone(),
        };
        engine.publish();
        engine.driver.set_state(RingState::Ready);
        let thread = std::thread::spawn(move || {
            loop {
                match asked.try_recv() {
                    Ok(state) => engine.driver.set_state(state),
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                }
                if !engine.round() {
                    return;
                }
            }
        });
        Self { handle, log, states, thread: Some(thread) }
    }

    pub fn set_state(&self, state: RingState) {
        let wanted = state.clone();
        self.states.send(state).unwrap();
        while self.handle.state() != wanted {
            std::thread::sleep(ROUND);
        }
    }

    /// Ends the engine's thread at once, as a crash of rank 0's driver would.
    pub fn crash(&mut self) {
        self.states = channel().0;
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.crash();
    }
}

struct Engine {
    driver: Driver,
    streams: BTreeMap<RequestId, Stream>,
    ended: BTreeMap<RequestId, u32>,
    unanswered: Vec<tokio::sync::oneshot::Sender<Result<(), Refusal>>>,
    rounds: u64,
    log: Log,
}

impl Engine {
    fn round(&mut self) -> bool {
        loop {
            match self.driver.commands.recv_timeout(ROUND) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        self.rounds += 1;
        let mut over = Vec::new();
        for (&id, stream) in &mut self.streams {
            while stream.pace != Pace::Never {
                let Some(event) = stream.script.next() else {
                    over.push(id);
                    break;
                };
                stream.sent += u32::from(matches!(event, Event::Token { .. }));
                // The channel holds a whole reply: a full one would be a defect.
                match stream.events.try_send(event) {
                    Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
                    Err(full) => panic!("{full}"),
                }
                if stream.pace == Pace::OneARound {
                    break;
                }
            }
        }
        for id in over {
            if let Some(stream) = self.streams.remove(&id) {
                self.ended.insert(id, stream.sent);
            }
        }
        self.publish();
        true
    }

    fn publish(&self) {
        self.driver.set_facts(Facts {
            layout: "0:1,1:2".into(),
            world: 2,
            context_max: CONTEXT_MAX,
            vocab: 258,
            running: u32::try_from(self.streams.len()).unwrap(),
            rounds: self.rounds,
            seats: [0..1, 1..2].map(seat).into(),
            tallies: vec![tally(0), tally(1)],
            trips: (self.rounds, Duration::from_millis(self.rounds)),
            ..Facts::default()
        });
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { id, request, events, answer } => {
                let log = Seen::Submitted(id, request.clone());
                self.log.lock().unwrap().push(log);
                match script(&request) {
                    Err(refusal) => {
                        let _ = answer.send(Err(refusal));
                    }
                    Ok(None) => self.unanswered.push(answer),
                    Ok(Some((script, pace))) => {
                        let _ = answer.send(Ok(()));
                        let stream = Stream { events, script, pace, sent: 0 };
                        self.streams.insert(id, stream);
                    }
                }
            }
            Command::Cancel(id) => {
                let running = self.streams.remove(&id).map(|stream| stream.sent);
                let sent = running.or(self.ended.remove(&id)).unwrap_or(0);
                self.log.lock().unwrap().push(Seen::Cancelled(id, sent));
            }
            Command::Drain => {
                self.log.lock().unwrap().push(Seen::Drain);
                self.driver.set_state(RingState::Draining);
            }
            Command::Look => {}
        }
    }
}

fn seat(layers: std::ops::Range<u32>) -> Seat {
    Seat { layers, backend: "cpu".into(), device: "a \"fake\"".into(), own: false }
}

fn tally(rank: u32) -> Tally {
    let counts = Tally { link_us: 250, done: 7, computed_us: 1_500_000, ..Tally::default() };
    let mut tally = Tally { sent_bytes: 9, ..counts };
    tally.origin.0 = rank;
    tally
}

type Events = Box<dyn Iterator<Item = Event> + Send>;
type Script = (Events, Pace);

/// The reply that the prompt asks for; `None` for no verdict at all.
fn script(request: &Request) -> Result<Option<Script>, Refusal> {
    let bytes = request.prompt.iter().filter_map(|&id| u8::try_from(id).ok());
    let prompt = String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned();
    let order = prompt.split_once("[[").and_then(|(_, rest)| rest.split_once("]]"));
    let (word, argument) = order.map_or(("say", "Hello, wörld"), |(order, _)| {
        order.split_once(':').unwrap_or((order, ""))
    });
    let count = argument.parse().unwrap_or(0);
    let xs = |n: usize| vec![u32::from(b'x'); n];
    let whole = |tokens: Vec<u32>| reply(request, tokens);
    let script = match word {
        "say" => whole(argument.bytes().map(u32::from).collect()),
        "endless" | "burst" => whole(xs(request.max_tokens as usize)),
        "break" => cut(xs(count), Failure::Ring("rank 1 closed its link".into())),
        "nan" => cut(xs(count), Failure::NonfiniteLogits { position: 9 }),
        "mute" => Box::new(std::iter::empty()),
        "queue" => return Err(Refusal::QueueFull { waiting: 8 }),
        "away" => return Err(Refusal::NotReady("rank 1 is gone".into())),
        "silent" => return Ok(None),
        other => panic!("no such order: {other}"),
    };
    let pace = match word {
        "burst" => Pace::AtOnce,
        "mute" => Pace::Never,
        _ => Pace::OneARound,
    };
    Ok(Some((script, pace)))
}

fn reply(request: &Request, mut tokens: Vec<u32>) -> Events {
    let long = tokens.len() >= request.max_tokens as usize;
    tokens.truncate(request.max_tokens as usize);
    let done = Event::Done {
        finish: if long { Finish::Length } else { Finish::Stop },
        prompt_tokens: u32::try_from(request.prompt.len()).unwrap(),
        reply_tokens: u32::try_from(tokens.len()).unwrap(),
        logits_sha256: None,
        cached: 0,
        drafted: 0,
        accepted: 0,
    };
    let guide = request.guide.clone();
    let scores =
        move |count: u32| Logprobs { own: -0.5, top: (0..count).map(|n| (n, -0.5)).collect() };
    let prompt = guide.prompt_logprobs.map(|count| {
        let logprobs = vec![scores(count); request.prompt.len() - 1];
        Event::PromptLogprobs { first: 1, logprobs }
    });
    let tokens = tokens.into_iter().map(move |id| {
        let logprobs = guide.logprobs.map(|count| Box::new(scores(count)));
        Event::Token { id, logprobs }
    });
    Box::new(prompt.into_iter().chain(tokens).chain(std::iter::once(done)))
}

fn cut(tokens: Vec<u32>, failure: Failure) -> Events {
    let tokens = tokens.into_iter().map(|id| Event::Token { id, logprobs: None });
    Box::new(tokens.chain(std::iter::once(Event::Failed(failure))))
}
